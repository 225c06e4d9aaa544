// Rows of x as the columns of stripes.h: each block of 32 numbers times the power of two that brings its largest below
// 2^15, as float16 numbers (the first term) and 2^11 times what is left (the second). That is x to 22 bits or more, and to
// 2^-40 of its block's largest. A float16 or bfloat16 number is its first term. A block of numbers from 2^117 on may give infinity; of one that has an infinity or NaN
// nothing else is kept.
#pragma once

#include "stripes.h"

DEVICE u32 larger(u32 a, u32 b) { return a > b ? a : b; }
DEVICE f32 power_of_two(u32 biased) { return __builtin_bit_cast(f32, biased << 23); }

// Two numbers as two terms: words of the first and of the second.
DEVICE u32x2 two_terms(f32 a, f32 b, bool tame) {
  const u32 first = half_pair(a, b);
  const f32 rest[2] = {(a - low_half(first)) * 2048.0f, (b - high_half(first)) * 2048.0f};
  return {first, tame ? half_pair(rest[0], rest[1]) : 0u};
}

// Float4 number `at` of row `row` of what is in local memory. Eight neighbouring lanes have a block; whole waves meet.
template <u32 M, class W, class X>
DEVICE void put_x(u32 row, u32 at, f32x4 v) {
  using S = Stripes<M, W, X>;
  using H = Halves<W>;
  constexpr u32 LARGEST = 268 - H::EXPONENT;  // a larger exponent leaves no number for `unit`
  const u32 block = at / 8, f = at % 8;
  u32 most = 0;
  f32 total = (v[0] + v[1]) + (v[2] + v[3]);
  UNROLL for (u32 c = 0; c < 4; c++) most = larger(most, __builtin_bit_cast(u32, (f32)v[c]) & 0x7fffffffu);
  UNROLL for (u32 mask = 1; mask < 8; mask *= 2) {
    most = larger(most, shuffle_bits(most, lane_id() ^ mask));
    if constexpr (W::MINIMUM) total += shuffle(total, lane_id() ^ mask);
  }
  const u32 found = most >> 23;
  const bool finite = found < 255, tame = found <= LARGEST;
  const u32 exponent = found < 24 ? 24u : tame ? found : LARGEST;
  const f32 factor = finite ? power_of_two(268 - exponent) : 1.0f;
  const f32 unit = finite ? power_of_two(exponent - 14 + H::EXPONENT) : 1.0f;
  if (!finite) {
    UNROLL for (u32 c = 0; c < 4; c++) {
      v[c] = (__builtin_bit_cast(u32, (f32)v[c]) & 0x7f800000u) == 0x7f800000u ? v[c] : 0.0f;
    }
  }
  if (f == 0) S::unit(block, row) = {unit, total};
  v *= factor;
  u32 t = f % 4, later = f / 4;
  f32 pairs[2][2] = {{v[0], v[2]}, {v[1], v[3]}};
  if constexpr (H::ORDER == NEIGHBOURS) {
    t = f / 2;
    later = f % 2;
    UNROLL for (u32 p = 0; p < 2; p++) {
      const f32 got = shuffle(later ? v[p] : v[p + 2], lane_id() ^ 1);
      pairs[p][0] = later ? got : v[p];
      pairs[p][1] = later ? v[p + 2] : got;
    }
  }
  u32x2 first, second;
  UNROLL for (u32 p = 0; p < 2; p++) {
    const f32 down = (later ? H::sixteenfold(2 + p) : H::sixteenfold(p)) ? 0.0625f : 1.0f;
    const u32x2 terms = two_terms(pairs[p][0] * down, pairs[p][1] * down, tame);
    first[p] = terms[0];
    second[p] = terms[1];
  }
  ((LOCAL u32x2*)S::terms(block, row, 0))[2 * t + later] = first;
  if constexpr (S::TERMS == 2) ((LOCAL u32x2*)S::terms(block, row, 1))[2 * t + later] = second;
}

// Puts `count` float4s of rows of x from `start` on, as many as k has, then zeros. at(row, i): one of row `row`.
template <u32 M, class W, class X, class At>
DEVICE void put_rows(u32 start, u32 count, u32 m, u32 k, const At& at) {
  constexpr u32 TOGETHER = M >= 4 ? 1 : 4 / M;  // float4s of a row: loads under way
  for (u32 first = thread_id(); first < count; first += TOGETHER * STRIPE_THREADS) {
    f32x4 v[TOGETHER][M];
    UNROLL for (u32 i = 0; i < TOGETHER; i++) {
      const u32 here = first + i * STRIPE_THREADS;
      UNROLL for (u32 row = 0; row < M; row++) {
        v[i][row] = (f32x4)0.0f;
        if (here < count && start + here < k / 4 && row < m) v[i][row] = at(row, start + here);
      }
    }
    UNROLL for (u32 i = 0; i < TOGETHER; i++) {
      const u32 here = first + i * STRIPE_THREADS;
      if (here >= count) continue;  // the same for the whole wave
      UNROLL for (u32 row = 0; row < M; row++) {
        if (row < m) put_x<M, W, X>(row, here, v[i][row]);
      }
    }
  }
}
