// Rows of x as the columns of stripes.h: each block of 32 numbers times the power of two that brings its largest below
// 2^15, as float16 numbers (the first term) and 2^11 times what is left (the second). That is x to 22 bits or more, and to
// 2^-40 of its block's largest. A float16 or bfloat16 number is its first term. A block of numbers from 2^117 on may give infinity; of one that has an infinity or NaN
// nothing else is kept.
#pragma once

#include "stripes.h"

DEVICE u32 larger(u32 a, u32 b) { return a > b ? a : b; }

// Four numbers of one block, as lanes of the wave share it: which pairs a lane puts where.
template <class W>
struct Quarter {
  f32 pairs[2][2];
  u32 t, later;  // the first or the later pairs of lane t of a quad

  MEMBER Quarter(u32 f, f32x4 v) : t(f % 4), later(f / 4) {
    if constexpr (Halves<W>::ORDER == NEIGHBOURS) {
      t = f / 2;
      later = f % 2;
      UNROLL for (u32 p = 0; p < 2; p++) {
        const f32 got = shuffle(later ? v[p] : v[p + 2], lane_id() ^ 1);
        pairs[p][0] = later ? got : v[p];
        pairs[p][1] = later ? v[p + 2] : got;
      }
    } else {
      UNROLL for (u32 p = 0; p < 2; p++) {
        pairs[p][0] = v[p];
        pairs[p][1] = v[p + 2];
      }
    }
  }
};

// Float4 number `at` of row `row` of what is in local memory. Eight neighbouring lanes have a block; whole waves meet.
template <u32 M, class W, class X>
DEVICE void put_x(u32 row, u32 at, f32x4 v) {
  using S = Stripes<M, W, X>;
  using H = Halves<W>;
  constexpr u32 SMALLEST = 24u << 23, LARGEST = (268u - H::EXPONENT) << 23;  // exponents that leave one for `unit`
  const u32 block = at / 8, f = at % 8;
  f32 most = larger_magnitude(larger_magnitude(v[0], v[1]), larger_magnitude(v[2], v[3]));
  f32 total = (v[0] + v[1]) + (v[2] + v[3]);
  UNROLL for (u32 mask = 1; mask < 8; mask *= 2) {
    most = larger_magnitude(most, shuffle(most, lane_id() ^ mask));
    if constexpr (W::MINIMUM) total += shuffle(total, lane_id() ^ mask);
  }
  Quarter<W> of(f, v);
  const u32 found = __builtin_bit_cast(u32, most) & 0x7f800000u;
  const u32 exponent = larger(smaller(found, LARGEST), SMALLEST);
  u32 factor = (268u << 23) - exponent, unit = exponent + ((H::EXPONENT - 14) << 23);
  const bool tame = found <= LARGEST;
  if (found == 0x7f800000u) {
    factor = unit = 127u << 23;
    UNROLL for (u32 p = 0; p < 2; p++) {
      UNROLL for (u32 c = 0; c < 2; c++) {
        const bool finite = (__builtin_bit_cast(u32, of.pairs[p][c]) & 0x7f800000u) != 0x7f800000u;
        of.pairs[p][c] = finite ? 0.0f : of.pairs[p][c];
      }
    }
  }
  if (f == 0) S::unit(block, row) = {__builtin_bit_cast(f32, unit), total};
  u32x2 first, second;
  UNROLL for (u32 p = 0; p < 2; p++) {
    const bool down = of.later ? H::sixteenfold(2 + p) : H::sixteenfold(p);
    const f32 by = __builtin_bit_cast(f32, factor) * (down ? 0.0625f : 1.0f);
    const f32 scaled[2] = {of.pairs[p][0] * by, of.pairs[p][1] * by};
    first[p] = half_pair(scaled[0], scaled[1]);
    if constexpr (S::TERMS == 2) {
      const f32 rest[2] = {scaled[0] - low_half(first[p]), scaled[1] - high_half(first[p])};
      second[p] = half_pair(rest[0] * 2048.0f, rest[1] * 2048.0f);
      if (!tame) second[p] = 0;
    }
  }
  ((LOCAL u32x2*)S::terms(block, row, 0))[2 * of.t + of.later] = first;
  if constexpr (S::TERMS == 2) ((LOCAL u32x2*)S::terms(block, row, 1))[2 * of.t + of.later] = second;
}

// Puts N float4s of each row from number `first` of the chunk on, STRIPE_THREADS apart.
template <u32 N, u32 M, class W, class X, class At>
DEVICE void put_some(u32 first, u32 start, u32 m, u32 k, const At& at) {
  f32x4 v[N][M];
  UNROLL for (u32 i = 0; i < N; i++) {
    const u32 here = start + first + i * STRIPE_THREADS;
    UNROLL for (u32 row = 0; row < M; row++) v[i][row] = at(smaller(row, m - 1), smaller(here, k / 4 - 1));
  }
  UNROLL for (u32 i = 0; i < N; i++) {
    const u32 here = first + i * STRIPE_THREADS;
    UNROLL for (u32 row = 0; row < M; row++) put_x<M, W, X>(row, here, start + here < k / 4 ? v[i][row] : (f32x4)0.0f);
  }
}

// Puts `count` float4s of rows of x from `start` on, as many as k has, then zeros. at(row, i): one of row `row`.
template <u32 M, class W, class X, class At>
DEVICE void put_rows(u32 start, u32 count, u32 m, u32 k, const At& at) {
  constexpr u32 TOGETHER = M >= 4 ? 1 : 4 / M;  // float4s of a row: loads under way
  u32 first = thread_id();
  for (; first + (TOGETHER - 1) * STRIPE_THREADS < count; first += TOGETHER * STRIPE_THREADS) {
    put_some<TOGETHER, M, W, X>(first, start, m, k, at);
  }
  if constexpr (TOGETHER > 1) {
    for (; first < count; first += STRIPE_THREADS) put_some<1, M, W, X>(first, start, m, k, at);
  }
}
