// One row of x times 16 rows of 4-bit weights over 256 columns ("a span"), on NVIDIA's integer matrix units: what a wave of
// moe_one_spans.h does at a time.
//
// Codes become bytes in one instruction each or less, x three signed bytes with a power of two for each unit, 32 or 64 columns
// that have one scale. Rows 0 to 7 and 8 to 15 have an x each, which may be the same: in the right factor columns 0 to 3 are the
// bytes of the first one, 4 to 7 those of the second. So lanes 4 g and 4 g + 1 get the products of row g, the upper two bytes'
// and the lowest's, lanes 4 g + 2 and 4 g + 3 those of row g + 8, and scale them alone.
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

// SpanCodes<W>: ORDER, of a lane's eight columns (stripe_codes.h); UNIT, the blocks of 32 columns that have one scale
// and one power of two; OF_CODE, what a one is worth; the products of words of rows g and g + 8; bytes of an array of scales of k
// columns, and where it is; the scale and the minimum of the unit that begins with a block.
template <class W>
struct SpanCodes;

template <u32 GROUP, class S, class B>
struct SpanCodes<Affine<4, GROUP, S, B>> {
  using W = Affine<4, GROUP, S, B>;
  static constexpr Order ORDER = EVEN_ODD;
  static constexpr u32 ARRAYS = 2, UNIT = GROUP == 32 ? 1 : 2, FACTORS = 1;
  static constexpr f32 OF_CODE = 1.0f;
  DEVICE void factors(u32 low, u32 high, u32 (&a)[FACTORS][4]) {
    bytes_of_nibbles<0>(low, a[0][0], a[0][2]);
    bytes_of_nibbles<0>(high, a[0][1], a[0][3]);
  }
  DEVICE void multiply(const u32 (&a)[FACTORS][4], u32 first, u32 last, Counts& c) { multiply_bytes<false>(a[0], first, last, c); }
  DEVICE u32 row_bytes(u32 array, u32 k) { return k / GROUP * (array ? sizeof(B) : sizeof(S)); }
  DEVICE const GLOBAL u8* array_of(const W& w, u32 array) { return (const GLOBAL u8*)(array ? w.parts.minimum : w.parts.scale); }
  template <class Row>
  DEVICE f32 scale(const Row (&row)[ARRAYS], u32 block) { return widen(element_of<S>(row[0], block / (GROUP / BLOCK))); }
  template <class Row>
  DEVICE f32 minimum(const Row (&row)[ARRAYS], u32 block) { return widen(element_of<B>(row[1], block / (GROUP / BLOCK))); }
};

// Byte i of the result is byte number nibble i of `which` (below 8) of eight, of a nibble from 8 on zero where all eight are
// below 128.
#if defined(__NVPTX__)
DEVICE u32 bytes_by_nibbles(u32 low, u32 high, u32 which) { return (u32)__nvvm_prmt((i32)low, (i32)high, (i32)which); }
#else
DEVICE u32 bytes_by_nibbles(u32 low, u32 high, u32 which) {
  u32 bytes = 0;
  for (u32 i = 0; i < 4; i++) {
    const u32 nibble = which >> (4 * i) & 15u, byte = (u32)(((u64)high << 32 | low) >> (nibble % 8 * 8)) & 255u;
    bytes |= (nibble < 8 ? byte : byte < 128 ? 0u : 255u) << (8 * i);
  }
  return bytes;
}
#endif

// Twice a code is its magnitude negative, and where it is positive twice the magnitude more: tables of both.
template <>
struct SpanCodes<Mxfp4> {
  using W = Mxfp4;
  static constexpr Order ORDER = LINEAR;
  static constexpr u32 ARRAYS = 1, UNIT = 1, FACTORS = 2;
  static constexpr f32 OF_CODE = 0.5f;
  static constexpr u32 MINUS[2] = {0xfdfeff00u, 0xf4f8fafcu}, TWICE[2] = {0x06040200u, 0x18100c08u};
  DEVICE void factors(u32 low, u32 high, u32 (&a)[FACTORS][4]) {
    const u32 words[2] = {low, high};
    UNROLL for (u32 r = 0; r < 2; r++) {
      const u32 magnitudes = words[r] & 0x77777777u;
      UNROLL for (u32 half = 0; half < 2; half++) {
        a[0][2 * half + r] = bytes_by_nibbles(MINUS[0], MINUS[1], magnitudes >> (16 * half));
        a[1][2 * half + r] = bytes_by_nibbles(TWICE[0], TWICE[1], words[r] >> (16 * half));
      }
    }
  }
  DEVICE void multiply(const u32 (&a)[FACTORS][4], u32 first, u32 last, Counts& c) {
    multiply_bytes<true>(a[0], first, last, c);
    multiply_bytes<true>(a[1], first, last, c);
  }
  DEVICE u32 row_bytes(u32, u32 k) { return k / BLOCK; }
  DEVICE const GLOBAL u8* array_of(const W& w, u32) { return (const GLOBAL u8*)w.parts.scale; }
  template <class Row>
  DEVICE f32 scale(const Row (&row)[ARRAYS], u32 block) {
    const u32 bits = larger((u32)element_of<u8>(row[0], block) << 23, 0x00400000u);  // 2^-127 is subnormal
    return multiply_add(__builtin_bit_cast(f32, bits), 0.0f, __builtin_bit_cast(f32, bits));  // 255 is NaN
  }
  template <class Row>
  DEVICE f32 minimum(const Row (&)[ARRAYS], u32) { return 0.0f; }
};

// x in local memory, block after block: of two blocks the bytes of each place, highest first, those of a lane t of four
// together. X: the type of x.
template <class W, class X>
struct SpansOfX {
  using C = SpanCodes<W>;
  static constexpr u32 OF_PAIR = 192, OF_PLACE = 64, UNITS = SPAN_BLOCKS / C::UNIT;  // UNITS: of a span
  LOCAL u8* digits;
  LOCAL f32 *unit, *sum;  // of a unit: what its products are multiplied by, and its sum

  // Eight columns, from 8 t on, of a block: the lanes of a unit meet.
  MEMBER void put(u32 block, const f32 (&v)[8]) const {
    constexpr u32 INFINITE = 0x7f800000u, SMALLEST = 22u << 23, BEFORE = 274;
    constexpr f32 MAGIC_NUMBER = 12582912.0f + 0x8080;  // rows_of_x.h
    const u32 lane = lane_id(), t = lane % 4;
    f32 most = 0.0f, total = 0.0f, of[8];
    UNROLL for (u32 c = 0; c < 8; c++) {
      most = larger_magnitude(most, v[c]);
      total += v[c];
      of[c] = v[c];
    }
    u32 largest = __builtin_bit_cast(u32, most);
    UNROLL for (u32 mask = 1; mask < 4 * C::UNIT; mask *= 2) {
      largest = larger(largest, shuffle_bits(largest, lane ^ mask));
      if constexpr (W::MINIMUM) total += shuffle(total, lane ^ mask);
    }
    const u32 found = largest & INFINITE, exponent = larger(found, SMALLEST);
    u32 factor = (BEFORE << 23) - exponent, by = exponent - (20u << 23);
    if (found == INFINITE) {  // nothing else is kept, and of it a one in each byte
      factor = 127u << 23;
      by = largest;
      UNROLL for (u32 c = 0; c < 8; c++) {
        const bool infinite = (__builtin_bit_cast(u32, of[c]) & 0x7fffffffu) == INFINITE;
        of[c] = infinite ? __builtin_copysignf(0x10101, of[c]) : 0.0f;
      }
    }
    if (lane % (4 * C::UNIT) == 0) unit[block / C::UNIT] = __builtin_bit_cast(f32, by);
    if (W::MINIMUM && lane % (4 * C::UNIT) == 0) sum[block / C::UNIT] = total;
    u32 bytes[3][2];
    UNROLL for (u32 i = 0; i < 2; i++) {
      u32 words[4];
      UNROLL for (u32 c = 0; c < 4; c++) {
        const u32 from = C::ORDER == EVEN_ODD ? 2 * c + i : 4 * i + c;
        words[c] = __builtin_bit_cast(u32, multiply_add(of[from], __builtin_bit_cast(f32, factor), MAGIC_NUMBER));
      }
      bytes[0][i] = ((gather_bytes<2>(words) << 1) & 0xfefefefeu) ^ 0x80808080u;  // stored twice as large
      bytes[1][i] = gather_bytes<1>(words) ^ 0x80808080u;
      bytes[2][i] = gather_bytes<0>(words) ^ 0x80808080u;
    }
    LOCAL u8* to = digits + block / 2 * OF_PAIR + t * 16 + block % 2 * 8;
    UNROLL for (u32 place = 0; place < 3; place++) *(LOCAL u32x2*)(to + place * OF_PLACE) = (u32x2){bytes[place][0], bytes[place][1]};
  }
};

// sum[i]: rows g (in lanes 4 g and 4 g + 1) and g + 8 (in the other two) of a span times row i of x, which has `stride` blocks
// in local memory, these from block first[0] on for rows below 8, first[1] for the others. The span begins with block `block`
// of `blocks`; row: the scales of a lane's row.
template <u32 M, class W, class X, class Row>
DEVICE void span_products(const LOCAL u8* codes, const SpansOfX<W, X>& x, const u32 (&first)[2], u32 stride, u32 block, u32 blocks,
                          const Row (&row)[SpanCodes<W>::ARRAYS], f32 (&sum)[M]) {
  using C = SpanCodes<W>;
  using Of = SpansOfX<W, X>;
  constexpr u32 UNIT = C::UNIT;
  const u32 lane = lane_id(), t = lane % 4, place = smaller(lane / 4 % 4, 2u);
  const u32 of_digits = lane / 16 ? first[1] : first[0], of_unit = (t / 2 ? first[1] : first[0]) / UNIT;
  const LOCAL u8* from = x.digits + of_digits / 2 * Of::OF_PAIR + place * Of::OF_PLACE + t * 16;
  u32 words[4][4];
  UNROLL for (u32 b = 0; b < 4; b++) load_words_of_rows(codes, SPAN_STRIDE, b * 32, b * 32 + 16, words[b]);
  f32 total[M] = {}, least[M] = {};
  const auto unit = [&](u32 u) __attribute__((always_inline)) {
    u32 a[UNIT][C::FACTORS][4];
    UNROLL for (u32 i = 0; i < UNIT; i++) {
      const u32 b = u * UNIT + i;
      C::factors(words[b / 2][b % 2 * 2], words[b / 2][b % 2 * 2 + 1], a[i]);
    }
    const f32 scale = C::scale(row, block + u * UNIT), minimum = C::minimum(row, block + u * UNIT);
    UNROLL for (u32 m = 0; m < M; m++) {
      Counts c = {};
      const LOCAL u8* of_row = from + m * stride / 2 * Of::OF_PAIR + u * UNIT / 2 * Of::OF_PAIR;
      if constexpr (UNIT == 2) {
        const u32x4 v = *(const LOCAL u32x4*)of_row;
        C::multiply(a[0], v[0], v[1], c);
        C::multiply(a[1], v[2], v[3], c);
      } else {
        const u32x2 v = *(const LOCAL u32x2*)(of_row + u % 2 * 8);
        C::multiply(a[0], v[0], v[1], c);
      }
      const i32 high = t / 2 ? c.of[2] : c.of[0], low = t / 2 ? c.of[3] : c.of[1];
      const u32 own = of_unit + m * stride / UNIT + u;
      total[m] = multiply_add((f32)(high * 128 + low) * x.unit[own], scale, total[m]);
      if constexpr (W::MINIMUM) least[m] = multiply_add(x.sum[own], minimum, least[m]);
    }
  };
  if (block + SPAN_BLOCKS <= blocks) {
    UNROLL for (u32 u = 0; u < Of::UNITS; u++) unit(u);
  } else {
    UNROLL for (u32 u = 0; u < Of::UNITS; u++) {
      if (block + u * UNIT < blocks) unit(u);
    }
  }
  // Of the lowest bytes `high` and `low` are the same.
  const bool lowest = lane & 1;
  const f32 factor = C::OF_CODE * (lowest ? 1.0f / 129 : 256.0f);
  UNROLL for (u32 m = 0; m < M; m++) {
    const f32 mine = multiply_add(total[m], factor, lowest ? 0.0f : least[m]);
    sum[m] = mine + shuffle(mine, lane ^ 1);
  }
}

#endif
