// Attention of new tokens over the paged KV pools: a stable softmax over blocks of W keys, of one query head.
#include "attention_tile.h"
#include "export.h"

template <class T>
static void attention(const AttentionShape& shape, const float* q, const T* k_pool, const T* v_pool,
                      const int32_t* block_table, const int32_t* positions, const float* sinks, float* y,
                      int64_t row_tile, int64_t wg) {
  const int64_t per_sequence = shape.T / shape.S, tiles = (per_sequence + row_tile - 1) / row_tile;
  const int64_t head = wg % shape.q_heads, tile = wg / shape.q_heads % tiles, sequence = wg / shape.q_heads / tiles;
  const int64_t kv_head = head / (shape.q_heads / shape.kv_heads);
  const int64_t in_pool = shape.layer * shape.pool_rows * shape.kv_heads * shape.head_dim + kv_head * shape.head_dim;
  const T *keys = k_pool + in_pool, *values = v_pool + in_pool;
  const int32_t* table = block_table + sequence * shape.blocks;
  const float sink = sinks ? sinks[head] : NO_SINK;
  const int64_t end = min((tile + 1) * row_tile, per_sequence);
  for (int64_t row = tile * row_tile, count; row < end; row += count) {
    const int64_t t = sequence * per_sequence + row, first = t * shape.q_heads + head;
    const float* own = q + first * shape.head_dim;
    float* to = y + first * shape.value_dim;
    count = min(end - row, W);
    if (count >= 4 && shape.head_dim <= LARGEST_HEAD) {
      attend_tile(shape, own, keys, values, table, positions + t, sink, count, to);
    } else {
      count = 1;
      attend_row(shape, own, keys, values, table, positions[t], sink, to);
    }
  }
}

// q float32 [T, q_heads, head_dim], y [T, q_heads, value_dim]; pools [layers, pool_rows, kv_heads * head_dim]; block_table int32 [S, blocks];
// positions int32 [T]; sinks float32 [q_heads], read where has_sinks; see ops/attention.py. `scale_bits`, `softcap_bits`: the bits of a float32. One workgroup: one
// query head of up to row_tile rows of one sequence. The caller sees to it that T is a multiple of S and q_heads of
// kv_heads, and that for each row at position i the entries 0 .. i / block_size of its block table (with a window: from
// (i - window + 1) / block_size on) name blocks of the pool.
#define ATTENTION(name, type)                                                                                       \
  KERNEL strixhlo_attention_##name(                                                                                 \
      BUFFER(const float, q), BUFFER(const type, k_pool), BUFFER(const type, v_pool),                               \
      BUFFER(const int32_t, block_table), BUFFER(const int32_t, positions), BUFFER(const float, sinks),             \
      BUFFER(float, y), int64_t layer,                                                                              \
      int64_t T, int64_t S, int64_t q_heads, int64_t kv_heads, int64_t head_dim, int64_t value_dim, int64_t pool_rows, \
      int64_t blocks, \
      int64_t block_size, int64_t window, int64_t scale_bits, int64_t softcap_bits, int64_t has_sinks,              \
      int64_t row_tile, int64_t wg) {                                                                               \
    const AttentionShape shape = {layer,                                                                            \
                                  T,                                                                                \
                                  S,                                                                                \
                                  q_heads,                                                                          \
                                  kv_heads,                                                                         \
                                  head_dim,                                                                         \
                                  value_dim,                                                                        \
                                  pool_rows,                                                                        \
                                  blocks,                                                                           \
                                  block_size,                                                                       \
                                  window,                                                                           \
                                  __builtin_bit_cast(float, int32_t(scale_bits)),                                   \
                                  __builtin_bit_cast(float, int32_t(softcap_bits))};                                \
    attention(shape, AT(q), AT(k_pool), AT(v_pool), AT(block_table), AT(positions), has_sinks ? AT(sinks) : nullptr, \
              AT(y), row_tile, wg);                                                                                 \
  }
ATTENTION(fp8kv, uint8_t)
ATTENTION(f16kv, uint16_t)
ATTENTION(bf16kv, Bfloat)
ATTENTION(f32kv, float)
