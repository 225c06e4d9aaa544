// y[m, n] = sum over k of x[m, k] * weight[n, k] for many rows of x on the matrix units, for formats whose codes bfloat16
// holds exactly. x goes in as it is where it is float16 or bfloat16, float32 as two bfloat16 terms, 16 bits of it: a relative
// error of 2e-6. Codes are multiplied and summed as they are; each group's sum is then scaled in float32, and the minimum
// times the sum of x added.
//
// A workgroup of eight waves computes TM x N of y, K columns at a time through local memory. While one step is multiplied,
// the next is on its way to registers, then decoded into a second buffer where local memory has room for two (not where x
// has two terms: docs/performance.md). With many rows
// the waves share the tile of y; with few, where reading the weight is what takes time, they share the columns, and add what
// they have at the end.
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

// What the matrix units multiply, and the terms of x: float16 has the codes of all formats but those of bfloat16 weights.
template <class W, class X>
struct MatrixUnits {
  using U = BF16;
  static constexpr u32 TERMS = Element<X>::BITS <= 8 ? 1 : 2;
};
template <class W>
struct MatrixUnits<W, f16> {
  using U = f16;
  static constexpr u32 TERMS = 1;
};
template <>
struct MatrixUnits<Dense<BF16>, f16> {
  using U = BF16;
  static constexpr u32 TERMS = 2;
};

template <u32 TM, class W, class X>
struct MatrixTiles : MatrixShape<TM> {
  using Shape = MatrixShape<TM>;
  static constexpr u32 TERMS = MatrixUnits<W, X>::TERMS, GROUP = W::SCALED ? W::RUN / W::GROUPS : 32;
  static constexpr u32 GROUPS = Shape::K / GROUP;
  static constexpr u32 X_CHUNKS = TERMS * TM * Shape::STRIDE / 8, W_CHUNKS = Shape::N * Shape::STRIDE / 8;
  static constexpr u32 OF_GROUPS = W::SCALED ? GROUPS * (Shape::N + (W::MINIMUM ? Shape::N + TM : 0)) : 0;
  static constexpr u32 BYTES = 16 * (X_CHUNKS + W_CHUNKS) + 4 * OF_GROUPS;
  static constexpr u32 BUFFERS = 2 * BYTES <= MOST_LOCAL ? 2 : 1;
  LOCAL_ARRAY static inline u32x4 x[BUFFERS][TERMS][TM * Shape::STRIDE / 8];  // [TM][STRIDE], the high term first
  LOCAL_ARRAY static inline u32x4 w[BUFFERS][W_CHUNKS];
  LOCAL_ARRAY static inline f32 scale[BUFFERS][GROUPS][Shape::N], minimum[BUFFERS][GROUPS][Shape::N];
  LOCAL_ARRAY static inline f32 sum_x[BUFFERS][GROUPS][TM];
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

// PAIRED: of a tile's rows of weights 16 are of one weight, 16 of another, in turn. ROWS: as many of the tile's M rows are
// computed, in the local memory of the whole tile.
template <u32 M_, class W, class X, bool PAIRED = false, u32 ROWS = M_>
struct MatrixGemm {
  using Tiles = MatrixTiles<M_, W, X>;
  using Shape = MatrixShape<M_>;
  using U = typename MatrixUnits<W, X>::U;
  static constexpr u32 M = M_, TM = ROWS, COLUMNS = PAIRED ? Shape::N / 2 : Shape::N;  // of y
  static constexpr u32 TERMS = Tiles::TERMS, GROUP = Tiles::GROUP, K_STEP = Shape::K, STRIDE = Shape::STRIDE;
  static constexpr bool UNSCALED = Element<U>::BITS == 8;  // codes go in without UNIT, which keeps float16's normal
  static constexpr u32 ROWS_OF_WAVE = TM / Shape::WAVES_M, COLUMNS_OF_WAVE = Shape::N / Shape::WAVES_N;
  static constexpr u32 FRAGMENTS_M = ROWS_OF_WAVE / 16, FRAGMENTS_N = COLUMNS_OF_WAVE / 16;
  static constexpr u32 GROUPS_OF_WAVE = K_STEP / GROUP / Shape::WAVES_K;
  static constexpr u32 LOADS_X = TM * (K_STEP / 4) / MATRIX_THREADS;
  static constexpr u32 LOADS_W = Shape::N * (K_STEP / W::RUN) / MATRIX_THREADS;

  Four<X> next_x[LOADS_X];
  u32 row_of_x[LOADS_X], row_of_w[LOADS_W];  // of this thread's items
  typename W::Run next_w[LOADS_W];
  Tile sum[FRAGMENTS_M][FRAGMENTS_N];

  // Whether item `i` of the wave, in this order, is of the second weight.
  MEMBER bool of_second(u32 i, u32 wave) const {
    constexpr u32 RUNS = K_STEP / W::RUN;
    return PAIRED && (i * MATRIX_THREADS / RUNS + wave * (WAVE / RUNS)) / 16 % 2;
  }

  // Loads the columns from `start` on; beyond the end any, which `stage` drops.
  MEMBER void fetch(const GLOBAL X* x, const W& first, const W& second, u32 k, u32 start) {
    const u32 wave = wave_id();
    UNROLL for (u32 i = 0; i < LOADS_X; i++) {
      const u32 column = start / 4 + (i * MATRIX_THREADS + thread_id()) % (K_STEP / 4);
      next_x[i] = ask4(x, (u64)row_of_x[i] * (k / 4) + smaller(column, k / 4 - 1));
    }
    UNROLL for (u32 i = 0; i < LOADS_W; i++) {
      const u32 run = smaller(start / W::RUN + (i * MATRIX_THREADS + thread_id()) % (K_STEP / W::RUN), first.runs - 1);
      if (of_second(i, wave)) {
        next_w[i] = second.load(row_of_w[i], run);
      } else {
        next_w[i] = first.load(row_of_w[i], run);
      }
    }
  }

  MEMBER void stage(u32 k, u32 start, u32 buffer = 0) {
    UNROLL for (u32 i = 0; i < LOADS_X; i++) {
      const u32 item = i * MATRIX_THREADS + thread_id();
      const u32 row = item / (K_STEP / 4), column = item % (K_STEP / 4), at = row * (STRIDE / 4) + column;
      if (start + 4 * column >= k) next_x[i] = {};
      if constexpr (TERMS == 1) {
        ((LOCAL u32x2*)Tiles::x[buffer][0])[at] = __builtin_bit_cast(u32x2, next_x[i]);
      } else {
        u32x2 high, low;
        split(widen4(next_x[i]), high, low);
        ((LOCAL u32x2*)Tiles::x[buffer][0])[at] = high;
        ((LOCAL u32x2*)Tiles::x[buffer][TERMS - 1])[at] = low;
      }
      if constexpr (W::MINIMUM) {
        const f32x4 v = widen4(next_x[i]);
        const f32 total = sum_over((v[0] + v[1]) + (v[2] + v[3]), GROUP / 4);
        if (column % (GROUP / 4) == 0) Tiles::sum_x[buffer][column / (GROUP / 4)][row] = total;
      }
    }
    UNROLL for (u32 i = 0; i < LOADS_W; i++) {
      const u32 item = i * MATRIX_THREADS + thread_id();
      const u32 row = item / (K_STEP / W::RUN), run = item % (K_STEP / W::RUN);
      const bool inside = start + run * W::RUN < k;
      UNROLL for (u32 j = 0; j < W::RUN / 4; j++) {
        f32 c[4];
        W::codes(next_w[i], j, c);
        if constexpr (!UNSCALED) UNROLL for (u32 e = 0; e < 4; e++) c[e] *= W::UNIT;
        const u32x2 pairs = {exact_pair<U>(c[0], c[1]), exact_pair<U>(c[2], c[3])};
        const u32 at = row * (STRIDE / 4) + run * (W::RUN / 4) + W::place(j);
        ((LOCAL u32x2*)Tiles::w[buffer])[at] = inside ? pairs : (u32x2)0u;
      }
      if constexpr (W::SCALED) {
        UNROLL for (u32 g = 0; g < W::GROUPS; g++) {
          const u32 group = run * W::GROUPS + g;
          Tiles::scale[buffer][group][row] = inside ? next_w[i].scale[g] : 0.0f;
          if constexpr (W::MINIMUM) Tiles::minimum[buffer][group][row] = inside ? next_w[i].minimum[g] : 0.0f;
        }
      }
    }
  }

  MEMBER void add_group(u32 g, u32 wave_m, u32 wave_n, u32 buffer = 0) {
    Tile part[FRAGMENTS_M][FRAGMENTS_N] = {};
    UNROLL for (u32 s = 0; s < GROUP; s += 16) {
      const u32 step = g * GROUP + s;
      Factor b[FRAGMENTS_N];
      UNROLL for (u32 j = 0; j < FRAGMENTS_N; j++) {
        b[j] = load_factor((const LOCAL u16*)Tiles::w[buffer] + (wave_n + 16 * j) * STRIDE + step, STRIDE);
      }
      UNROLL for (u32 i = 0; i < FRAGMENTS_M; i++) {
        UNROLL for (u32 term = 0; term < TERMS; term++) {
          const LOCAL u16* x = (const LOCAL u16*)Tiles::x[buffer][term];
          const Factor a = load_factor(x + (wave_m + 16 * i) * STRIDE + step, STRIDE);
          UNROLL for (u32 j = 0; j < FRAGMENTS_N; j++) multiply<U>(a, b[j], part[i][j]);
        }
      }
    }
    UNROLL for (u32 i = 0; i < FRAGMENTS_M; i++) {
      UNROLL for (u32 j = 0; j < FRAGMENTS_N; j++) {
        UNROLL for (u32 e = 0; e < 8; e++) {
          const u32 row = wave_m + 16 * i + row_of(e), column = wave_n + 16 * j + column_of(e);
          f32& total = sum[i][j].of[e];
          if constexpr (W::SCALED) {
            const f32 value = part[i][j].of[e] * (UNSCALED ? W::UNIT : 1.0f);
            total = multiply_add(value, Tiles::scale[buffer][g][column], total);
          } else {
            total += part[i][j].of[e];
          }
          if constexpr (W::MINIMUM) {
            total = multiply_add(Tiles::sum_x[buffer][g][row], Tiles::minimum[buffer][g][column], total);
          }
        }
      }
    }
  }

  // As FragmentGemm::run.
  template <class Source, class Store>
  MEMBER void run(const GLOBAL X* x, W a, W b, u32 first_a, u32 first_b, u32 n, u32 k, u32 first_n, const Source& source,
                  const Store& store) {
    const u32 wave = wave_id(), wave_m = wave % Shape::WAVES_M * ROWS_OF_WAVE;
    const u32 wave_n = wave / Shape::WAVES_M % Shape::WAVES_N * COLUMNS_OF_WAVE;
    const u32 first_group = wave / (Shape::WAVES_M * Shape::WAVES_N) * GROUPS_OF_WAVE;
    a.runs = b.runs = k / W::RUN;
    UNROLL for (u32 i = 0; i < FRAGMENTS_M; i++) {
      UNROLL for (u32 j = 0; j < FRAGMENTS_N; j++) sum[i][j] = {};
    }
    UNROLL for (u32 i = 0; i < LOADS_X; i++) {
      row_of_x[i] = source((i * MATRIX_THREADS + thread_id()) / (K_STEP / 4));
    }
    UNROLL for (u32 i = 0; i < LOADS_W; i++) {
      const u32 row = (i * MATRIX_THREADS + thread_id()) / (K_STEP / W::RUN);
      const u32 at = smaller(first_n + (PAIRED ? row / 32 * 16 + row % 16 : row), n - 1);
      row_of_w[i] = (of_second(i, wave) ? first_b : first_a) + at;
    }
    fetch(x, a, b, k, 0);
    u32 buffer = 0;
    for (u32 start = 0; start < k; start += K_STEP) {
      stage(k, start, buffer);
      barrier();  // with two buffers also the end of the step before the last
      const u32 next = start + K_STEP < k ? start + K_STEP : start;
      fetch(x, a, b, k, next);
      UNROLL for (u32 g = 0; g < GROUPS_OF_WAVE; g++) add_group(first_group + g, wave_m, wave_n, buffer);
      if constexpr (Tiles::BUFFERS == 1) {
        barrier();
      } else {
        buffer ^= 1;
      }
    }
    if constexpr (Shape::WAVES_K > 1) {
      if constexpr (Tiles::BUFFERS == 2) barrier();
      store_sum(first_n, store);
      return;
    }
    UNROLL for (u32 i = 0; i < FRAGMENTS_M; i++) {
      UNROLL for (u32 j = 0; j < FRAGMENTS_N; j += 1 + PAIRED) {
        UNROLL for (u32 e = 0; e < 8; e++) {
          const u32 column = (PAIRED ? wave_n / 2 + 8 * j : wave_n + 16 * j) + column_of(e);
          store(wave_m + 16 * i + row_of(e), first_n + column, sum[i][j].of[e], sum[i][j + PAIRED].of[e]);
        }
      }
    }
  }

  // The sum of all waves, first wave first, through the local memory of the tiles.
  template <class Store>
  MEMBER void store_sum(u32 first_n, const Store& store) {
    constexpr u32 N = Shape::N, ITEMS = TM * N;
    static_assert(Shape::WAVES_K * ITEMS * 4 <= sizeof(Tiles::w));
    LOCAL f32* sums = (LOCAL f32*)Tiles::w;
    const u32 wave = wave_id();
    UNROLL for (u32 i = 0; i < FRAGMENTS_M; i++) {
      UNROLL for (u32 j = 0; j < FRAGMENTS_N; j++) {
        UNROLL for (u32 e = 0; e < 8; e++) {
          sums[wave * ITEMS + (16 * i + row_of(e)) * N + 16 * j + column_of(e)] = sum[i][j].of[e];
        }
      }
    }
    barrier();
    for (u32 item = thread_id(); item < TM * COLUMNS; item += MATRIX_THREADS) {
      const u32 row = item / COLUMNS, column = item % COLUMNS;
      f32 total[1 + PAIRED] = {};
      UNROLL for (u32 p = 0; p <= PAIRED; p++) {
        UNROLL for (u32 w = 0; w < Shape::WAVES_K; w++) total[p] += sums[w * ITEMS + row * N + 16 * p + column];
      }
      store(row, first_n + column, total[0], total[PAIRED]);
    }
  }
};

template <u32 TM, class W, class X>
DEVICE void matrix_gemm(const GLOBAL X* x, const W& weight, GLOBAL X* y, u32 m, u32 n, u32 k) {
  using Gemm = MatrixGemm<TM, W, X>;
  const u32 tiles_m = ceil_div(m, TM), first_m = workgroup_id() % tiles_m * TM;
  const u32 first_n = workgroup_id() / tiles_m * Gemm::COLUMNS;
  Gemm().run(
      x, weight, weight, 0, 0, n, k, first_n,
      [&](u32 row) __attribute__((always_inline)) { return smaller(first_m + row, m - 1); },
      [&](u32 row, u32 column, f32 value, f32) __attribute__((always_inline)) {
        if (first_m + row < m && column < n) store(y, (u64)(first_m + row) * n + column, value);
      });
}
