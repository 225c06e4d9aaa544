// What attention works on: the shape of a call, which positions a row sees, and where the pool keeps them.
#pragma once
#include "e4m3.h"
#include "functions.h"
#include "half.h"

struct AttentionShape {
  int64_t layer, T, S, q_heads, kv_heads, head_dim, value_dim, pool_rows, blocks, block_size, window;
  float scale, softcap;
};

constexpr float NO_SINK = -__builtin_inff();  // a score whose exponential is 0

// Positions low .. high; none when high < low.
struct Positions {
  int64_t low, high;
};

// window < 0: the positions of a chunk of -window.
INLINE Positions seen_from(int64_t position, int64_t window) {
  if (position < 0) return {INT64_MAX, -1};
  if (window < 0) return {position - position % window, position};
  return {window > 0 ? max(position - window + 1, 0) : 0, position};
}

// The keys of a block of W that are seen, first .. end - 1.
struct Span {
  int64_t first, end;
};
INLINE Span span_in_block(Positions seen, int64_t p) { return {max(seen.low - p, 0), min(seen.high - p + 1, W)}; }

// Goes through a sequence's positions, W at a time.
struct KeyCursor {
  const int32_t* table;
  int64_t size, width, low, high;  // block size; elements of a pool row; the positions that are seen
  int64_t p, block, offset;        // the next W positions; where the first of them that is seen lies
};

INLINE KeyCursor start_keys(const AttentionShape& shape, const int32_t* table, Positions seen) {
  const int64_t size = shape.block_size, block = seen.low / size;
  return {table,
          size,
          shape.kv_heads * shape.head_dim,
          seen.low,
          seen.high,
          seen.low / W * W,
          block,
          seen.low - block * size};
}

// Where positions p .. p + W - 1 start in the pool, in elements; moves on. A position that is not seen gets the place
// of the nearest one that is, so that no other entry of the block table and no other row of the pool is read.
INLINE void next_keys(KeyCursor& keys, int64_t (&places)[W]) {
  int64_t place = (keys.table[keys.block] * keys.size + keys.offset) * keys.width;
  if (keys.p >= keys.low && keys.p + W <= keys.high && keys.offset + W < keys.size) {
    UNROLL
    for (int i = 0; i < W; i++, place += keys.width) places[i] = place;
    keys.offset += W;
    keys.p += W;
    return;
  }
  for (int i = 0; i < W; i++, keys.p++) {
    places[i] = place;
    if (keys.p < keys.low || keys.p >= keys.high) continue;
    place += keys.width;
    if (++keys.offset < keys.size) continue;
    keys.offset = 0;
    place = keys.table[++keys.block] * keys.size * keys.width;
  }
}

INLINE F load_cache(const float* p) { return load<F>(p); }
INLINE F load_cache(const uint16_t* p) { return load_half(p); }
INLINE F load_cache(const Bfloat* p) { return load_bfloat(&p->bits); }
INLINE F load_cache(const uint8_t* p) { return floats_of_e4m3(load<Bytes>(p)); }
INLINE F load_cache_part(const float* p, int64_t n) { return load_part(p, n); }
INLINE F load_cache_part(const uint16_t* p, int64_t n) { return load_half_part(p, n); }
INLINE F load_cache_part(const Bfloat* p, int64_t n) { return load_bfloat_part(&p->bits, n); }
INLINE F load_cache_part(const uint8_t* p, int64_t n) { return load_e4m3_part(p, n); }

INLINE F finish_scores(F products, const AttentionShape& shape) {
  F s = products * shape.scale;
  if (shape.softcap != 0.0f) s = tanh(s / shape.softcap) * shape.softcap;
  return s;
}
