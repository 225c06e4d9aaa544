// The two products of attention on a block of W keys: queries with keys, weights with values.
#pragma once
#include "half.h"
#include "functions.h"
#include "transpose.h"

constexpr int HEAD_CHUNK = 64;  // columns of the keys that are turned at a time

// Keys [first, end) of a block that a row sees.
struct Span {
  int first, end;
};

INLINE F load_cache(const float* p, int64_t n) { return n >= W ? load<F>(p) : load_part(p, n); }
INLINE F load_cache(const uint16_t* p, int64_t n) { return n >= W ? load_half(p) : load_half_part(p, n); }

// Lane i of the result: the sum of v[i].
INLINE F sums(const F (&v)[W]) {
  F by_lane[W / 4];  // each 128-bit lane: partial sums of four of the vectors
  UNROLL for (int i = 0; i < W / 4; i++) {
    const I a = bits_of(v[4 * i]), b = bits_of(v[4 * i + 1]), c = bits_of(v[4 * i + 2]), d = bits_of(v[4 * i + 3]);
    const F ac = float_of(interleave<false>(a, c)) + float_of(interleave<true>(a, c));
    const F bd = float_of(interleave<false>(b, d)) + float_of(interleave<true>(b, d));
    by_lane[i] = float_of(interleave<false>(bits_of(ac), bits_of(bd))) + float_of(interleave<true>(bits_of(ac), bits_of(bd)));
  }
#if STRIXHLO_AVX512
  const __m512 a = by_lane[0], b = by_lane[1], c = by_lane[2], d = by_lane[3];
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x88), _mm512_shuffle_f32x4(c, d, 0xdd));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
#elif STRIXHLO_AVX2
  const __m256 a = by_lane[0], b = by_lane[1];
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
#else
  return by_lane[0];
#endif
}

// One row: each key is read once, straight from the pool.
template <class T>
INLINE F score_row(const float* q, const T* keys, const int64_t (&rows)[W], int64_t head_dim) {
  F products[W];
  UNROLL for (int i = 0; i < W; i++) products[i] = 0;
  for (int64_t d = 0; d < head_dim; d += W) {
    const F part = load_cache(q + d, head_dim - d);
    UNROLL for (int i = 0; i < W; i++) products[i] = fma(load_cache(keys + rows[i] + d, head_dim - d), part, products[i]);
  }
  return sums(products);
}

// scores[r], lane i: the product of query row r and key i. rows: where each key starts, in elements.
template <class T, int TILE>
INLINE void score(F (&scores)[TILE], const float* q, int64_t q_stride, const T* keys, const int64_t (&rows)[W],
                  int64_t head_dim) {
  if constexpr (TILE == 1) {
    scores[0] = score_row(q, keys, rows, head_dim);
    return;
  }
  alignas(64) float turned[HEAD_CHUNK][W];  // column d of W keys
  UNROLL for (int r = 0; r < TILE; r++) scores[r] = 0;
  for (int64_t from = 0; from < head_dim; from += HEAD_CHUNK) {
    const int64_t columns = min(head_dim - from, HEAD_CHUNK);
    for (int64_t d = 0; d < columns; d += W) {
      UNROLL for (int i = 0; i < W; i += 4) {
        I four[4];
        UNROLL for (int j = 0; j < 4; j++) four[j] = bits_of(load_cache(keys + rows[i + j] + from + d, columns - d));
        store_transposed(reinterpret_cast<int32_t*>(&turned[d][i]), W, 4 * W, four, W / 4);
      }
    }
    for (int64_t d = 0; d < columns; d++) {
      const F key = load<F>(turned[d]);
      UNROLL for (int r = 0; r < TILE; r++) scores[r] = fma(key, splat(q[r * q_stride + from + d]), scores[r]);
    }
  }
}

// y[r] = y[r] * old[r] + sum over the keys i that row r sees of weights[r][i] * value i. A key that a row does not see
// does not enter its sum at all: 0 * NaN is NaN.
template <class T, int TILE>
INLINE void mix(float* y, int64_t y_stride, const F (&weights)[TILE], const float (&old)[TILE], const Span (&span)[TILE],
                const T* values, const int64_t (&rows)[W], int64_t head_dim) {
  alignas(64) float weight[TILE][W];
  bool whole = true;
  UNROLL for (int r = 0; r < TILE; r++) {
    store(weight[r], weights[r]);
    whole = whole && span[r].first == 0 && span[r].end == W;
  }
  for (int64_t d = 0; d < head_dim; d += W) {
    const int64_t n = min(head_dim - d, W);
    F acc[TILE];
    UNROLL for (int r = 0; r < TILE; r++) acc[r] = load_part(y + r * y_stride + d, n) * old[r];
    if (whole) {
      UNROLL for (int i = 0; i < W; i++) {
        const F value = load_cache(values + rows[i] + d, n);
        UNROLL for (int r = 0; r < TILE; r++) acc[r] = fma(splat(weight[r][i]), value, acc[r]);
      }
    } else {
      for (int r = 0; r < TILE; r++)
        for (int i = span[r].first; i < span[r].end; i++)
          acc[r] = fma(splat(weight[r][i]), load_cache(values + rows[i] + d, n), acc[r]);
    }
    UNROLL for (int r = 0; r < TILE; r++) store_part(y + r * y_stride + d, acc[r], n);
  }
}
