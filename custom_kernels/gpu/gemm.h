// y[m, n] = sum over k of x[m, k] * weight[n, k] for many rows of x: tiles of x and of the decoded weight in local memory,
// plain float32 multiply-adds. A workgroup computes TM x 64 of y; a thread TM / 8 rows by 4 columns.
#pragma once

#include "weights.h"

inline constexpr u32 GEMM_THREADS = 128, TILE_N = 64, TILE_K = 64;

template <u32 TM>
struct Tiles {
  static constexpr u32 STRIDE_X = TILE_K + 4;  // keeps rows in different banks, and 16-byte aligned
  LOCAL_ARRAY static inline f32x4 x[TM * STRIDE_X / 4];     // [TM][STRIDE_X]
  LOCAL_ARRAY static inline f32x4 w[TILE_K * TILE_N / 4];  // [TILE_K][TILE_N]
};

template <u32 TM, class W, class X>
DEVICE void gemm(const GLOBAL X* x, W weight, GLOBAL X* y, u32 m, u32 n, u32 k) {
  constexpr u32 RM = TM / 8, STRIDE_X = Tiles<TM>::STRIDE_X;
  LOCAL f32* tile_w = (LOCAL f32*)Tiles<TM>::w;
  const LOCAL f32x4* tile_w4 = Tiles<TM>::w;
  LOCAL f32x4* tile_x4 = Tiles<TM>::x;

  const u32 tiles_m = ceil_div(m, TM);
  const u32 first_m = workgroup_id() % tiles_m * TM, first_n = workgroup_id() / tiles_m * TILE_N;
  const u32 thread = thread_id();
  const u32 my_m = thread / 16 * RM, my_n = thread % 16 * 4;
  weight.runs = k / W::RUN;

  constexpr u32 LOADS_X = TM * (TILE_K / 4) / GEMM_THREADS, LOADS_W = TILE_N * (TILE_K / W::RUN) / GEMM_THREADS;
  Four<X> next_x[LOADS_X];
  typename W::Run next_w[LOADS_W];
  const auto fetch = [&](u32 start) __attribute__((always_inline)) {  // columns past the end: any, `inside` drops them
    UNROLL for (u32 i = 0; i < LOADS_X; i++) {
      const u32 item = i * GEMM_THREADS + thread;
      const u32 row = smaller(first_m + item / (TILE_K / 4), m - 1);
      next_x[i] = ask4(x, (u64)row * (k / 4) + smaller(start / 4 + item % (TILE_K / 4), k / 4 - 1));
    }
    UNROLL for (u32 i = 0; i < LOADS_W; i++) {
      const u32 item = i * GEMM_THREADS + thread;
      const u32 row = smaller(first_n + item % TILE_N, n - 1);
      next_w[i] = weight.load(row, smaller(start / W::RUN + item / TILE_N, weight.runs - 1));
    }
  };

  f32x4 sum[RM] = {};
  fetch(0);
  for (u32 start = 0; start < k; start += TILE_K) {
    UNROLL for (u32 i = 0; i < LOADS_X; i++) {
      const u32 item = i * GEMM_THREADS + thread;
      const u32 row = item / (TILE_K / 4), column = item % (TILE_K / 4);
      tile_x4[row * (STRIDE_X / 4) + column] = start + 4 * column < k ? widen4(next_x[i]) : (f32x4)0.0f;
    }
    UNROLL for (u32 i = 0; i < LOADS_W; i++) {
      const u32 item = i * GEMM_THREADS + thread;
      const u32 row = item % TILE_N, run = item / TILE_N;
      const bool inside = start + run * W::RUN < k;
      UNROLL for (u32 j = 0; j < W::RUN / 4; j++) {
        f32 values[4];
        decode<W>(next_w[i], j, values);
        UNROLL for (u32 c = 0; c < 4; c++) {
          tile_w[(run * W::RUN + 4 * W::place(j) + c) * TILE_N + row] = inside ? values[c] : 0.0f;
        }
      }
    }
    barrier();
    fetch(start + TILE_K < k ? start + TILE_K : start);  // under way while this tile is computed
    for (u32 kk = 0; kk < TILE_K; kk += 4) {
      f32x4 w[4];
      UNROLL for (u32 c = 0; c < 4; c++) w[c] = tile_w4[((kk + c) * TILE_N + my_n) / 4];
      UNROLL for (u32 i = 0; i < RM; i++) {
        const f32x4 a = tile_x4[((my_m + i) * STRIDE_X + kk) / 4];
        UNROLL for (u32 c = 0; c < 4; c++) {
          UNROLL for (u32 j = 0; j < 4; j++) sum[i][j] = multiply_add(a[c], w[c][j], sum[i][j]);
        }
      }
    }
    barrier();
  }
  UNROLL for (u32 i = 0; i < RM; i++) {
    UNROLL for (u32 j = 0; j < 4; j++) {
      const u32 row = first_m + my_m + i, column = first_n + my_n + j;
      if (row < m && column < n) store(y, (u64)row * n + column, sum[i][j]);
    }
  }
}
