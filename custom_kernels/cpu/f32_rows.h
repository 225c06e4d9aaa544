// Few rows of float32 activations times weight rows that are read as float32 vectors.
#pragma once
#include "f32_weights.h"
#include "transpose.h"

// The products of one run, in two sums: enough for the latency of a multiply-add.
template <int M>
INLINE void add_run(F (&acc)[M][2], const F (&w)[PER_RUN], const float* x, int64_t K, int64_t columns) {
  UNROLL
  for (int m = 0; m < M; m++) UNROLL
  for (int i = 0; i < PER_RUN; i++) {
    const float* at = x + m * K + i * W;
    const F part = columns == RUN ? load<F>(at) : load_part(at, max(min(columns - i * W, W), 0));
    acc[m][i % 2] = fma(w[i], part, acc[m][i % 2]);
  }
}

// Few rows of activations: each weight is read and decoded once. The order of every sum is the same for any M, so a
// row's result does not depend on its company. y[m * N + i] for weight rows n + i, i < count <= W.
template <class Weight, int M>
static void f32_rows(const float* x, const Weight& weight, int64_t n, int64_t count, float* y, int64_t N) {
  const int64_t K = weight.K, runs = K / RUN;
  F of_row[M][W], w[PER_RUN];
  UNROLL
  for (int m = 0; m < M; m++)
    for (int r = 0; r < W; r++) of_row[m][r] = 0;
  for (int64_t i = 0; i < count; i++) {
    const typename Weight::Row row = weight.row(n + i);
    typename Weight::Groups groups;
    F acc[M][2];
    UNROLL
    for (int m = 0; m < M; m++) acc[m][0] = acc[m][1] = 0;
    for (int64_t run = 0; run < runs; run += W) {
      const int64_t here = min(runs - run, W);
      Weight::load_groups(row, run, here, groups);
      for (int64_t j = 0; j < here; j++) {
        Weight::load_run(row, run + j, groups, j, RUN, w);
        add_run(acc, w, x + (run + j) * RUN, K, RUN);
      }
    }
    if (Weight::RAGGED && runs * RUN < K) {
      Weight::load_run(row, runs, groups, 0, K - runs * RUN, w);
      add_run(acc, w, x + runs * RUN, K, K - runs * RUN);
    }
    UNROLL
    for (int m = 0; m < M; m++) of_row[m][i] = acc[m][0] + acc[m][1];
  }
  UNROLL
  for (int m = 0; m < M; m++) store_part(y + m * N, sums(of_row[m]), count);
}
