// Router logits -> experts and weights of each token, and the tokens sorted by expert: see ops/moe_route.py.
#include "export.h"
#include "functions.h"

constexpr int64_t MOST_EXPERTS = 512, MOE_TILE = 16;
enum MoeScoring : int64_t { MOE_SOFTMAX, MOE_SELECTED, MOE_SIGMOID };

INLINE float exp_of(float x) { return exp(splat(x))[0]; }

// In place: values -> softmax(values).
INLINE void softmax(float* values, int64_t n) {
  float peak = values[0], total = 0;
  for (int64_t i = 1; i < n; i++) peak = values[i] > peak ? values[i] : peak;
  for (int64_t i = 0; i < n; i++) total += values[i] = exp_of(values[i] - peak);
  for (int64_t i = 0; i < n; i++) values[i] /= total;
}

// Index of the largest of n values that are not taken: the lowest of equals. -inf counts.
INLINE int64_t take_largest(const float* values, int64_t n, bool* taken) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; i++) {
    if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
  }
  taken[best] = true;
  return best;
}

// Puts -inf on the experts of groups that are not among the best `group_k`.
static void choose_groups(float* choice, int64_t experts, int64_t groups, int64_t group_k, int64_t group_top) {
  const int64_t size = experts / groups;
  float best[MOST_EXPERTS];
  bool taken[MOST_EXPERTS];
  for (int64_t g = 0; g < groups; g++) {
    for (int64_t i = 0; i < size; i++) taken[i] = false;
    best[g] = 0;
    for (int64_t j = 0; j < min(group_top, size); j++) best[g] += choice[g * size + take_largest(choice + g * size, size, taken)];
  }
  for (int64_t g = 0; g < groups; g++) taken[g] = false;
  for (int64_t j = 0; j < group_k; j++) take_largest(best, groups, taken);
  for (int64_t e = 0; e < experts; e++) {
    if (!taken[e / size]) choice[e] = -__builtin_inff();
  }
}

struct MoeChoice {
  int64_t experts, k, scoring, normalize, groups, group_k, group_top;
  float scale;
};

static void route_row(const float* logits, const float* bias, const MoeChoice& c, int32_t* ids, float* weights) {
  float scores[MOST_EXPERTS], choice[MOST_EXPERTS];
  bool taken[MOST_EXPERTS];
  for (int64_t e = 0; e < c.experts; e++) {
    scores[e] = c.scoring == MOE_SIGMOID ? 1.0f / (1.0f + exp_of(__builtin_fminf(-logits[e], 88.0f))) : logits[e];
  }
  if (c.scoring == MOE_SOFTMAX) softmax(scores, c.experts);
  for (int64_t e = 0; e < c.experts; e++) {
    const float value = bias ? scores[e] + bias[e] : scores[e];
    choice[e] = value == value ? value : -__builtin_inff();
    taken[e] = false;
  }
  if (c.groups > 1) choose_groups(choice, c.experts, c.groups, c.group_k, c.group_top);
  float total = 0;
  for (int64_t j = 0; j < c.k; j++) {
    ids[j] = int32_t(take_largest(choice, c.experts, taken));
    weights[j] = scores[ids[j]];
  }
  if (c.scoring == MOE_SELECTED) softmax(weights, c.k);
  for (int64_t j = 0; j < c.k; j++) total += weights[j];
  for (int64_t j = 0; j < c.k; j++) weights[j] = (c.normalize ? weights[j] / (total + 1e-20f) : weights[j]) * c.scale;
}

// A counting sort of the pairs by expert; padding (expert E) comes last.
static void sort_pairs(const int32_t* ids, int64_t pairs, int64_t experts, int64_t tile_count, int32_t* places,
                       int32_t* order, int32_t* expert, int32_t* offsets, int32_t* tiles) {
  int32_t next[MOST_EXPERTS + 1];
  for (int64_t e = 0; e <= experts; e++) next[e] = 0;
  for (int64_t p = 0; p < pairs; p++) next[ids[p]]++;
  int32_t before = 0, tile = 0;
  for (int64_t e = 0; e <= experts; e++) {
    const int32_t count = next[e];
    next[e] = offsets[e] = before;
    for (int32_t i = 0; e < experts && i < count; i += MOE_TILE) tiles[tile++] = before + i;
    before += count;
  }
  for (; tile < tile_count; tile++) tiles[tile] = -1;
  for (int64_t p = 0; p < pairs; p++) {
    const int32_t place = next[ids[p]]++;
    places[p] = place;
    order[place] = int32_t(p);
    expert[place] = ids[p];
  }
}

// One workgroup. `bias` is read only where `biased`; columns: of logits, of which the first are the experts'.
KERNEL strixhlo_moe_route(BUFFER(const float, logits), BUFFER(const int32_t, positions), BUFFER(const float, bias),
                          BUFFER(int32_t, ids), BUFFER(float, weights), BUFFER(int32_t, places), BUFFER(int32_t, order),
                          BUFFER(int32_t, expert), BUFFER(int32_t, offsets), BUFFER(int32_t, tiles), int64_t tokens,
                          int64_t experts, int64_t k, int64_t scoring, int64_t normalize, int64_t scale_bits,
                          int64_t groups, int64_t group_k, int64_t group_top, int64_t biased, int64_t tile_count,
                          int64_t columns, int64_t) {
  const MoeChoice choice = {experts, k,       scoring,   normalize,
                            groups,  group_k, group_top, __builtin_bit_cast(float, int32_t(scale_bits))};
  for (int64_t t = 0; t < tokens; t++) {
    int32_t* to = AT(ids) + t * k;
    float* weight = AT(weights) + t * k;
    if (AT(positions)[t] >= 0) {
      route_row(AT(logits) + t * columns, biased ? AT(bias) : nullptr, choice, to, weight);
    } else {
      for (int64_t j = 0; j < k; j++) to[j] = int32_t(experts), weight[j] = 0.0f;
    }
  }
  sort_pairs(AT(ids), tokens * k, experts, tile_count, AT(places), AT(order), AT(expert), AT(offsets), AT(tiles));
}
