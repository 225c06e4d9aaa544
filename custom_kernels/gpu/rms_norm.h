// RMSNorm (arXiv:1910.07467) of rows of K columns, a multiple of 4.
#pragma once

#include "device.h"

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

// One over the root mean square of each of M rows (rows past m repeat the last one), by all threads of a workgroup, which
// meet here. The order of a sum depends on K and on the number of threads alone.
template <u32 M, u32 THREADS>
DEVICE void inverse_rms(const GLOBAL f32x4* x, u32 m, u32 k, f32 epsilon, f32 (&factor)[M]) {
  constexpr u32 WAVES = THREADS / WAVE;
  const u32 wave = wave_id();
  f32 sum[M] = {};
  for (u32 i = thread_id(); i < k / 4; i += THREADS) {
    UNROLL for (u32 row = 0; row < M; row++) {
      const f32x4 v = x[(u64)smaller(row, m - 1) * (k / 4) + i];
      UNROLL for (u32 c = 0; c < 4; c++) sum[row] = multiply_add(v[c], v[c], sum[row]);
    }
  }
  UNROLL for (u32 row = 0; row < M; row++) {
    const f32 total = sum_over_wave(sum[row]);
    if (lane_id() == 0) NormSums<M>::of_wave[row * WAVES + wave] = total;
  }
  barrier();
  UNROLL for (u32 row = 0; row < M; row++) {
    f32 total = 0.0f;
    for (u32 w = 0; w < WAVES; w++) total += NormSums<M>::of_wave[row * WAVES + w];
    factor[row] = 1.0f / __builtin_elementwise_sqrt(total / (f32)k + epsilon);
  }
}

DEVICE f32x4 normalized(f32x4 x, f32x4 weight, f32 factor, f32 offset) { return x * factor * (weight + offset); }

// x float32 [rows, K] -> h, a workgroup a row.
DEVICE void norm_rows(const GLOBAL f32* x, const RmsNorm norm, GLOBAL f32* h, u32 k) {
  const GLOBAL f32x4* row = (const GLOBAL f32x4*)(x + (u64)workgroup_id() * k);
  const GLOBAL f32x4* weight = (const GLOBAL f32x4*)norm.weight;
  GLOBAL f32x4* to = (GLOBAL f32x4*)(h + (u64)workgroup_id() * k);
  f32 factor[1];
  inverse_rms<1, NORM_THREADS>(row, 1, k, norm.epsilon, factor);
  for (u32 i = thread_id(); i < k / 4; i += NORM_THREADS) to[i] = normalized(row[i], weight[i], factor[0], norm.offset);
}
