// Router logits -> experts and weights of each token, then the tokens sorted by expert, in one workgroup: see
// custom_kernels/ops/moe_route.py.
//
// A wave chooses for one token at a time: each lane holds every 32nd expert, and k times the wave takes the largest key
// below the last one. The sort counts: a thread owns an expert, and looks at all pairs' experts in local memory.
#pragma once

#include "activation.h"
#include "elements.h"

inline constexpr u32 ROUTE_THREADS = 256, ROUTE_WAVES = ROUTE_THREADS / WAVE, MOE_TILE = 16;
inline constexpr u32 MOST_EXPERTS = 512, MOST_PAIRS = 8192;

enum Scoring : u32 { SOFTMAX, SELECTED, SIGMOID, SELECTED_SIGMOID, SPARSE_MIXER };
enum RouteBias : u32 { NO_BIAS, CORRECTION, FACTORS };

struct RouteChoice {
  u32 tokens, experts, k, scoring, normalize;
  f32 scale;
  u32 groups, group_k, group_top, biased, tile_count;  // biased: a RouteBias
  u32 columns = experts;  // of logits
  f32 jitter = 0.0f, logit_scale = 1.0f;
};

struct RouteTiles {
  LOCAL_ARRAY static inline f32 choice[ROUTE_WAVES * MOST_EXPERTS];
  LOCAL_ARRAY static inline u32x4 ids[MOST_PAIRS / 8];  // the expert of each pair, 16 bits each
  LOCAL_ARRAY static inline u32 first[MOST_EXPERTS + 1];
  LOCAL_ARRAY static inline u32 count[MOST_EXPERTS + 1];
};

// Keys of all experts differ, and fall from the expert that is chosen first; 0 is of none.
DEVICE u64 choice_key(f32 score, u32 expert) {
  const u32 bits = __builtin_bit_cast(u32, score + 0.0f);  // -0 equals 0
  return (u64)(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | ~expert;
}
DEVICE u32 expert_of(u64 key) { return ~(u32)key; }

// values -> their softmax, over the wave.
template <u32 COUNT>
DEVICE void softmax_of_wave(f32 (&values)[COUNT]) {
  f32 peak = values[0], total = 0.0f;
  UNROLL for (u32 i = 1; i < COUNT; i++) peak = larger(values[i], peak);
  peak = maximum_over_wave(peak == peak ? peak : -__builtin_inff());
  UNROLL for (u32 i = 0; i < COUNT; i++) {
    values[i] = exponential(values[i] - peak);
    total += values[i];
  }
  total = sum_over_wave(total);
  UNROLL for (u32 i = 0; i < COUNT; i++) values[i] /= total;
}

// Puts -infinity on the experts of groups that are not among the best. A lane looks at one group. `all`: the wave's local
// memory for every expert. meet(): the wave's lanes, or more, meet.
template <u32 PER_LANE, class Meet>
DEVICE void keep_best_groups(f32 (&choice)[PER_LANE], const RouteChoice& c, LOCAL f32* all, const Meet& meet) {
  const u32 lane = lane_id(), size = c.experts / c.groups;
  UNROLL for (u32 i = 0; i < PER_LANE; i++) {
    if (i * WAVE + lane < c.experts) all[i * WAVE + lane] = choice[i];
  }
  meet();
  f32 best = 0.0f;
  if (lane < c.groups) {
    u64 last = ~0ull;
    for (u32 j = 0; j < smaller(c.group_top, size); j++) {
      u64 top = 0;
      for (u32 i = 0; i < size; i++) {
        const u64 key = choice_key(all[lane * size + i], i);
        if (key < last && key > top) top = key;
      }
      best += all[lane * size + expert_of(top)];
      last = top;
    }
  }
  meet();
  u32 better = 0;
  for (u32 g = 0; g < c.groups; g++) {
    const f32 other = shuffle(best, g);
    better += other > best || (other == best && g < lane);
  }
  const u32 kept = better < c.group_k;
  UNROLL for (u32 i = 0; i < PER_LANE; i++) {
    if (!shuffle_bits(kept, smaller((i * WAVE + lane) / size, c.groups - 1))) choice[i] = -__builtin_inff();
  }
}

// The scores of the wave's token: expert i * WAVE + lane is the lane's i-th.
template <u32 PER_LANE, class X>
DEVICE void scores_of(const GLOBAL X* logits, u32 experts, u32 scoring, f32 (&scores)[PER_LANE], f32 scale = 1.0f) {
  UNROLL for (u32 i = 0; i < PER_LANE; i++) {
    scores[i] = i * WAVE + lane_id() < experts ? widen(logits[i * WAVE + lane_id()]) * scale : -__builtin_inff();
  }
  if (scoring == SOFTMAX) softmax_of_wave(scores);
  if (scoring == SIGMOID) UNROLL for (u32 i = 0; i < PER_LANE; i++) scores[i] = logistic(scores[i]);
}

// What the experts of the wave's token are chosen by: their scores, corrected by `bias`, in the best groups.
template <u32 PER_LANE, class Meet>
DEVICE void choice_of(const f32 (&scores)[PER_LANE], const GLOBAL f32* bias, const RouteChoice& c, f32 (&choice)[PER_LANE],
                      LOCAL f32* all, const Meet& meet) {
  UNROLL for (u32 i = 0; i < PER_LANE; i++) {
    const u32 e = i * WAVE + lane_id();
    choice[i] = scores[i];
    if (c.biased == CORRECTION && e < c.experts) choice[i] += bias[e];
    if (choice[i] != choice[i]) choice[i] = -__builtin_inff();
  }
  if (c.groups > 1) keep_best_groups(choice, c, all, meet);
}

// SparseMixer's weights of the chosen experts, of which lane j has the j-th and its logit; left: all logits.
template <u32 PER_LANE>
DEVICE f32 sparse_weight(const f32 (&logits)[PER_LANE], u32 id, f32 logit, const RouteChoice& c) {
  f32 left[PER_LANE], weight = 0.0f;
  UNROLL for (u32 i = 0; i < PER_LANE; i++) left[i] = logits[i];
  for (u32 j = 0; j < c.k; j++) {
    const f32 best = shuffle(logit, j);
    const u32 chosen = shuffle_bits(id, j);
    f32 total = 0.0f;
    UNROLL for (u32 i = 0; i < PER_LANE; i++) {
      const f32 size = __builtin_fabsf(logits[i]);
      const bool far = (best - logits[i]) / (size > best ? size : best) > 2.0f * c.jitter;
      total += far ? 0.0f : exponential(left[i] - best);  // of what is no expert: of -inf
      if (i * WAVE + lane_id() == chosen) left[i] = -__builtin_inff();
    }
    total = sum_over_wave(total);
    if (lane_id() == j) weight = 1.0f / total;
  }
  return weight;
}

// Lane j < k gets the number of the expert that is chosen j-th. keys: of expert i * WAVE + lane the lane's i-th; 0 is of none.
template <u32 PER_LANE>
DEVICE void take_best(u32 (&keys)[PER_LANE], u32 k, u32& id) {
  const u32 lane = lane_id();
  for (u32 j = 0; j < k; j++) {
    u32 top = keys[0], first = ~0u;
    UNROLL for (u32 i = 1; i < PER_LANE; i++) top = keys[i] > top ? keys[i] : top;
    top = largest_of_wave(top);
    UNROLL for (u32 i = PER_LANE; i-- > 0;) first = keys[i] == top ? i * WAVE + lane : first;
    const u32 chosen = smallest_of_wave(first);
    UNROLL for (u32 i = 0; i < PER_LANE; i++) keys[i] = i * WAVE + lane == chosen ? 0 : keys[i];
    if (lane == j) id = chosen;
  }
}
#if !defined(__AMDGCN__)
// Each lane sorts its own first, so that fewer steps wait for each other.
DEVICE void take_best(u32 (&keys)[4], u32 k, u32& id) {
  const u32 lane = lane_id();
  u32 expert[4];
  UNROLL for (u32 i = 0; i < 4; i++) expert[i] = i * WAVE + lane;
  UNROLL for (u32 last = 3; last > 0; last--) {
    UNROLL for (u32 i = 0; i < last; i++) {
      const bool later = keys[i + 1] > keys[i];  // of equal ones the first stays
      const u32 key = later ? keys[i] : keys[i + 1], e = later ? expert[i] : expert[i + 1];
      keys[i] = later ? keys[i + 1] : keys[i];
      expert[i] = later ? expert[i + 1] : expert[i];
      keys[i + 1] = key;
      expert[i + 1] = e;
    }
  }
  for (u32 j = 0; j < k; j++) {
    const u32 top = largest_of_wave(keys[0]), chosen = smallest_of_wave(keys[0] == top ? expert[0] : ~0u);
    if (expert[0] == chosen) {
      UNROLL for (u32 i = 0; i < 3; i++) {
        keys[i] = keys[i + 1];
        expert[i] = expert[i + 1];
      }
      keys[3] = 0;
      expert[3] = ~0u;
    }
    if (lane == j) id = chosen;
  }
}
#endif

// The wave's token: lane j < k gets the number and the score of the expert that is chosen j-th. all, meet: as of
// keep_best_groups.
template <u32 PER_LANE, class X, class Meet>
DEVICE void choose(const GLOBAL X* logits, const GLOBAL f32* bias, const RouteChoice& c, LOCAL f32* all, const Meet& meet,
                   u32& id, f32& weight) {
  const u32 lane = lane_id();
  f32 scores[PER_LANE], choice[PER_LANE];
  scores_of(logits, c.experts, c.scoring, scores, c.logit_scale);
  choice_of(scores, bias, c, choice, all, meet);
  u32 keys[PER_LANE];  // 0: of none, or of one that is chosen
  UNROLL for (u32 i = 0; i < PER_LANE; i++) {
    keys[i] = i * WAVE + lane < c.experts ? (u32)(choice_key(choice[i], 0) >> 32) : 0;
  }
  take_best(keys, c.k, id);
  UNROLL for (u32 i = 0; i < PER_LANE; i++) {
    const f32 score = shuffle(scores[i], id % WAVE);
    weight = id / WAVE == i ? score : weight;
  }
  if (c.scoring == SPARSE_MIXER) weight = sparse_weight(scores, id, weight, c);
}
// Where all waves do so. scratch: local memory for MOST_EXPERTS numbers of each wave.
template <u32 PER_LANE, class X>
DEVICE void choose(const GLOBAL X* logits, const GLOBAL f32* bias, const RouteChoice& c, LOCAL f32* scratch, u32& id,
                   f32& weight) {
  const auto meet = []() __attribute__((always_inline)) { barrier(); };
  choose<PER_LANE>(logits, bias, c, scratch + wave_id() * MOST_EXPERTS, meet, id, weight);
}

// What becomes of the chosen scores: lanes from k on hold nothing.
DEVICE f32 weight_of(f32 score, const RouteChoice& c) {
  const bool mine = lane_id() < c.k;
  if (c.scoring == SELECTED) {
    f32 values[1] = {mine ? score : -__builtin_inff()};
    softmax_of_wave(values);
    score = values[0];
  }
  if (c.scoring == SELECTED_SIGMOID) score = logistic(score);
  if (c.normalize) score /= sum_over_wave(mine ? score : 0.0f) + 1e-20f;
  return score * c.scale;
}
// ... and of expert `id`'s factor.
DEVICE f32 weight_of(u32 id, f32 score, const GLOBAL f32* bias, const RouteChoice& c) {
  const f32 weight = weight_of(score, c);
  return c.biased == FACTORS && lane_id() < c.k ? weight * bias[id] : weight;
}

// Pairs by expert, in their own order; padding (expert E) comes last.
DEVICE void sort_pairs(const RouteChoice& c, GLOBAL i32* places, GLOBAL i32* order, GLOBAL i32* expert,
                       GLOBAL i32* offsets, GLOBAL i32* tiles) {
  const u32 pairs = c.tokens * c.k, eights = ceil_div(pairs, 8);
  const LOCAL u32x4* ids = RouteTiles::ids;
  for (u32 e = thread_id(); e <= c.experts; e += ROUTE_THREADS) {
    u32 first = 0, count = 0;
    for (u32 p = 0; p < eights; p++) {
      const u32x4 eight = ids[p];
      UNROLL for (u32 i = 0; i < 8; i++) {
        const u32 id = (eight[i / 2] >> (16 * (i % 2))) & 0xffffu;
        first += id < e;
        count += id == e;
      }
    }
    RouteTiles::first[e] = first;
    RouteTiles::count[e] = count;
    offsets[e] = (i32)first;
  }
  barrier();
  u32 all_tiles = 0;
  for (u32 e = thread_id(); e <= c.experts; e += ROUTE_THREADS) {
    const u32 first = RouteTiles::first[e], count = RouteTiles::count[e];
    u32 tile = 0;
    _Pragma("unroll 4") for (u32 other = 0; other < e; other++) tile += ceil_div(RouteTiles::count[other], MOE_TILE);
    for (u32 i = 0; e < c.experts && i < count; i += MOE_TILE) tiles[tile++] = (i32)(first + i);
    u32 place = first;
    for (u32 p = 0; p < eights && place < first + count; p++) {
      const u32x4 eight = ids[p];
      UNROLL for (u32 i = 0; i < 8; i++) {
        if (((eight[i / 2] >> (16 * (i % 2))) & 0xffffu) != e) continue;
        places[8 * p + i] = (i32)place;
        order[place] = (i32)(8 * p + i);
        expert[place] = (i32)e;
        place++;
      }
    }
  }
  for (u32 e = lane_id(); e < c.experts; e += WAVE) all_tiles += ceil_div(RouteTiles::count[e], MOE_TILE);
  UNROLL for (u32 mask = WAVE / 2; mask; mask /= 2) all_tiles += shuffle_bits(all_tiles, lane_id() ^ mask);
  for (u32 tile = all_tiles + thread_id(); tile < c.tile_count; tile += ROUTE_THREADS) tiles[tile] = -1;
}

// One workgroup, for up to PER_LANE * 32 experts, k up to 32, groups up to 32 and MOST_PAIRS pairs.
template <u32 PER_LANE, class X>
DEVICE void moe_route(const GLOBAL X* logits, const GLOBAL i32* positions, const GLOBAL f32* bias, GLOBAL i32* ids,
                      GLOBAL f32* weights, GLOBAL i32* places, GLOBAL i32* order, GLOBAL i32* expert,
                      GLOBAL i32* offsets, GLOBAL i32* tiles, const RouteChoice c) {
  const u32 lane = lane_id(), wave = wave_id(), pairs = c.tokens * c.k;
  LOCAL u16* sorted_by = (LOCAL u16*)RouteTiles::ids;
  for (u32 first = 0; first < c.tokens; first += ROUTE_WAVES) {
    const u32 token = smaller(first + wave, c.tokens - 1);
    u32 id = 0;
    f32 weight = 0.0f;
    choose<PER_LANE>(logits + (u64)token * c.columns, bias, c, RouteTiles::choice, id, weight);
    weight = weight_of(id, weight, bias, c);
    if (positions[token] < 0) {
      id = c.experts;
      weight = 0.0f;
    }
    if (first + wave < c.tokens && lane < c.k) {
      ids[token * c.k + lane] = (i32)id;
      weights[token * c.k + lane] = weight;
      sorted_by[token * c.k + lane] = (u16)id;
    }
  }
  if (thread_id() < (8 - pairs % 8) % 8) sorted_by[pairs + thread_id()] = 0xffffu;  // no expert
  barrier();
  sort_pairs(c, places, order, expert, offsets, tiles);
}
