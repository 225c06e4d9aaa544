// Attention of new tokens over the paged KV pools: a stable softmax over blocks of W keys, of one query head.
#include "attention_scores.h"
#include "export.h"

// What one kernel call was asked for; see `strixhlo_attention_f16kv`.
struct AttentionShape {
  int64_t layer, T, S, q_heads, kv_heads, head_dim, pool_rows, blocks, block_size, window;
  float scale, softcap;
};

// Positions [low, high] that a row sees; none when high < low.
struct Visible {
  int64_t low, high;
};

// One row's softmax so far: sums are relative to exp(peak).
struct Softmax {
  float peak;
  F total;
};

INLINE Visible visible_from(int64_t position, int64_t window) {
  if (position < 0) return {0, -1};
  return {window > 0 ? max(position - window + 1, 0) : 0, position};
}

// Pool rows of positions p .. p + W - 1; a position outside of [low, high] gets the row of the nearest one inside, so that
// no other entry of the block table and no other row of the pool is read.
INLINE void find_rows(int64_t (&rows)[W], const int32_t* table, int64_t p, Visible all, int64_t block_size) {
  for (int i = 0; i < W; i++) {
    const int64_t at = max(min(p + i, all.high), all.low);
    const int64_t block = at / block_size;
    rows[i] = int64_t(table[block]) * block_size + (at - block * block_size);
  }
}

// Turns W scores into weights, in place; returns what older sums must be multiplied with.
INLINE float weigh(F& scores, Softmax& row, int64_t p, Visible visible, const AttentionShape& shape) {
  const I position = lane_index() + int32_t(p);
  const I seen = (position >= int32_t(visible.low)) & (position <= int32_t(visible.high));
  F s = scores * shape.scale;
  if (shape.softcap != 0.0f) s = tanh(s / shape.softcap) * shape.softcap;
  s = seen ? s : splat(-__builtin_inff());
  const float peak = largest(s);
  float old = 1.0f;
  if (peak > row.peak) {
    old = exp(splat(row.peak - peak))[0];
    row.peak = peak;
  }
  scores = seen ? exp(s - row.peak) : splat(0.0f);
  row.total = row.total * old + scores;
  return old;
}

// One query head of the rows [first, first + M) of a sequence: TILE rows share their keys.
template <class T, int TILE>
static void attend(const AttentionShape& shape, const float* q, const T* keys, const T* values, const int32_t* table,
                   const int32_t* positions, float* y) {
  const int64_t row_stride = shape.q_heads * shape.head_dim, width = shape.kv_heads * shape.head_dim;
  Visible visible[TILE], all = {INT64_MAX, -1};
  Softmax softmax[TILE];
  for (int r = 0; r < TILE; r++) {
    visible[r] = visible_from(positions[r], shape.window);
    softmax[r] = {-__builtin_inff(), splat(0.0f)};
    for (int64_t d = 0; d < shape.head_dim; d++) y[r * row_stride + d] = 0.0f;
    if (visible[r].high < 0) continue;
    all = {min(all.low, visible[r].low), max(all.high, visible[r].high)};
  }
  // Blocks start at multiples of W whatever the tile, so that a row's sums do not depend on the tile.
  for (int64_t p = all.low / W * W; p <= all.high; p += W) {
    int64_t rows[W];
    F scores[TILE];
    float old[TILE];
    Span span[TILE];
    find_rows(rows, table, p, all, shape.block_size);
    for (int i = 0; i < W; i++) rows[i] *= width;
    score<T, TILE>(scores, q, row_stride, keys, rows, shape.head_dim);
    for (int r = 0; r < TILE; r++) {
      span[r] = {int(max(visible[r].low - p, 0)), int(min(visible[r].high - p + 1, W))};
      old[r] = 1.0f;
      if (span[r].first < span[r].end) old[r] = weigh(scores[r], softmax[r], p, visible[r], shape);
    }
    mix<T, TILE>(y, row_stride, scores, old, span, values, rows, shape.head_dim);
  }
  for (int r = 0; r < TILE; r++) {
    if (visible[r].high < 0) continue;
    const float inverse = 1.0f / sum(softmax[r].total);
    for (int64_t d = 0; d < shape.head_dim; d++) y[r * row_stride + d] *= inverse;
  }
}

template <class T>
static void attention(const AttentionShape& shape, const float* q, const T* k_pool, const T* v_pool,
                      const int32_t* block_table, const int32_t* positions, float* y, int64_t row_tile, int64_t wg) {
  const int64_t per_sequence = shape.T / shape.S, tiles = (per_sequence + row_tile - 1) / row_tile;
  const int64_t head = wg % shape.q_heads, tile = wg / shape.q_heads % tiles, sequence = wg / shape.q_heads / tiles;
  const int64_t kv_head = head / (shape.q_heads / shape.kv_heads);
  const int64_t in_pool = shape.layer * shape.pool_rows * shape.kv_heads * shape.head_dim + kv_head * shape.head_dim;
  const T *keys = k_pool + in_pool, *values = v_pool + in_pool;
  const int32_t* table = block_table + sequence * shape.blocks;
  int64_t row = sequence * per_sequence + tile * row_tile;
  const int64_t end = min(row + row_tile, (sequence + 1) * per_sequence);
  auto attend_rows = [&]<int TILE>() {
    for (; row + TILE <= end; row += TILE) {
      const int64_t at = (row * shape.q_heads + head) * shape.head_dim;
      attend<T, TILE>(shape, q + at, keys, values, table, positions + row, y + at);
    }
  };
  if (per_sequence > 1) {
    attend_rows.template operator()<8>();
    attend_rows.template operator()<4>();
  }
  attend_rows.template operator()<1>();
}

// q, y float32 [T, q_heads, head_dim]; pools [layers, pool_rows, kv_heads * head_dim]; block_table int32 [S, blocks];
// positions int32 [T]; see ops/attention.py. `scale_bits`, `softcap_bits`: the bits of a float32. One workgroup: one query
// head of up to row_tile rows of one sequence.
// The caller sees to it that T is a multiple of S and q_heads of kv_heads, and that for each row at position i the entries
// 0 .. i / block_size of its block table (with a window: from (i - window + 1) / block_size on) name blocks of the pool.
#define ATTENTION(name, type)                                                                                          \
  KERNEL strixhlo_attention_##name(                                                                                    \
      BUFFER(const float, q), BUFFER(const type, k_pool), BUFFER(const type, v_pool), BUFFER(const int32_t, block_table), \
      BUFFER(const int32_t, positions), BUFFER(float, y), int64_t layer, int64_t T, int64_t S, int64_t q_heads,        \
      int64_t kv_heads, int64_t head_dim, int64_t pool_rows, int64_t blocks, int64_t block_size, int64_t window,       \
      int64_t scale_bits, int64_t softcap_bits, int64_t row_tile, int64_t wg) {                                        \
    const AttentionShape shape = {layer,  T,          S,      q_heads,                                                 \
                                  kv_heads, head_dim, pool_rows, blocks,                                               \
                                  block_size, window, __builtin_bit_cast(float, int32_t(scale_bits)),                  \
                                  __builtin_bit_cast(float, int32_t(softcap_bits))};                                   \
    attention(shape, AT(q), AT(k_pool), AT(v_pool), AT(block_table), AT(positions), AT(y), row_tile, wg);              \
  }
ATTENTION(f16kv, uint16_t)
ATTENTION(f32kv, float)
