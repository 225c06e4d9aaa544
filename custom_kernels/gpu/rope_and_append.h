// Norms, rotation and cache rows of new tokens: see custom_kernels/ops/rope_and_append.py for what it computes.
//
// A wave takes one head of one token: of q, then of k, then of v. A lane has every 32nd pair, and every 32nd of the
// values that are not rotated.
#pragma once

#include "cache.h"
#include "elements.h"

inline constexpr u32 APPEND_THREADS = 256;

enum Norm : u32 { NO_NORM, RMS_NORM, LAYER_NORM, WHOLE_NORM };

struct AppendShape {
  u32 layer, pool_rows, tokens, sequences, blocks, block_size, heads, kv_heads, head_dim, fused;
  u32 half, context, interleaved;  // half: pairs that are rotated, 0 for none; context: rows of the table
  u32 norm, weight_stride;         // from one head's weight to the next one's
  f32 epsilon, offset;
  u32 norm_values, scale_context;  // scale_context: of the query scale, 0 for none
};

// One head of one row, normalized as it is read.
template <class X>
struct HeadValues {
  const GLOBAL X* x;
  const GLOBAL f32* weight;  // of the head, null for none
  f32 mean, scale, offset;

  __attribute__((always_inline)) f32 operator[](u32 i) const {
    const f32 v = (widen(x[i]) - mean) * scale;
    return weight ? v * (weight[i] + offset) : v;
  }
};

// Head number `head` of `heads` beside each other. All lanes of the wave must be here.
template <class X>
DEVICE HeadValues<X> head_values(const AppendShape& s, u32 norm, const GLOBAL X* x, const GLOBAL f32* weight, u32 head,
                                 u32 heads) {
  HeadValues<X> v = {x, norm == NO_NORM ? nullptr : weight, 0.0f, 1.0f, s.offset};
  if (norm == NO_NORM) return v;
  if (norm == LAYER_NORM) {
    f32 sum = 0.0f;
    for (u32 i = lane_id(); i < s.head_dim; i += WAVE) sum += widen(x[i]);
    v.mean = sum_over_wave(sum) / (f32)s.head_dim;
  }
  const GLOBAL X* all = norm == WHOLE_NORM ? x - (u64)head * s.head_dim : x;
  const u32 n = norm == WHOLE_NORM ? heads * s.head_dim : s.head_dim;
  f32 squares = 0.0f;
  for (u32 i = lane_id(); i < n; i += WAVE) {
    const f32 d = widen(all[i]) - v.mean;
    squares = multiply_add(d, d, squares);
  }
  v.scale = 1.0f / __builtin_elementwise_sqrt(sum_over_wave(squares) / (f32)n + s.epsilon);
  return v;
}

// Rotates pairs by a row of the table: cos [half], sin [half], and what is not read here. put(i, value).
template <class X, class Put>
DEVICE void rotated(const AppendShape& s, const HeadValues<X> x, const GLOBAL f32* angles, u32 half, const Put put) {
  for (u32 i = lane_id(); i < half; i += WAVE) {
    const u32 first = s.interleaved ? 2 * i : i, second = s.interleaved ? 2 * i + 1 : i + half;
    const f32 a = x[first], b = x[second], cos = angles[i], sin = angles[half + i];
    put(first, a * cos - b * sin);
    put(second, a * sin + b * cos);
  }
  for (u32 i = 2 * half + lane_id(); i < s.head_dim; i += WAVE) put(i, x[i]);
}

// The row of a token in the pools, pool_rows for none.
DEVICE u32 row_of_token(const AppendShape& s, const GLOBAL i32* block_table, u32 token, u32 position) {
  const u32 block = position / s.block_size;
  if (block >= s.blocks) return s.pool_rows;
  const u32 entry = (u32)block_table[token / (s.tokens / s.sequences) * s.blocks + block];
  const u64 row = (u64)entry * s.block_size + position % s.block_size;  // a negative entry becomes a large one
  return row < s.pool_rows ? (u32)row : s.pool_rows;
}

template <class T, class X>
DEVICE void rope_and_append(GLOBAL T* k_pool, GLOBAL T* v_pool, const GLOBAL i32* block_table,
                            const GLOBAL i32* positions, const GLOBAL X* q, const GLOBAL X* k, const GLOBAL X* v,
                            const GLOBAL f32* table, const GLOBAL f32* q_weight, const GLOBAL f32* k_weight,
                            const GLOBAL f32* query_scale, GLOBAL X* q_out, const AppendShape s) {
  const u32 all = s.heads + 2 * s.kv_heads, id = workgroup_id() * (APPEND_THREADS / WAVE) + wave_id();
  if (id >= s.tokens * all) return;
  const u32 token = id / all, of_token = id % all;
  const i32 position = positions[token];
  const u32 at = position < 0 ? 0 : (u32)position;
  const GLOBAL f32* angles = s.half ? table + (u64)smaller(at, s.context - 1) * 4 * s.half : table;

  if (of_token < s.heads) {
    GLOBAL X* to = q_out + ((u64)token * s.heads + of_token) * s.head_dim;
    if (position < 0) {
      for (u32 i = lane_id(); i < s.head_dim; i += WAVE) store(to, i, 0.0f);
      return;
    }
    const GLOBAL X* x = q + ((u64)token * (s.fused ? all : s.heads) + of_token) * s.head_dim;
    const HeadValues<X> values = head_values(s, s.norm, x, q_weight + of_token * s.weight_stride, of_token, s.heads);
    const f32 factor = s.scale_context ? query_scale[smaller(at, s.scale_context - 1)] : 1.0f;
    rotated(s, values, angles, s.half, [&](u32 i, f32 value) { store(to, i, value * factor); });
    return;
  }
  const u32 row = position < 0 ? s.pool_rows : row_of_token(s, block_table, token, at);
  if (row == s.pool_rows) return;
  const bool is_key = of_token < s.heads + s.kv_heads;
  const u32 head = of_token - s.heads - (is_key ? 0 : s.kv_heads);
  const u32 first = s.fused ? token * all + of_token : token * s.kv_heads + head;  // of the heads of k or v
  const GLOBAL X* x = (is_key ? k : v) + (u64)first * s.head_dim;
  const u32 norm = is_key ? s.norm : s.norm_values ? (u32)RMS_NORM : (u32)NO_NORM;
  const GLOBAL f32* weight = is_key ? k_weight + head * s.weight_stride : nullptr;
  const HeadValues<X> values = head_values(s, norm, x, weight, head, s.kv_heads);
  GLOBAL T* to =
      (is_key ? k_pool : v_pool) + (((u64)s.layer * s.pool_rows + row) * s.kv_heads + head) * s.head_dim;
  rotated(s, values, angles, is_key ? s.half : 0, [&](u32 i, f32 value) { to[i] = cache_element<T>(value); });
}
