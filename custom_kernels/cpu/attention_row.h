// One row of one query head: keys and values are read once, straight from the pool. What a row computes depends on
// nothing but its own sequence.
#pragma once
#include "attention_shape.h"
#include "transpose.h"

// Lane i: the product of the query and key i.
template <class T>
INLINE F score_keys(const float* q, const T* keys, const int64_t (&places)[W], int64_t head_dim) {
  F products[W];
  UNROLL
  for (int i = 0; i < W; i += 4) {
    const T* key[4];
    F acc[4];
    UNROLL
    for (int j = 0; j < 4; j++) key[j] = keys + places[i + j];
    UNROLL
    for (int j = 0; j < 4; j++) acc[j] = 0;
    int64_t d = 0;
    for (; d + W <= head_dim; d += W) {
      const F part = load<F>(q + d);
      UNROLL
      for (int j = 0; j < 4; j++) acc[j] = fma(load_cache(key[j] + d), part, acc[j]);
    }
    if (d < head_dim) {
      const F part = load_part(q + d, head_dim - d);
      UNROLL
      for (int j = 0; j < 4; j++) acc[j] = fma(load_cache_part(key[j] + d, head_dim - d), part, acc[j]);
    }
    UNROLL
    for (int j = 0; j < 4; j++) products[i + j] = acc[j];
  }
  return sums(products);
}

// y = y * old + the values of the span's keys, weighted; columns d .. d + V * W - 1, or the n that are left.
template <class T, int V>
INLINE void mix_columns(float* y, float old, const float (&weight)[W], Span span, const T* values,
                        const int64_t (&places)[W], int64_t d, int64_t n) {
  const bool whole = n >= V * W;
  F acc[V];
  UNROLL
  for (int v = 0; v < V; v++) acc[v] = (whole ? load<F>(y + d + v * W) : load_part(y + d, n)) * old;
  for (int64_t i = span.first; i < span.end; i++) {
    const T* value = values + places[i] + d;
    const F w = splat(weight[i]);
    UNROLL
    for (int v = 0; v < V; v++) acc[v] = fma(w, whole ? load_cache(value + v * W) : load_cache_part(value, n), acc[v]);
  }
  UNROLL
  for (int v = 0; v < V; v++) {
    if (whole)
      store(y + d + v * W, acc[v]);
    else
      store_part(y + d, acc[v], n);
  }
}

template <class T>
static void attend_row(const AttentionShape& shape, const float* q, const T* keys, const T* values,
                       const int32_t* table, int64_t position, float sink, float* y) {
  const Positions seen = seen_from(position, shape.window);
  const int64_t width = shape.value_dim;
  for (int64_t d = 0; d < width; d++) y[d] = 0.0f;
  if (seen.high < 0) return;
  float peak = sink;  // weights and sums are relative to exp(peak)
  F total = 0;
  if (sink != NO_SINK) total[0] = 1;
  KeyCursor cursor = start_keys(shape, table, seen);
  for (int64_t p = cursor.p; p <= seen.high; p += W) {
    int64_t places[W];
    next_keys(cursor, places);
    const Span span = span_in_block(seen, p);
    const I in_span = (lane_index() >= int32_t(span.first)) & (lane_index() < int32_t(span.end));
    F scores = finish_scores(score_keys(q, keys, places, shape.head_dim), shape);
    scores = in_span ? scores : F(-__builtin_inff());
    const float highest = largest(scores);
    float old = 1.0f;
    if (highest > peak) {
      old = exp(splat(peak - highest))[0];
      peak = highest;
    }
    const F weights = in_span ? exp(scores - peak) : F(0.0f);
    total = total * old + weights;
    alignas(64) float weight[W];
    store(weight, weights);
    int64_t d = 0;
    for (; d + 4 * W <= width; d += 4 * W) mix_columns<T, 4>(y, old, weight, span, values, places, d, 4 * W);
    for (; d < width; d += W) mix_columns<T, 1>(y, old, weight, span, values, places, d, width - d);
  }
  const float inverse = 1.0f / sum(total);
  for (int64_t d = 0; d < width; d++) y[d] *= inverse;
}
