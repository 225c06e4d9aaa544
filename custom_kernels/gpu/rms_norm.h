// RMSNorm (arXiv:1910.07467) of rows of K columns, a multiple of 4.
#pragma once

#include "elements.h"

inline constexpr u32 NORM_THREADS = 256, MOST_NORM_WAVES = 32;

// weight float32 [K], to which `offset` is added.
struct RmsNorm {
  const GLOBAL f32* weight;
  f32 epsilon, offset;
};

template <u32 M>
struct NormSums {
  LOCAL_ARRAY static inline f32 of_wave[M * MOST_NORM_WAVES];
};

// The sum, for each of M rows, of what each thread of a workgroup has. All threads meet here, and must meet once more
// before the next time.
template <u32 M, u32 THREADS>
DEVICE void totals_of(const f32 (&sums)[M], f32 (&totals)[M]) {
  constexpr u32 WAVES = THREADS / WAVE;
  const u32 wave = wave_id();
  UNROLL for (u32 row = 0; row < M; row++) {
    const f32 total = sum_over_wave(sums[row]);
    if (lane_id() == 0) NormSums<M>::of_wave[row * WAVES + wave] = total;
  }
  barrier();
  UNROLL for (u32 row = 0; row < M; row++) {
    totals[row] = 0.0f;
    for (u32 w = 0; w < WAVES; w++) totals[row] += NormSums<M>::of_wave[row * WAVES + w];
  }
}

// One over the root mean square of each of M rows of K numbers, of whose squares each thread has a sum; as `totals_of`.
template <u32 M, u32 THREADS>
DEVICE void inverse_rms_of(const f32 (&squares)[M], u32 k, f32 epsilon, f32 (&factor)[M]) {
  totals_of<M, THREADS>(squares, factor);
  UNROLL for (u32 row = 0; row < M; row++) {
    factor[row] = 1.0f / __builtin_elementwise_sqrt(factor[row] / (f32)k + epsilon);
  }
}

DEVICE f32x4 normalized(f32x4 x, f32x4 weight, f32 factor, f32 offset) { return x * factor * (weight + offset); }

// The factor of row workgroup_id() of x [rows, K]. All threads meet here.
template <class X>
DEVICE f32 factor_of_row(const GLOBAL X* x, u32 k, f32 epsilon) {
  const u64 first = (u64)workgroup_id() * (k / 4);
  f32 squares[1] = {}, factor[1];
  for (u32 i = thread_id(); i < k / 4; i += NORM_THREADS) {
    const f32x4 v = load4(x, first + i);
    UNROLL for (u32 c = 0; c < 4; c++) squares[0] = multiply_add(v[c], v[c], squares[0]);
  }
  inverse_rms_of<1, NORM_THREADS>(squares, k, epsilon, factor);
  return factor[0];
}

// x [rows, K] -> h, a workgroup a row.
template <class X>
DEVICE void norm_rows(const GLOBAL X* x, const RmsNorm norm, GLOBAL X* h, u32 k) {
  const u64 first = (u64)workgroup_id() * (k / 4);
  const GLOBAL f32x4* weight = (const GLOBAL f32x4*)norm.weight;
  const f32 factor = factor_of_row(x, k, norm.epsilon);
  for (u32 i = thread_id(); i < k / 4; i += NORM_THREADS) {
    store4(h, first + i, normalized(load4(x, first + i), weight[i], factor, norm.offset));
  }
}

// The LayerNorm (arXiv:1607.06450) of x [rows, K] -> h, a workgroup a row; bias: null for none.
template <class X>
DEVICE void layer_norm_rows(const GLOBAL X* x, const RmsNorm norm, const GLOBAL f32* bias, GLOBAL X* h, u32 k) {
  const u64 first = (u64)workgroup_id() * (k / 4);
  f32 sums[1] = {}, squares[1] = {}, mean[1], factor[1];
  for (u32 i = thread_id(); i < k / 4; i += NORM_THREADS) {
    const f32x4 v = load4(x, first + i);
    sums[0] += (v[0] + v[1]) + (v[2] + v[3]);
  }
  totals_of<1, NORM_THREADS>(sums, mean);
  mean[0] /= (f32)k;
  for (u32 i = thread_id(); i < k / 4; i += NORM_THREADS) {
    const f32x4 v = load4(x, first + i) - mean[0];
    UNROLL for (u32 c = 0; c < 4; c++) squares[0] = multiply_add(v[c], v[c], squares[0]);
  }
  barrier();
  inverse_rms_of<1, NORM_THREADS>(squares, k, norm.epsilon, factor);
  for (u32 i = thread_id(); i < k / 4; i += NORM_THREADS) {
    f32x4 v = normalized(load4(x, first + i) - mean[0], ((const GLOBAL f32x4*)norm.weight)[i], factor[0], norm.offset);
    if (bias) v += ((const GLOBAL f32x4*)bias)[i];
    store4(h, first + i, v);
  }
}

// y = (base + RMSNorm(x)) * factor, all [rows, K], a workgroup a row; factor: null for 1. base_norm: the weight of an
// RMSNorm of base, or null.
template <class X>
DEVICE void add_normed(const GLOBAL X* base, const GLOBAL X* x, const RmsNorm norm, const GLOBAL f32* factor,
                       const GLOBAL f32* base_norm, GLOBAL X* y, u32 k) {
  const u64 first = (u64)workgroup_id() * (k / 4);
  const GLOBAL f32x4* weight = (const GLOBAL f32x4*)norm.weight;
  const f32 of_row = factor_of_row(x, k, norm.epsilon), scale = factor ? *factor : 1.0f;
  f32 of_base = 0.0f;
  if (base_norm) {
    barrier();  // everybody has the first one
    of_base = factor_of_row(base, k, norm.epsilon);
  }
  for (u32 i = thread_id(); i < k / 4; i += NORM_THREADS) {
    const f32x4 added = normalized(load4(x, first + i), weight[i], of_row, norm.offset);
    f32x4 to = load4(base, first + i);
    if (base_norm) to = normalized(to, ((const GLOBAL f32x4*)base_norm)[i], of_base, norm.offset);
    store4(y, first + i, (to + added) * scale);
  }
}
