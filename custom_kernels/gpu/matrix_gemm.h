// y[m, n] = sum over k of x[m, k] * weight[n, k] for many rows of x on the matrix units, for formats whose codes bfloat16
// holds exactly. x goes in as two bfloat16 terms, 16 bits of it: a relative error of 2e-6, none where x is float16; where it
// is bfloat16, one term holds it. Codes are multiplied and summed as they are; each group's sum is then scaled in float32,
// and the minimum times the sum of x added.
//
// A workgroup of eight waves computes TM x N of y, K columns at a time through local memory, while the next columns are on
// their way to registers. With many rows the waves share the tile of y; with few, where reading the weight is what takes
// time, they share the columns, and add what they have at the end.
#pragma once

#include "fragments.h"
#include "weights.h"

inline constexpr u32 MATRIX_THREADS = 256;

template <u32 TM>
struct MatrixShape {
  static constexpr bool FEW = TM < 64;
  static constexpr u32 N = FEW ? 32 : 128, K = FEW ? 256 : 64, STRIDE = K + 8;  // rows in different banks, 16-byte aligned
  static constexpr u32 WAVES_M = FEW ? 1 : 2, WAVES_N = FEW ? 1 : 4, WAVES_K = FEW ? 8 : 1;
};

template <u32 TM>
struct MatrixTiles : MatrixShape<TM> {
  using Shape = MatrixShape<TM>;
  LOCAL_ARRAY static inline u32x4 x[2][TM * Shape::STRIDE / 8];  // the high and the low terms, bfloat16 [TM][STRIDE]
  LOCAL_ARRAY static inline u32x4 w[Shape::N * Shape::STRIDE / 8];
  LOCAL_ARRAY static inline f32 scale[Shape::K / 16][Shape::N], minimum[Shape::K / 16][Shape::N];
  LOCAL_ARRAY static inline f32 sum_x[Shape::K / 16][TM];
};

// x as high + low; no low term for what is not finite, lest infinity become NaN.
DEVICE void split(f32x4 x, u32x2& high, u32x2& low) {
  f32 h[4], l[4];
  UNROLL for (u32 c = 0; c < 4; c++) {
    const u32 bits = __builtin_bit_cast(u32, x[c] + 0.0f);
    const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    const u32 rounded = bits + (finite ? 0x7fffu + (bits >> 16 & 1u) : 0u);
    h[c] = __builtin_bit_cast(f32, rounded & 0xffff0000u);
    l[c] = finite ? x[c] - h[c] : 0.0f;
    l[c] = __builtin_bit_cast(f32, __builtin_bit_cast(u32, l[c]) + 0x8000u);
  }
  high = {bf16_pair(h[0], h[1]), bf16_pair(h[2], h[3])};
  low = {bf16_pair(l[0], l[1]), bf16_pair(l[2], l[3])};
}

template <u32 TM, class W, class X>
struct MatrixGemm {
  using Tiles = MatrixTiles<TM>;
  using Shape = MatrixShape<TM>;
  static constexpr u32 TERMS = Element<X>::BITS <= 8 ? 1 : 2;  // of x
  static constexpr u32 K_STEP = Shape::K, STRIDE = Shape::STRIDE, GROUP = W::SCALED ? W::RUN / W::GROUPS : 32;
  static constexpr u32 ROWS_OF_WAVE = TM / Shape::WAVES_M, COLUMNS_OF_WAVE = Shape::N / Shape::WAVES_N;
  static constexpr u32 FRAGMENTS_M = ROWS_OF_WAVE / 16, FRAGMENTS_N = COLUMNS_OF_WAVE / 16;
  static constexpr u32 GROUPS_OF_WAVE = K_STEP / GROUP / Shape::WAVES_K;
  static constexpr u32 LOADS_X = TM * (K_STEP / 4) / MATRIX_THREADS;
  static constexpr u32 LOADS_W = Shape::N * (K_STEP / W::RUN) / MATRIX_THREADS;

  Four<X> next_x[LOADS_X];
  typename W::Run next_w[LOADS_W];
  Tile sum[FRAGMENTS_M][FRAGMENTS_N];

  // Loads the columns from `start` on; beyond the end any, which `stage` drops.
  __attribute__((always_inline)) void fetch(const GLOBAL X* x, const W& weight, u32 first_m, u32 first_n, u32 m,
                                            u32 n, u32 k, u32 start) {
    UNROLL for (u32 i = 0; i < LOADS_X; i++) {
      const u32 item = i * MATRIX_THREADS + thread_id();
      const u32 row = smaller(first_m + item / (K_STEP / 4), m - 1);
      next_x[i] = ask4(x, (u64)row * (k / 4) + smaller(start / 4 + item % (K_STEP / 4), k / 4 - 1));
    }
    UNROLL for (u32 i = 0; i < LOADS_W; i++) {
      const u32 item = i * MATRIX_THREADS + thread_id();
      const u32 row = smaller(first_n + item / (K_STEP / W::RUN), n - 1);
      next_w[i] = weight.load(row, smaller(start / W::RUN + item % (K_STEP / W::RUN), weight.runs - 1));
    }
  }

  __attribute__((always_inline)) void stage(u32 k, u32 start) {
    UNROLL for (u32 i = 0; i < LOADS_X; i++) {
      const u32 item = i * MATRIX_THREADS + thread_id();
      const u32 row = item / (K_STEP / 4), column = item % (K_STEP / 4);
      const f32x4 x = start + 4 * column < k ? widen4(next_x[i]) : (f32x4)0.0f;
      u32x2 high, low;
      split(x, high, low);
      ((LOCAL u32x2*)Tiles::x[0])[row * (STRIDE / 4) + column] = high;
      if (TERMS == 2) ((LOCAL u32x2*)Tiles::x[1])[row * (STRIDE / 4) + column] = low;
      if constexpr (W::MINIMUM) {
        const f32 total = sum_over((x[0] + x[1]) + (x[2] + x[3]), GROUP / 4);
        if (column % (GROUP / 4) == 0) Tiles::sum_x[column / (GROUP / 4)][row] = total;
      }
    }
    UNROLL for (u32 i = 0; i < LOADS_W; i++) {
      const u32 item = i * MATRIX_THREADS + thread_id();
      const u32 row = item / (K_STEP / W::RUN), run = item % (K_STEP / W::RUN);
      const bool inside = start + run * W::RUN < k;
      UNROLL for (u32 j = 0; j < W::RUN / 4; j++) {
        f32 c[4];
        W::codes(next_w[i], j, c);
        const u32x2 pairs = {bf16_pair(c[0], c[1]), bf16_pair(c[2], c[3])};
        ((LOCAL u32x2*)Tiles::w)[row * (STRIDE / 4) + run * (W::RUN / 4) + W::place(j)] = inside ? pairs : (u32x2)0u;
      }
      if constexpr (W::SCALED) {
        UNROLL for (u32 g = 0; g < W::GROUPS; g++) {
          Tiles::scale[run * W::GROUPS + g][row] = inside ? next_w[i].scale[g] : 0.0f;
          if constexpr (W::MINIMUM) Tiles::minimum[run * W::GROUPS + g][row] = inside ? next_w[i].minimum[g] : 0.0f;
        }
      }
    }
  }

  __attribute__((always_inline)) void add_group(u32 g, u32 wave_m, u32 wave_n) {
    Tile part[FRAGMENTS_M][FRAGMENTS_N] = {};
    UNROLL for (u32 s = 0; s < GROUP; s += 16) {
      const u32 step = g * GROUP + s;
      Factor b[FRAGMENTS_N];
      UNROLL for (u32 j = 0; j < FRAGMENTS_N; j++) {
        b[j] = load_factor((const LOCAL u16*)Tiles::w + (wave_n + 16 * j) * STRIDE + step, STRIDE);
      }
      UNROLL for (u32 i = 0; i < FRAGMENTS_M; i++) {
        UNROLL for (u32 term = 0; term < TERMS; term++) {
          const Factor a = load_factor((const LOCAL u16*)Tiles::x[term] + (wave_m + 16 * i) * STRIDE + step, STRIDE);
          UNROLL for (u32 j = 0; j < FRAGMENTS_N; j++) multiply(a, b[j], part[i][j]);
        }
      }
    }
    UNROLL for (u32 i = 0; i < FRAGMENTS_M; i++) {
      UNROLL for (u32 j = 0; j < FRAGMENTS_N; j++) {
        UNROLL for (u32 e = 0; e < 8; e++) {
          const u32 row = wave_m + 16 * i + row_of(e), column = wave_n + 16 * j + column_of(e);
          f32& total = sum[i][j].of[e];
          if constexpr (W::SCALED) {
            total = multiply_add(part[i][j].of[e] * W::UNIT, Tiles::scale[g][column], total);
          } else {
            total += part[i][j].of[e];
          }
          if constexpr (W::MINIMUM) total = multiply_add(Tiles::sum_x[g][row], Tiles::minimum[g][column], total);
        }
      }
    }
  }

  __attribute__((always_inline)) void run(const GLOBAL X* x, W weight, GLOBAL X* y, u32 m, u32 n, u32 k) {
    const u32 tiles_m = ceil_div(m, TM), wave = wave_id();
    const u32 first_m = workgroup_id() % tiles_m * TM, first_n = workgroup_id() / tiles_m * Shape::N;
    const u32 wave_m = wave % Shape::WAVES_M * ROWS_OF_WAVE;
    const u32 wave_n = wave / Shape::WAVES_M % Shape::WAVES_N * COLUMNS_OF_WAVE;
    const u32 first_group = wave / (Shape::WAVES_M * Shape::WAVES_N) * GROUPS_OF_WAVE;
    weight.runs = k / W::RUN;
    UNROLL for (u32 i = 0; i < FRAGMENTS_M; i++) {
      UNROLL for (u32 j = 0; j < FRAGMENTS_N; j++) sum[i][j] = {};
    }
    fetch(x, weight, first_m, first_n, m, n, k, 0);
    for (u32 start = 0; start < k; start += K_STEP) {
      stage(k, start);
      barrier();
      fetch(x, weight, first_m, first_n, m, n, k, start + K_STEP < k ? start + K_STEP : start);
      UNROLL for (u32 g = 0; g < GROUPS_OF_WAVE; g++) add_group(first_group + g, wave_m, wave_n);
      barrier();
    }
    if constexpr (Shape::WAVES_K > 1) {
      store_sum(y, first_m, first_n, m, n);
    } else {
      each([&](u32 row, u32 column, f32 value) __attribute__((always_inline)) {
        row += first_m + wave_m;
        column += first_n + wave_n;
        if (row < m && column < n) store(y, (u64)row * n + column, value);
      });
    }
  }

  // Calls f(row, column, value) for what this lane has of the wave's sums.
  template <class F>
  __attribute__((always_inline)) void each(F f) {
    UNROLL for (u32 i = 0; i < FRAGMENTS_M; i++) {
      UNROLL for (u32 j = 0; j < FRAGMENTS_N; j++) {
        UNROLL for (u32 e = 0; e < 8; e++) f(16 * i + row_of(e), 16 * j + column_of(e), sum[i][j].of[e]);
      }
    }
  }

  // The sum of all waves, first wave first, through the local memory of the tiles.
  __attribute__((always_inline)) void store_sum(GLOBAL X* y, u32 first_m, u32 first_n, u32 m, u32 n) {
    constexpr u32 ITEMS = TM * Shape::N;
    static_assert(Shape::WAVES_K * ITEMS * 4 <= sizeof(Tiles::w));
    LOCAL f32* sums = (LOCAL f32*)Tiles::w;
    const u32 wave = wave_id();
    each([&](u32 row, u32 column, f32 value) __attribute__((always_inline)) {
      sums[wave * ITEMS + row * Shape::N + column] = value;
    });
    barrier();
    for (u32 item = thread_id(); item < ITEMS; item += MATRIX_THREADS) {
      f32 total = 0.0f;
      UNROLL for (u32 w = 0; w < Shape::WAVES_K; w++) total += sums[w * ITEMS + item];
      const u32 row = first_m + item / Shape::N, column = first_n + item % Shape::N;
      if (row < m && column < n) store(y, (u64)row * n + column, total);
    }
  }
};
