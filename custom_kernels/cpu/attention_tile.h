// W rows of one sequence and one query head share their keys and values: lanes are rows.
#pragma once
#include "attention_row.h"

constexpr int64_t LARGEST_HEAD = 576;  // of a tile; larger heads go row by row
constexpr int KEY_COLUMNS = 64;        // converted at a time

// A tile's rows: `count` of them, W lanes.
struct Rows {
  Positions seen[W];
  Positions any;  // from the lowest to the highest that some row sees
  I low, high;    // of each lane; lanes without a row see nothing
  int64_t count;
};

INLINE Rows find_rows(const int32_t* positions, int64_t count, int64_t window) {
  Rows rows;
  rows.count = count;
  rows.any = {INT64_MAX, -1};
  for (int r = 0; r < W; r++) {
    rows.seen[r] = seen_from(r < count ? positions[r] : -1, window);
    rows.any = {min(rows.any.low, rows.seen[r].low), max(rows.any.high, rows.seen[r].high)};
    rows.low[r] = int32_t(min(rows.seen[r].low, INT32_MAX));
    rows.high[r] = int32_t(rows.seen[r].high);
  }
  return rows;
}

// turned[d]: column d of the rows' queries.
INLINE void turn_queries(float (*turned)[W], const float* q, int64_t row_stride, int64_t count, int64_t head_dim) {
  for (int r = 0; r < W; r++)
    for (int64_t d = 0; d < head_dim; d++) turned[d][r] = q[min(r, count - 1) * row_stride + d];
}

// scores[i]: key i times each row's query.
template <class T>
INLINE void score_tile(F (&scores)[W], const float (*turned)[W], const T* keys, const int64_t (&places)[W],
                       int64_t head_dim) {
  constexpr int AT_ONCE = W < 8 ? 4 : 8;
  alignas(64) float key[W][KEY_COLUMNS];
  UNROLL
  for (int i = 0; i < W; i++) scores[i] = 0;
  for (int64_t from = 0; from < head_dim; from += KEY_COLUMNS) {
    const int64_t columns = min(head_dim - from, KEY_COLUMNS);
    for (int i = 0; i < W; i++) {
      const T* at = keys + places[i] + from;
      int64_t d = 0;
      for (; d + W <= columns; d += W) store(&key[i][d], load_cache(at + d));
      if (d < columns) store(&key[i][d], load_cache_part(at + d, columns - d));
    }
    for (int first = 0; first < W; first += AT_ONCE) {
      F acc[AT_ONCE];
      UNROLL
      for (int i = 0; i < AT_ONCE; i++) acc[i] = scores[first + i];
      for (int64_t d = 0; d < columns; d++) {
        const F query = load<F>(turned[from + d]);
        UNROLL
        for (int i = 0; i < AT_ONCE; i++) acc[i] = fma(query, splat(key[first + i][d]), acc[i]);
      }
      UNROLL
      for (int i = 0; i < AT_ONCE; i++) scores[first + i] = acc[i];
    }
  }
}

// The softmax of each lane so far: sums are relative to exp(peak).
struct Softmax {
  F peak, total;
};

// Turns scores into weights, in place, and returns what each row's older sums must be multiplied with.
INLINE F weigh_tile(F (&scores)[W], Softmax& rows, const Rows& tile, int64_t p, const AttentionShape& shape) {
  F peak = rows.peak;
  for (int i = 0; i < W; i++) {
    const int32_t at = int32_t(p) + i;
    const I seen = (tile.low <= at) & (tile.high >= at);
    const F s = seen ? finish_scores(scores[i], shape) : F(-__builtin_inff());
    scores[i] = s;
    peak = s > peak ? s : peak;
  }
  const F base = peak == F(-__builtin_inff()) ? F(0.0f) : peak;  // a row that has seen nothing yet
  const F old = exp(rows.peak - base);
  rows.total *= old;
  for (int i = 0; i < W; i++) {
    scores[i] = exp(scores[i] - base);
    rows.total += scores[i];
  }
  rows.peak = peak;
  return old;
}

// R rows that see all keys of the block.
template <class T, int R>
INLINE void mix_rows(float* y, int64_t row_stride, const float (&weight)[W][W], const float* old, int first,
                     const T* values, const int64_t (&places)[W], int64_t value_dim) {
  for (int64_t d = 0; d < value_dim; d += W) {
    const int64_t n = min(value_dim - d, W);
    const bool whole = n == W;
    F acc[R];
    UNROLL
    for (int r = 0; r < R; r++) {
      const float* at = y + (first + r) * row_stride + d;
      acc[r] = (whole ? load<F>(at) : load_part(at, n)) * old[first + r];
    }
    for (int i = 0; i < W; i++) {
      const T* at = values + places[i] + d;
      const F value = whole ? load_cache(at) : load_cache_part(at, n);
      UNROLL
      for (int r = 0; r < R; r++) acc[r] = fma(splat(weight[i][first + r]), value, acc[r]);
    }
    UNROLL
    for (int r = 0; r < R; r++) {
      float* at = y + (first + r) * row_stride + d;
      if (whole)
        store(at, acc[r]);
      else
        store_part(at, acc[r], n);
    }
  }
}

// y[r] = y[r] * old[r] + the values that row r sees, weighted. A key that a row does not see does not enter its sum at
// all: 0 * NaN is NaN.
template <class T>
INLINE void mix_tile(float* y, int64_t row_stride, const F (&weights)[W], F old_rows, const Rows& tile, int64_t p,
                     const T* values, const int64_t (&places)[W], int64_t value_dim) {
  constexpr int AT_ONCE = W < 8 ? 4 : 8;
  alignas(64) float weight[W][W], old[W];
  UNROLL
  for (int i = 0; i < W; i++) store(weight[i], weights[i]);
  store(old, old_rows);
  for (int first = 0; first < tile.count; first += AT_ONCE) {
    bool whole = first + AT_ONCE <= tile.count;
    for (int r = first; whole && r < first + AT_ONCE; r++) {
      const Span span = span_in_block(tile.seen[r], p);
      whole = span.first == 0 && span.end == W;
    }
    if (whole) {
      mix_rows<T, AT_ONCE>(y, row_stride, weight, old, first, values, places, value_dim);
      continue;
    }
    for (int64_t r = first; r < min(first + AT_ONCE, tile.count); r++) {
      const Span span = span_in_block(tile.seen[r], p);
      if (span.first >= span.end) continue;  // a row that has seen nothing yet, or sees nothing any more: old is 1
      float own[W];
      for (int i = 0; i < W; i++) own[i] = weight[i][r];
      float* row = y + r * row_stride;
      for (int64_t d = 0; d < value_dim; d += W)
        mix_columns<T, 1>(row, old[r], own, span, values, places, d, value_dim - d);
    }
  }
}

// `count` rows, at most W; q and y: the head's first row.
template <class T>
static void attend_tile(const AttentionShape& shape, const float* q, const T* keys, const T* values,
                        const int32_t* table, const int32_t* positions, float sink, int64_t count, float* y) {
  alignas(64) float turned[LARGEST_HEAD][W];
  const int64_t head_dim = shape.head_dim, value_dim = shape.value_dim, row_stride = shape.q_heads * value_dim;
  const Rows rows = find_rows(positions, count, shape.window);
  turn_queries(turned, q, shape.q_heads * head_dim, count, head_dim);
  for (int r = 0; r < count; r++)
    for (int64_t d = 0; d < value_dim; d++) y[r * row_stride + d] = 0.0f;
  Softmax softmax = {F(sink), F(sink == NO_SINK ? 0.0f : 1.0f)};
  KeyCursor cursor = start_keys(shape, table, rows.any);
  for (int64_t p = cursor.p; p <= rows.any.high; p += W) {
    int64_t places[W];
    F scores[W];
    next_keys(cursor, places);
    score_tile(scores, turned, keys, places, head_dim);
    const F old = weigh_tile(scores, softmax, rows, p, shape);
    mix_tile(y, row_stride, scores, old, rows, p, values, places, value_dim);
  }
  alignas(64) float total[W];
  store(total, softmax.total);
  for (int r = 0; r < count; r++) {
    if (rows.seen[r].high < 0) continue;
    const float inverse = 1.0f / total[r];
    for (int64_t d = 0; d < value_dim; d++) y[r * row_stride + d] *= inverse;
  }
}
