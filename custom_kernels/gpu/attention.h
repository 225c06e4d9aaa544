// Attention of new tokens over the paged KV pools in float32, for pools of that type; others: flash_attention.h. See
// custom_kernels/ops/attention.py for what it computes.
//
// A workgroup takes up to QUERIES query vectors (row, query head) of one sequence that share a KV head, and one of
// `splits` equal parts of the positions that they see. Its waves take turns at tiles of 32 positions: a lane scores one
// position, then owns DIMS neighbouring dimensions of the mix. Softmax is online (Milakov and Gimelshein,
// arXiv:1805.02867); the waves meet in local memory, the splits in `attention_combine`. A sink joins the last sum.
#pragma once

#include "cache.h"
#include "elements.h"

inline constexpr u32 ATTENTION_THREADS = 128, ATTENTION_WAVES = ATTENTION_THREADS / WAVE;
// Rows of values whose loads are under way at once: as many as registers have room for.
template <u32 DIMS>
inline constexpr u32 TOGETHER = DIMS > 8 ? 2 : 8;
inline constexpr f32 NOTHING = -3.0e38f;  // below every score; no infinity, so that differences stay numbers
inline constexpr f32 LOG2_E = 1.44269504088896f;
inline constexpr u32 MOST_SPLITS = 64;

struct AttentionShape {
  u32 layer, tokens, sequences, q_heads, kv_heads, head_dim, value_dim, pool_rows, blocks, block_size, window;
  f32 scale, softcap;
  u32 has_sinks, splits;
};

template <u32 DIMS, u32 QUERIES>
struct AttentionTiles {
  static constexpr u32 CAPACITY = DIMS * WAVE;
  LOCAL_ARRAY static inline f32x4 q[QUERIES * CAPACITY / 4];
  LOCAL_ARRAY static inline f32 mixed[ATTENTION_WAVES * QUERIES * CAPACITY];
  LOCAL_ARRAY static inline f32 peak[ATTENTION_WAVES * QUERIES];
  LOCAL_ARRAY static inline f32 total[ATTENTION_WAVES * QUERIES];
};

// Of numbers that are neither subnormal nor near the largest; a division's own code would care for those, and take registers.
DEVICE f32 quotient(f32 a, f32 b) {
  const f32 about = reciprocal_fast(b), q = a * about;
  return multiply_add(multiply_add(-q, b, a), about, q);
}
DEVICE f32 capped(f32 score, f32 softcap) {
  if (softcap == 0.0f) return score;
  const f32 x = quotient(score, softcap);
  const f32 e = exp2_fast(-2.0f * LOG2_E * __builtin_fabsf(x));  // tanh |x| = (1 - e) / (1 + e)
  const f32 tanh = quotient(1.0f - e, 1.0f + e);
  return softcap * __builtin_copysignf(tanh, x);
}

// A softmax's highest score, times LOG2_E as all peaks are, and its sum relative to that, with the sink of a head among the
// scores.
DEVICE void join_sink(f32 sink, f32& highest, f32& sum) {
  const f32 scaled = sink * LOG2_E, higher = larger(highest, scaled);
  sum = multiply_add(sum, exp2_fast(highest - higher), exp2_fast(scaled - higher));
  highest = higher;
}

// Where one workgroup works.
template <u32 QUERIES>
struct AttentionPlace {
  u32 split, first_query, kv_head, sequence, queries, group;

  DEVICE AttentionPlace of(const AttentionShape& s) {
    AttentionPlace p;
    p.group = s.q_heads / s.kv_heads;
    p.queries = s.tokens / s.sequences * p.group;
    const u32 tiles = ceil_div(p.queries, QUERIES);
    u32 id = workgroup_id();
    p.split = id % s.splits;
    id /= s.splits;
    p.first_query = id % tiles * QUERIES;
    id /= tiles;
    p.kv_head = id % s.kv_heads;
    p.sequence = id / s.kv_heads;
    return p;
  }
  __attribute__((always_inline)) bool inside(u32 i) const { return first_query + i < queries; }
  // Row of q and of the result: token * q_heads + head.
  __attribute__((always_inline)) u64 row(const AttentionShape& s, u32 i) const {
    return (u64)token(s, i) * s.q_heads + head(i);
  }
  __attribute__((always_inline)) u32 head(u32 i) const { return kv_head * group + (first_query + i) % group; }
  __attribute__((always_inline)) u32 token(const AttentionShape& s, u32 i) const {
    return sequence * (s.tokens / s.sequences) + (first_query + i) / group;
  }
};

// The first position that a row sees. window < 0: that of its chunk of -window positions.
DEVICE i32 first_seen(i32 position, i32 window) {
  if (window < 0) return position - position % window;
  return window > 0 ? larger(position - window + 1, 0) : 0;
}

// Y: X, or f32 for parts of a split.
template <class T, u32 DIMS, u32 QUERIES, class X, class Y>
DEVICE void attention(const GLOBAL X* q, const GLOBAL T* k_pool, const GLOBAL T* v_pool, const GLOBAL i32* block_table,
                      const GLOBAL i32* positions, const GLOBAL f32* sinks, GLOBAL Y* out, GLOBAL f32* peaks,
                      const AttentionShape s) {
  using Tiles = AttentionTiles<DIMS, QUERIES>;
  LOCAL f32* tile_q = (LOCAL f32*)Tiles::q;
  const LOCAL f32x4* tile_q4 = Tiles::q;
  const AttentionPlace<QUERIES> place = AttentionPlace<QUERIES>::of(s);
  const u32 thread = thread_id(), lane = lane_id(), wave = wave_id();
  const i32 context = (i32)(s.blocks * s.block_size);

  i32 last[QUERIES], first[QUERIES];  // positions that a query sees; none when last < first
  i32 end = -1, begin = context;      // what any of them sees
  UNROLL for (u32 i = 0; i < QUERIES; i++) {
    const i32 position = place.inside(i) ? positions[place.token(s, i)] : -1;
    last[i] = smaller(position, context - 1);
    first[i] = first_seen(position, (i32)s.window);
    if (last[i] >= first[i]) {
      end = larger(end, last[i]);
      begin = smaller(begin, first[i]);
    }
  }
  if (s.splits > 1 && end >= begin) {
    const i32 share = (i32)(ceil_div(ceil_div((u32)(end - begin + 1), s.splits), WAVE) * WAVE);
    begin += (i32)place.split * share;
    end = smaller(end, begin + share - 1);
  }

  UNROLL for (u32 i = 0; i < QUERIES; i++) {
    for (u32 d = thread; d < s.head_dim; d += ATTENTION_THREADS) {
      tile_q[i * Tiles::CAPACITY + d] = place.inside(i) ? widen(q[place.row(s, i) * s.head_dim + d]) : 0.0f;
    }
  }
  barrier();

  const u32 width = s.kv_heads * s.head_dim;
  const GLOBAL T* keys = k_pool + (u64)s.layer * s.pool_rows * width + place.kv_head * s.head_dim;
  const GLOBAL T* values = v_pool + (u64)s.layer * s.pool_rows * width + place.kv_head * s.head_dim;
  const GLOBAL i32* table = block_table + (u64)place.sequence * s.blocks;
  const u32 dimension = smaller(lane * DIMS, s.value_dim - DIMS);  // lanes past the end repeat the last dimensions

  f32 peak[QUERIES], total[QUERIES], mixed[QUERIES][DIMS] = {};
  UNROLL for (u32 i = 0; i < QUERIES; i++) {
    peak[i] = NOTHING;
    total[i] = 0.0f;
  }
  for (i32 tile = begin + (i32)(wave * WAVE); tile <= end; tile += (i32)ATTENTION_THREADS) {
    const i32 position = tile + (i32)lane;
    const u32 safe = (u32)smaller(position, end);
    const u32 pool_row = smaller((u32)table[safe / s.block_size] * s.block_size + safe % s.block_size, s.pool_rows - 1);

    f32 score[QUERIES] = {};
    _Pragma("unroll 4") for (u32 d = 0; d < s.head_dim; d += 8) {
      f32 key[8];
      load<8>(keys + (u64)pool_row * width + d, key);
      UNROLL for (u32 i = 0; i < QUERIES; i++) {
        UNROLL for (u32 h = 0; h < 2; h++) {
          const f32x4 query = tile_q4[(i * Tiles::CAPACITY + d) / 4 + h];
          UNROLL for (u32 c = 0; c < 4; c++) score[i] = multiply_add(query[c], key[4 * h + c], score[i]);
        }
      }
    }
    bool seen = false;  // by any query: what nobody sees may hold anything, and 0 * NaN is NaN
    UNROLL for (u32 i = 0; i < QUERIES; i++) {
      const bool visible = position >= first[i] && position <= smaller(last[i], end);
      seen = seen || visible;
      const f32 value = visible ? capped(score[i] * s.scale, s.softcap) * LOG2_E : NOTHING;
      const f32 higher = larger(peak[i], maximum_over_wave(value));
      const f32 kept = exp2_fast(peak[i] - higher);
      score[i] = visible ? exp2_fast(value - higher) : 0.0f;
      total[i] = multiply_add(total[i], kept, score[i]);
      peak[i] = higher;
      UNROLL for (u32 c = 0; c < DIMS; c++) mixed[i][c] *= kept;
    }
    // A lane past the end has the last position's row, which is there; the top bit says that no query sees it.
    const u32 flagged_row = seen ? pool_row : pool_row | 0x80000000u;
    const u32 count = (u32)smaller(end - tile + 1, (i32)WAVE);
    for (u32 first_j = 0; first_j < count; first_j += TOGETHER<DIMS>) {  // lanes past the count weigh 0
      f32 value[TOGETHER<DIMS>][DIMS];
      UNROLL for (u32 j = 0; j < TOGETHER<DIMS>; j++) {
        const u32 row = broadcast_bits(flagged_row, first_j + j);
        load<DIMS>(values + (u64)(row & 0x7fffffffu) * width + dimension, value[j]);
        UNROLL for (u32 c = 0; c < DIMS; c++) value[j][c] = row >> 31 ? 0.0f : value[j][c];
      }
      UNROLL for (u32 j = 0; j < TOGETHER<DIMS>; j++) {
        UNROLL for (u32 i = 0; i < QUERIES; i++) {
          const f32 weight = broadcast(score[i], first_j + j);
          UNROLL for (u32 c = 0; c < DIMS; c++) mixed[i][c] = multiply_add(weight, value[j][c], mixed[i][c]);
        }
      }
    }
  }

  UNROLL for (u32 i = 0; i < QUERIES; i++) {
    const u32 at = wave * QUERIES + i;
    const f32 sum = sum_over_wave(total[i]);
    if (lane == 0) {
      Tiles::peak[at] = peak[i];
      Tiles::total[at] = sum;
    }
    UNROLL for (u32 c = 0; c < DIMS; c++) Tiles::mixed[at * Tiles::CAPACITY + lane * DIMS + c] = mixed[i][c];
  }
  barrier();

  for (u32 i = 0; i < QUERIES && place.inside(i); i++) {
    f32 highest = NOTHING, sum = 0.0f, kept[ATTENTION_WAVES];
    UNROLL for (u32 w = 0; w < ATTENTION_WAVES; w++) highest = larger(highest, Tiles::peak[w * QUERIES + i]);
    UNROLL for (u32 w = 0; w < ATTENTION_WAVES; w++) {
      kept[w] = exp2_fast(Tiles::peak[w * QUERIES + i] - highest);
      sum = multiply_add(Tiles::total[w * QUERIES + i], kept[w], sum);
    }
    const u64 row = place.row(s, i) * s.splits + place.split;
    f32 factor = 1.0f;
    if (s.splits == 1) {
      const f32 before = highest;
      if (s.has_sinks) join_sink(sinks[place.head(i)], highest, sum);
      factor = sum > 0.0f ? exp2_fast(before - highest) / sum : 0.0f;
    }
    for (u32 d = thread; d < s.value_dim; d += ATTENTION_THREADS) {
      f32 value = 0.0f;
      UNROLL for (u32 w = 0; w < ATTENTION_WAVES; w++) {
        value = multiply_add(Tiles::mixed[(w * QUERIES + i) * Tiles::CAPACITY + d], kept[w], value);
      }
      store(out, row * s.value_dim + d, value * factor);
    }
    if (s.splits > 1 && thread == 0) {
      peaks[2 * row] = highest;
      peaks[2 * row + 1] = sum;
    }
  }
}

// parts [rows, splits, width] with their peaks and sums [rows, splits, 2] -> out [rows, width]; a workgroup for COMBINED columns
// of a row, which is token * q_heads + head. sinks [q_heads] are read where has_sinks. A sum of 0 marks a part that is not there.
inline constexpr u32 COMBINED = 4 * WAVE, FEW_PARTS = 8;
struct CombineTiles {
  LOCAL_ARRAY static inline f32x4 value[ATTENTION_WAVES][WAVE];
};

template <class X>
DEVICE void attention_combine(const GLOBAL f32* parts, const GLOBAL f32* peaks, const GLOBAL f32* sinks, GLOBAL X* out,
                              u32 width, u32 splits, u32 q_heads, u32 has_sinks) {
  const u32 pieces = ceil_div(width, COMBINED), row = workgroup_id() / pieces;
  const u64 first = (u64)row * splits;
  const u32 lane = lane_id(), wave = wave_id(), d = workgroup_id() % pieces * COMBINED + 4 * lane;
  // All that may be needed is asked for at once: what is not there has no weight.
  f32x4 part[MOST_SPLITS / ATTENTION_WAVES];
  UNROLL for (u32 k = 0; k < MOST_SPLITS / ATTENTION_WAVES; k++) {
    const u32 i = k * ATTENTION_WAVES + wave;
    if (i < splits) part[k] = ((const GLOBAL f32x4*)parts)[((first + i) * width + smaller(d, width - 4)) / 4];
    else part[k] = 0.0f;
  }
  f32 peak[MOST_SPLITS / WAVE], total[MOST_SPLITS / WAVE], highest = NOTHING, sum = 0.0f;
  UNROLL for (u32 j = 0; j < MOST_SPLITS / WAVE; j++) {
    const u32 i = j * WAVE + lane;
    peak[j] = i < splits ? peaks[2 * (first + i)] : NOTHING;
    total[j] = i < splits ? peaks[2 * (first + i) + 1] : 0.0f;
    peak[j] = total[j] == 0.0f ? NOTHING : peak[j];
    highest = larger(highest, peak[j]);
  }
  highest = maximum_over_wave(highest);
  f32 weight[MOST_SPLITS / WAVE];
  UNROLL for (u32 j = 0; j < MOST_SPLITS / WAVE; j++) {
    weight[j] = total[j] == 0.0f ? 0.0f : exp2_fast(peak[j] - highest);
    sum = multiply_add(total[j], weight[j], sum);
  }
  sum = sum_over_wave(sum);
  const bool any = sum != 0.0f;  // NaN too
  const f32 before = highest;
  if (has_sinks) join_sink(sinks[row % q_heads], highest, sum);
  const f32 factor = exp2_fast(before - highest) / sum;
  f32x4 value = 0.0f;
  UNROLL for (u32 k = 0; k < MOST_SPLITS / ATTENTION_WAVES; k++) {
    const u32 from = k * ATTENTION_WAVES;
    if (from >= splits) break;
    const f32 of = broadcast(weight[from / WAVE], from % WAVE + wave);
    value += of == 0.0f ? (f32x4)0.0f : part[k] * of;
  }
  CombineTiles::value[wave][lane] = value;
  barrier();
  if (wave == 0 && d < width) {
    UNROLL for (u32 w = 1; w < ATTENTION_WAVES; w++) value += CombineTiles::value[w][lane];
    store4(out, ((u64)row * width + d) / 4, any ? value * factor : (f32x4)0.0f);
  }
}

// The same of at most FEW_PARTS, a wave for COMBINED columns of one of `rows`.
template <class X>
DEVICE void attention_combine_few(const GLOBAL f32* parts, const GLOBAL f32* peaks, const GLOBAL f32* sinks, GLOBAL X* out,
                                  u32 width, u32 splits, u32 q_heads, u32 has_sinks, u32 rows) {
  const u32 pieces = ceil_div(width, COMBINED), item = workgroup_id() * ATTENTION_WAVES + wave_id(), row = item / pieces;
  if (row >= rows) return;
  const u64 first = (u64)row * splits;
  const u32 d = item % pieces * COMBINED + 4 * lane_id();
  f32x4 part[FEW_PARTS];
  f32 peak[FEW_PARTS], total[FEW_PARTS], highest = NOTHING, sum = 0.0f;
  UNROLL for (u32 i = 0; i < FEW_PARTS; i++) {
    const bool there = i < splits;
    if (there) part[i] = ((const GLOBAL f32x4*)parts)[((first + i) * width + smaller(d, width - 4)) / 4];
    else part[i] = 0.0f;
    total[i] = there ? peaks[2 * (first + i) + 1] : 0.0f;
    peak[i] = there ? peaks[2 * (first + i)] : NOTHING;
  }
  UNROLL for (u32 i = 0; i < FEW_PARTS; i++) highest = total[i] == 0.0f ? highest : larger(highest, peak[i]);
  f32x4 value = 0.0f;
  UNROLL for (u32 i = 0; i < FEW_PARTS; i++) {
    const f32 weight = total[i] == 0.0f ? 0.0f : exp2_fast(peak[i] - highest);
    sum = multiply_add(total[i], weight, sum);
    value += weight == 0.0f ? (f32x4)0.0f : part[i] * weight;
  }
  const bool any = sum != 0.0f;  // NaN too
  const f32 before = highest;
  if (has_sinks) join_sink(sinks[row % q_heads], highest, sum);
  const f32 factor = exp2_fast(before - highest) / sum;
  if (d < width) store4(out, ((u64)row * width + d) / 4, any ? value * factor : (f32x4)0.0f);
}
