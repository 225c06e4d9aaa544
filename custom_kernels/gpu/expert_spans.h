// One row of x times 16 rows of 4-bit weights over 256 columns ("a span"), on NVIDIA's integer matrix units: what a wave of
// moe_one_spans.h does at a time.
//
// Codes become bytes in less than one instruction each, x three signed bytes (of float16 and bfloat16 two) with a power of
// two for each block of 32 columns. The blocks lie beside each other in the right factor, as in stripes.h: lane 4 g + t gets
// the products of rows g and g + 8 with its own block, first of blocks 2 t, then of blocks 2 t + 1, and scales them alone.
#pragma once

#include "expert_tasks.h"
#include "rows_of_x.h"

#if !defined(__AMDGCN__)

inline constexpr u32 SPAN_BLOCKS = 8, SPAN_COLUMNS = SPAN_BLOCKS * BLOCK, SPAN_ROW = SPAN_COLUMNS / 2, SPAN_STRIDE = SPAN_ROW + 16;
inline constexpr u32 SPAN_BYTES = STRIPE * SPAN_STRIDE;  // of a wave's local memory

#if defined(__NVPTX__)
DEVICE void store_fresh(GLOBAL f32* to, f32 v) { asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(v) : "memory"); }
#else
DEVICE void store_fresh(GLOBAL f32* to, f32 v) { *to = v; }
#endif

// Element i of a row of scales.
#if defined(__NVPTX__)
template <class T>
DEVICE T element_of(const LOCAL u8* row, u32 i) { return ((const LOCAL T*)row)[i]; }
#endif
template <class T>
DEVICE T element_of(const GLOBAL u8* row, u32 i) { return ((const GLOBAL T*)row)[i]; }

// SpanCodes<W>: ORDER, of a lane's eight columns (stripe_codes.h); the left factor of words of rows g and g + 8; bytes of an
// array of scales of k columns, and where it is; the scales of a lane's blocks, `block` and the next one.
template <class W>
struct SpanCodes;

template <u32 GROUP, class S, class B>
struct SpanCodes<Affine<4, GROUP, S, B>> {
  using W = Affine<4, GROUP, S, B>;
  static constexpr Order ORDER = EVEN_ODD;
  static constexpr u32 ARRAYS = 2;
  DEVICE void factor(u32 low, u32 high, u32 (&a)[4]) {
    bytes_of_nibbles<0>(low, a[0], a[2]);
    bytes_of_nibbles<0>(high, a[1], a[3]);
  }
  DEVICE u32 row_bytes(u32 array, u32 k) { return k / GROUP * (array ? sizeof(B) : sizeof(S)); }
  DEVICE const GLOBAL u8* array_of(const W& w, u32 array) { return (const GLOBAL u8*)(array ? w.parts.minimum : w.parts.scale); }
  template <class Row>
  DEVICE void scales(const Row (&row)[ARRAYS], u32 block, f32 (&scale)[2], f32 (&minimum)[2]) {
    UNROLL for (u32 p = 0; p < 2; p++) {
      const u32 group = (block + p) / (GROUP / BLOCK);
      scale[p] = widen(element_of<S>(row[0], group));
      minimum[p] = widen(element_of<B>(row[1], group));
    }
  }
};

// x in local memory, block after block. X: the type of x.
template <class W, class X>
struct SpansOfX {
  using C = SpanCodes<W>;
  static constexpr bool WIDE = sizeof(X) == 4;
  static constexpr u32 OF_BLOCK = WIDE ? 128 : 64, OF_COLUMN = OF_BLOCK / 2, OF_PLACE = WIDE ? 16 : 8;
  using OfX = If<WIDE, u32x4, u32x2>;
  LOCAL u8* digits;
  LOCAL f32 *unit, *sum;  // of a block: what its products are multiplied by, and its sum

  // Eight columns, from 8 t on, of a block: the lanes t = 0 to 3 of four meet.
  MEMBER void put(u32 block, const f32 (&v)[8]) const {
    constexpr u32 INFINITE = 0x7f800000u, SMALLEST = 22u << 23, BEFORE = WIDE ? 274 : 267;
    const u32 lane = lane_id(), t = lane % 4;
    f32 most = 0.0f, total = 0.0f, of[8];
    UNROLL for (u32 c = 0; c < 8; c++) {
      most = larger_magnitude(most, v[c]);
      total += v[c];
      of[c] = v[c];
    }
    u32 largest = __builtin_bit_cast(u32, most);
    UNROLL for (u32 mask = 1; mask < 4; mask *= 2) {
      largest = larger(largest, shuffle_bits(largest, lane ^ mask));
      if constexpr (W::MINIMUM) total += shuffle(total, lane ^ mask);
    }
    const u32 found = largest & INFINITE, exponent = larger(found, SMALLEST);
    u32 factor = (BEFORE << 23) - exponent, by = exponent - ((WIDE ? 20u : 13u) << 23);
    if (found == INFINITE) {  // nothing else is kept
      factor = 127u << 23;
      by = largest;
      UNROLL for (u32 c = 0; c < 8; c++) {
        const bool infinite = (__builtin_bit_cast(u32, of[c]) & 0x7fffffffu) == INFINITE;
        of[c] = infinite ? __builtin_copysignf(1.0f, of[c]) : 0.0f;
      }
    }
    if (t == 0) unit[block] = __builtin_bit_cast(f32, by);
    if (W::MINIMUM && t == 0) sum[block] = total;
    put_bytes<SpansOfX>(digits + block * OF_BLOCK + t * OF_PLACE, of, __builtin_bit_cast(f32, factor));
  }
};

// The right factor's part of a lane: its column's bytes of its own blocks, zero of others.
template <class W, class X>
struct SpanRight {
  using Of = SpansOfX<W, X>;
  typename Of::OfX held[4] = {};

  template <u32 AT>
  MEMBER const typename Of::OfX& load(u32 b, const LOCAL u8* from) {
    load_if<AT>(lane_id() / 8 == b, from, held[b]);
    return held[b];
  }
};

// sum[i]: rows g (in lanes 4 g) and g + 8 (in lanes 4 g + 1) of a span times row i of x, which has `stride` blocks in local memory,
// these from block `first` on; the span begins with block `block` of `blocks`. low, high: the scales of a lane's rows.
template <u32 M, class W, class X, class Row>
DEVICE void span_products(const LOCAL u8* codes, const SpansOfX<W, X>& x, u32 first, u32 stride, u32 block, u32 blocks,
                          const Row (&low)[SpanCodes<W>::ARRAYS], const Row (&high)[SpanCodes<W>::ARRAYS],
                          SpanRight<W, X>& right, f32 (&sum)[M]) {
  using C = SpanCodes<W>;
  using Of = SpansOfX<W, X>;
  const u32 lane = lane_id(), t = lane % 4;
  const u32 scaled = smaller(block + 2 * t, blocks - 2);  // what is not there does not count
  const LOCAL u8* from = x.digits + first * Of::OF_BLOCK + lane / 4 % 2 * Of::OF_COLUMN + t * Of::OF_PLACE;
  u32 words[4][4];
  UNROLL for (u32 b = 0; b < 4; b++) load_words_of_rows(codes, SPAN_STRIDE, b * 32, b * 32 + 16, words[b]);
  f32 scale[2][2], minimum[2][2], total[M][2] = {};
  C::scales(low, scaled, scale[0], minimum[0]);
  C::scales(high, scaled, scale[1], minimum[1]);
  UNROLL for (u32 p = 0; p < 2; p++) {
    u32 a[4][4];
    UNROLL for (u32 b = 0; b < 4; b++) C::factor(words[b][2 * p], words[b][2 * p + 1], a[b]);
    UNROLL for (u32 i = 0; i < M; i++) {
      Counts c[Of::WIDE ? 2 : 1] = {};
      const LOCAL u8* of_row = from + i * stride * Of::OF_BLOCK;
      UNROLL for (u32 b = 0; b < 4; b++) {
        typename Of::OfX v;
        if (p == 0) {
          v = b == 0 ? right.template load<0>(0, of_row) : b == 1 ? right.template load<2 * Of::OF_BLOCK>(1, of_row)
              : b == 2 ? right.template load<4 * Of::OF_BLOCK>(2, of_row) : right.template load<6 * Of::OF_BLOCK>(3, of_row);
        } else {
          v = b == 0 ? right.template load<Of::OF_BLOCK>(0, of_row) : b == 1 ? right.template load<3 * Of::OF_BLOCK>(1, of_row)
              : b == 2 ? right.template load<5 * Of::OF_BLOCK>(2, of_row) : right.template load<7 * Of::OF_BLOCK>(3, of_row);
        }
        multiply_bytes<false>(a[b], v[0], v[1], c[0]);
        if constexpr (Of::WIDE) multiply_bytes<false>(a[b], v[2], v[3], c[1]);
      }
      const u32 own = first + i * stride + 2 * t + p;
      const f32 unit = x.unit[own];
      UNROLL for (u32 r = 0; r < 2; r++) {
        i32 n = c[0].of[2 * r] * 256 + c[0].of[2 * r + 1];
        if constexpr (Of::WIDE) n = (c[0].of[2 * r] * 128 + c[0].of[2 * r + 1]) * 256 + c[1].of[2 * r];
        f32 value = (f32)n * unit * scale[r][p];
        if constexpr (W::MINIMUM) value = multiply_add(x.sum[own], minimum[r][p], value);
        total[i][r] += block + 2 * t + p < blocks ? value : 0.0f;
      }
    }
  }
  const bool odd = lane & 1;
  UNROLL for (u32 i = 0; i < M; i++) {
    const f32 given = shuffle(odd ? total[i][0] : total[i][1], lane ^ 1);
    const f32 mine = (odd ? total[i][1] : total[i][0]) + given;
    sum[i] = mine + shuffle(mine, lane ^ 2);
  }
}

#endif
