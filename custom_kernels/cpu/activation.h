// What becomes of the results of gate and up: see `activate` in ops/moe_matmul.py.
#pragma once
#include "functions.h"

enum Activation : int64_t { SILU, GELU, CLAMPED };

INLINE F sigmoid(F x) { return 1.0f / (1.0f + exp(__builtin_elementwise_min(-x, F(88.0f)))); }

INLINE F activated(F gate, F up, int64_t activation, float limit) {
  if (activation == SILU) return gate * sigmoid(gate) * up;
  if (activation == GELU) {
    const F inner = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
    return 0.5f * gate * (1.0f + tanh(inner)) * up;
  }
  gate = __builtin_elementwise_min(gate, F(limit));
  up = __builtin_elementwise_max(__builtin_elementwise_min(up, F(limit)), F(-limit));
  return gate * sigmoid(1.702f * gate) * (up + 1.0f);
}
