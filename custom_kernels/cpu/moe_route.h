// Router logits -> experts and weights of a token, and tokens sorted by expert: see ops/moe_route.py.
#pragma once
#include "functions.h"

constexpr int64_t MOST_EXPERTS = 512;  // whole vectors
enum MoeScoring : int64_t { MOE_SOFTMAX, MOE_SELECTED, MOE_SIGMOID, MOE_SELECTED_SIGMOID, MOE_SPARSE_MIXER };
enum MoeBias : int64_t { MOE_NO_BIAS, MOE_CORRECTION, MOE_FACTORS };
constexpr int32_t TAKEN = INT32_MIN;  // below the order of any number

struct MoeChoice {
  int64_t experts, k, scoring, normalize, groups, group_k, group_top, biased;
  float scale, jitter, logit_scale;
};

INLINE F infinite() { return F(-__builtin_inff()); }
INLINE F logistic(F x) { return 1.0f / (1.0f + exp(__builtin_elementwise_min(-x, F(88.0f)))); }

// The first n lanes from memory, the others `other`.
INLINE F load_part_or(const float* p, int64_t n, F other) {
  return lane_index() < I(int32_t(n)) ? load_part(p, min(n, W)) : other;
}

// Whole numbers in the order of the floats; -0 equals 0, and NaN counts as -infinity.
INLINE I order_of(F v) {
  v = v == v ? v + 0.0f : infinite();
  const I bits = bits_of(v);
  return bits ^ (bits >> 31 & 0x7fffffff);
}

// In place: values -> softmax(values).
INLINE void softmax(float* values, int64_t n) {
  F peak = infinite(), total = 0.0f;
  for (int64_t i = 0; i < n; i += W) {
    const F v = load_part_or(values + i, n - i, infinite());
    peak = v > peak ? v : peak;
  }
  peak = splat(largest(peak));
  for (int64_t i = 0; i < n; i += W) {
    const F e = exp(load_part_or(values + i, n - i, infinite()) - peak);
    total += e;
    store_part(values + i, e, min(n - i, W));
  }
  total = splat(sum(total));
  for (int64_t i = 0; i < n; i += W) store_part(values + i, load_part(values + i, min(n - i, W)) / total, min(n - i, W));
}

// Index of the largest of n keys, a multiple of W: the lowest of equals, which is taken then.
INLINE int64_t take_largest(int32_t* keys, int64_t n) {
  I top = TAKEN;
  for (int64_t i = 0; i < n; i += W) top = __builtin_elementwise_max(top, load<I>(keys + i));
  const int32_t best = __builtin_reduce_max(top);
  int64_t i = 0;
  while (!__builtin_reduce_or(load<I>(keys + i) == I(best))) i += W;
  while (keys[i] != best) i++;
  keys[i] = TAKEN;
  return i;
}

INLINE int64_t whole_vectors(int64_t n) { return (n + W - 1) / W * W; }

// The keys of n values, and TAKEN up to a whole vector.
INLINE void keys_of(const float* values, int64_t n, int32_t* keys) {
  for (int64_t i = 0; i < n; i += W) {
    const I key = order_of(load_part(values + i, min(n - i, W)));
    store(keys + i, lane_index() < I(int32_t(min(n - i, W))) ? key : I(TAKEN));
  }
}

// Puts -inf on the experts of groups that are not among the best `group_k`.
static void choose_groups(float* choice, const MoeChoice& c) {
  const int64_t size = c.experts / c.groups;
  alignas(64) float best[MOST_EXPERTS];
  alignas(64) int32_t keys[MOST_EXPERTS];
  for (int64_t g = 0; g < c.groups; g++) {
    keys_of(choice + g * size, size, keys);
    best[g] = 0;
    for (int64_t j = 0; j < min(c.group_top, size); j++) best[g] += choice[g * size + take_largest(keys, whole_vectors(size))];
  }
  keys_of(best, c.groups, keys);
  for (int64_t j = 0; j < c.group_k; j++) take_largest(keys, whole_vectors(c.groups));
  for (int64_t e = 0; e < c.experts; e++) {
    if (keys[e / size] != TAKEN) choice[e] = -__builtin_inff();
  }
}

// SparseMixer's weights of the chosen experts, best first. left: all logits, which are changed.
static void sparse_mixer(const float* logits, float* left, const MoeChoice& c, const int32_t* ids, float* weights) {
  for (int64_t j = 0; j < c.k; j++) {
    const F best = splat(logits[ids[j]]);
    F total = 0.0f;
    for (int64_t e = 0; e < c.experts; e += W) {
      const F v = load_part_or(logits + e, c.experts - e, infinite());
      const F size = __builtin_elementwise_abs(v), of = size > best ? size : best;
      const F near = exp(load_part_or(left + e, c.experts - e, infinite()) - best);
      total += (best - v) / of > 2.0f * c.jitter ? F(0.0f) : near;
    }
    weights[j] = 1.0f / sum(total);
    left[ids[j]] = -__builtin_inff();
  }
}

// bias: a number for each expert, where the choice is `biased`.
static void route_row(const float* logits, const float* bias, const MoeChoice& c, int32_t* ids, float* weights) {
  alignas(64) float scores[MOST_EXPERTS], choice[MOST_EXPERTS];
  alignas(64) int32_t keys[MOST_EXPERTS];
  for (int64_t e = 0; e < c.experts; e += W) {
    const F v = load_part(logits + e, min(c.experts - e, W)) * c.logit_scale;
    store(scores + e, c.scoring == MOE_SIGMOID ? logistic(v) : v);
  }
  if (c.scoring == MOE_SOFTMAX) softmax(scores, c.experts);
  for (int64_t e = 0; e < c.experts; e += W) {
    F v = load<F>(scores + e);
    if (c.biased == MOE_CORRECTION) v += load_part(bias + e, min(c.experts - e, W));
    store(choice + e, v == v ? v : infinite());
  }
  if (c.groups > 1) choose_groups(choice, c);
  keys_of(choice, c.experts, keys);
  for (int64_t j = 0; j < c.k; j++) {
    ids[j] = int32_t(take_largest(keys, whole_vectors(c.experts)));
    weights[j] = scores[ids[j]];
  }
  if (c.scoring == MOE_SELECTED) softmax(weights, c.k);
  if (c.scoring == MOE_SPARSE_MIXER) sparse_mixer(scores, choice, c, ids, weights);
  float total = 0;
  for (int64_t j = 0; j < c.k; j++) {
    if (c.scoring == MOE_SELECTED_SIGMOID) weights[j] = logistic(splat(weights[j]))[0];
    total += weights[j];
  }
  for (int64_t j = 0; j < c.k; j++) {
    weights[j] = (c.normalize ? weights[j] / (total + 1e-20f) : weights[j]) * c.scale;
    if (c.biased == MOE_FACTORS) weights[j] *= bias[ids[j]];
  }
}

// All tokens; rows of padding get the expert `experts` and weights of 0. columns: of logits.
static void route_rows(const float* logits, const int32_t* positions, const float* bias, const MoeChoice& c,
                       int64_t tokens, int64_t columns, int32_t* ids, float* weights) {
  for (int64_t t = 0; t < tokens; t++, ids += c.k, weights += c.k) {
    if (positions[t] >= 0) {
      route_row(logits + t * columns, bias, c, ids, weights);
    } else {
      for (int64_t j = 0; j < c.k; j++) ids[j] = int32_t(c.experts), weights[j] = 0.0f;
    }
  }
}

// A counting sort of the pairs by expert; padding (expert E) comes last. at(place, pair) is told each pair's place.
template <class At>
INLINE void sort_pairs(const int32_t* ids, int64_t pairs, int64_t experts, int32_t* offsets, const At& at) {
  int32_t next[MOST_EXPERTS + 1];
  for (int64_t e = 0; e <= experts; e++) next[e] = 0;
  for (int64_t p = 0; p < pairs; p++) next[ids[p]]++;
  int32_t before = 0;
  for (int64_t e = 0; e <= experts; e++) {
    const int32_t count = next[e];
    next[e] = offsets[e] = before;
    before += count;
  }
  for (int64_t p = 0; p < pairs; p++) at(next[ids[p]]++, p);
}

#define ROUTE_SCALARS                                                                                              \
  int64_t scoring, int64_t normalize, int64_t scale_bits, int64_t groups, int64_t group_k, int64_t group_top,      \
      int64_t biased, int64_t jitter_bits, int64_t logit_scale_bits, int64_t columns
#define ROUTE_CHOICE                                                                              \
  MoeChoice {                                                                                     \
    experts, k, scoring, normalize, groups, group_k, group_top, biased,                           \
        __builtin_bit_cast(float, int32_t(scale_bits)), __builtin_bit_cast(float, int32_t(jitter_bits)), \
        __builtin_bit_cast(float, int32_t(logit_scale_bits))                                      \
  }
