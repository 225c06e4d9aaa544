// RMSNorm (arXiv:1910.07467) of rows, and LayerNorm.
#pragma once
#include "vector.h"

// An RMSNorm with `weight` float32 [K], to which `offset` is added.
struct RmsNorm {
  const float* weight;
  float epsilon, offset;
};

// One over the root mean square of a row. The order of the sum depends on K alone.
INLINE float inverse_rms(const float* x, int64_t K, float epsilon) {
  F total[4] = {};
  int64_t k = 0;
  for (; k + 4 * W <= K; k += 4 * W) {
    UNROLL
    for (int i = 0; i < 4; i++) {
      const F v = load<F>(x + k + i * W);
      total[i] = fma(v, v, total[i]);
    }
  }
  for (; k < K; k += W) {
    const F v = load_part(x + k, min(K - k, W));
    total[0] = fma(v, v, total[0]);
  }
  const float mean = sum((total[0] + total[1]) + (total[2] + total[3])) / float(K);
  return 1.0f / __builtin_elementwise_sqrt(mean + epsilon);
}

// A row times a factor times the norm's weight.
struct Normalized {
  const float* x;
  const float* weight;
  float factor, offset;

  INLINE_MEMBER static Normalized of(const float* x, int64_t K, const RmsNorm& norm) {
    return {x, norm.weight, inverse_rms(x, K, norm.epsilon), norm.offset};
  }
  INLINE_MEMBER F at(int64_t k) const { return load<F>(x + k) * factor * (load<F>(weight + k) + offset); }
  INLINE_MEMBER F some(int64_t k, int64_t n) const {
    return load_part(x + k, n) * factor * (load_part(weight + k, n) + offset);
  }
};

INLINE void normalize_row(const float* x, int64_t K, const RmsNorm& norm, float* to) {
  const Normalized row = Normalized::of(x, K, norm);
  for (int64_t k = 0; k < K; k += W) {
    const int64_t here = min(K - k, W);
    store_part(to + k, here == W ? row.at(k) : row.some(k, here), here);
  }
}

// The LayerNorm (arXiv:1607.06450) of a row; bias: null for none. to may be x. The order of the sums depends on K alone.
INLINE void layer_normalize_row(const float* x, int64_t K, const RmsNorm& norm, const float* bias, float* to) {
  F sums = {}, squares = {};
  for (int64_t k = 0; k < K; k += W) sums += load_part(x + k, min(K - k, W));
  const float mean = sum(sums) / float(K);
  for (int64_t k = 0; k < K; k += W) {
    const F d = lane_index() < I(int32_t(min(K - k, W))) ? load_part(x + k, min(K - k, W)) - mean : F(0.0f);
    squares = fma(d, d, squares);
  }
  const float factor = 1.0f / __builtin_elementwise_sqrt(sum(squares) / float(K) + norm.epsilon);
  for (int64_t k = 0; k < K; k += W) {
    const int64_t here = min(K - k, W);
    F v = (load_part(x + k, here) - mean) * factor * (load_part(norm.weight + k, here) + norm.offset);
    if (bias) v += load_part(bias + k, here);
    store_part(to + k, v, here);
  }
}

// to = (base + RMSNorm(x)) * factor; it may be x.
INLINE void add_normed_row(const float* base, const float* x, int64_t K, const RmsNorm& norm, float factor, float* to) {
  const Normalized row = Normalized::of(x, K, norm);
  for (int64_t k = 0; k < K; k += W) {
    const int64_t here = min(K - k, W);
    const F v = here == W ? load<F>(base + k) + row.at(k) : load_part(base + k, here) + row.some(k, here);
    store_part(to + k, v * factor, here);
  }
}
