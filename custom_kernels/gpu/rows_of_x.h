// Rows of x as the columns of stripes.h: each piece of 128 numbers times the power of two that brings its largest below
// 2^15, as float16 numbers (the first term) and 2^11 times what is left (the second). That is x to 22 bits or more, and to
// 2^-40 of its piece's largest. A float16 or bfloat16 number is its first term. A piece of numbers from 2^117 on may give
// infinity; of one that has an infinity or NaN nothing else is kept.
#pragma once

#include "stripes.h"

DEVICE u32 larger(u32 a, u32 b) { return a > b ? a : b; }

// Elements 2 i and 2 i + 1.
DEVICE f32x2 load2(const GLOBAL f32* x, u64 i) { return ((const GLOBAL f32x2*)x)[i]; }
DEVICE f32x2 load2(const GLOBAL f16* x, u64 i) {
  return __builtin_convertvector(((const GLOBAL f16x2*)x)[i], f32x2);
}
DEVICE f32x2 load2(const GLOBAL BF16* x, u64 i) {
  const u32 bits = ((const GLOBAL u32*)x)[i];
  return {__builtin_bit_cast(f32, bits << 16), __builtin_bit_cast(f32, bits & 0xffff0000u)};
}

// Quarter-blocks are what one lane puts: four numbers a, b, c, d of which (a, c) and (b, d) become the pairs that one lane
// of a quad multiplies. Quarter `i` of a row that starts at float4 number `row`.
template <class W, class X>
DEVICE f32x4 quarter(const GLOBAL X* x, u64 row, u32 i) {
  if constexpr (Halves<W>::ORDER == LINEAR) {
    return load4(x, row + i);
  } else {
    const u64 at = 2 * (row + i / 2 * 2) + i % 2;
    const f32x2 first = load2(x, at), last = load2(x, at + 2);
    return {first[0], first[1], last[0], last[1]};
  }
}

// Quarter number `at` of row `row` of what is in local memory; `inside`: x has it. The wave has a piece, and meets.
template <u32 M, class W, class X>
DEVICE void put_x(u32 row, u32 at, bool inside, f32x4 v) {
  using S = Stripes<M, W, X>;
  using H = Halves<W>;
  constexpr u32 SMALLEST = 24u << 23, LARGEST = (268u - H::EXPONENT) << 23;  // exponents that leave one for `unit`
  const u32 block = at / 8, f = at % 8;
  const u32 t = H::ORDER == LINEAR ? f % 4 : f / 2, later = H::ORDER == LINEAR ? f / 4 : f % 2;
  u32 most = 0;
  UNROLL for (u32 c = 0; c < 4; c++) most = larger(most, __builtin_bit_cast(u32, (f32)v[c]) & 0x7fffffffu);
  const u32 found = largest_of_wave(inside ? most : 0) & 0x7f800000u;
  const u32 exponent = larger(smaller(found, LARGEST), SMALLEST);
  u32 factor = (268u << 23) - exponent, unit = exponent + ((H::EXPONENT - 14) << 23);
  if (found == 0x7f800000u) {
    factor = unit = 127u << 23;
    UNROLL for (u32 c = 0; c < 4; c++) {
      v[c] = (__builtin_bit_cast(u32, (f32)v[c]) & 0x7f800000u) == 0x7f800000u ? v[c] : 0.0f;
    }
  }
  if (!inside) factor = 0;
  if (lane_id() == 0) S::unit(at / WAVE, row) = __builtin_bit_cast(f32, unit);
  if constexpr (W::MINIMUM) {
    f32 total = (v[0] + v[1]) + (v[2] + v[3]);
    UNROLL for (u32 mask = 1; mask < 8; mask *= 2) total += shuffle(total, lane_id() ^ mask);
    if (f == 0) S::sum_of_x(block, row) = inside ? total : 0.0f;
  }
  u32x2 first, second;
  UNROLL for (u32 p = 0; p < 2; p++) {
    const bool down = later ? H::sixteenfold(2 + p) : H::sixteenfold(p);
    const f32 by = __builtin_bit_cast(f32, factor) * (down ? 0.0625f : 1.0f);
    const f32 scaled[2] = {v[p] * by, v[p + 2] * by};
    first[p] = half_pair(scaled[0], scaled[1]);
    if constexpr (S::TERMS == 2) {
      const f32 rest[2] = {scaled[0] - low_half(first[p]), scaled[1] - high_half(first[p])};
      second[p] = found <= LARGEST ? half_pair(rest[0] * 2048.0f, rest[1] * 2048.0f) : 0u;
    }
  }
  ((LOCAL u32x2*)S::terms(block, row, 0))[2 * t + later] = first;
  if constexpr (S::TERMS == 2) ((LOCAL u32x2*)S::terms(block, row, 1))[2 * t + later] = second;
}

// The same from four neighbouring columns, number `i` of a row; whole waves meet.
template <class W>
DEVICE f32x4 quarter_of(u32 i, f32x4 v) {
  if constexpr (Halves<W>::ORDER == LINEAR) return v;
  const bool odd = i % 2;
  const f32 a = shuffle(odd ? v[0] : v[2], lane_id() ^ 1), b = shuffle(odd ? v[1] : v[3], lane_id() ^ 1);
  return odd ? (f32x4){a, b, v[2], v[3]} : (f32x4){v[0], v[1], a, b};
}

// Puts `count` quarters of M rows of x from `start` on, as many as k has, then zeros. at(row, i, inside): quarter i of row
// `row`, if it is inside; what else a lane gives is not used, nor are rows from m on.
template <u32 M, class W, class X, class At>
DEVICE void put_rows(u32 start, u32 count, u32 m, u32 k, const At& at) {
  constexpr u32 ROWS = M < 4 ? M : 4, TOGETHER = 8 / ROWS;  // loads under way
  for (u32 first = thread_id(); first < count; first += TOGETHER * STRIPE_THREADS) {
    UNROLL for (u32 row = 0; row < M; row += ROWS) {
      if (row >= m) continue;
      f32x4 v[TOGETHER][ROWS];
      UNROLL for (u32 i = 0; i < TOGETHER; i++) {
        const u32 here = start + first + i * STRIPE_THREADS;
        const bool inside = first + i * STRIPE_THREADS < count && here < k / 4;
        UNROLL for (u32 r = 0; r < ROWS; r++) v[i][r] = at(row + r, inside ? here : 0, inside);
      }
      UNROLL for (u32 i = 0; i < TOGETHER; i++) {
        const u32 here = first + i * STRIPE_THREADS;
        if (here >= count) continue;  // the same for the whole wave
        UNROLL for (u32 r = 0; r < ROWS; r++) put_x<M, W, X>(row + r, here, start + here < k / 4, v[i][r]);
      }
    }
  }
}
