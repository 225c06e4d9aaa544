// What becomes of the results of gate and up: see `activate` in custom_kernels/ops/moe_matmul.py.
#pragma once

#include "device.h"

enum Activation : u32 { SILU, GELU, CLAMPED, NO_ACTIVATION };

DEVICE f32 exponential(f32 x) { return exp2_fast(1.44269504088896f * x); }
// Below -87 it is no normal number any more.
DEVICE f32 logistic(f32 x) { return x < -87.0f ? 0.0f : 1.0f / (1.0f + exponential(-x)); }

DEVICE f32 activated(f32 gate, f32 up, u32 activation, f32 limit) {
  if (activation == SILU) return gate * logistic(gate) * up;
  if (activation == GELU) {  // (1 + tanh x) / 2 is the logistic function of 2 x
    return gate * logistic(1.5957691216f * (gate + 0.044715f * gate * gate * gate)) * up;
  }
  gate = gate > limit ? limit : gate;  // NaN stays NaN
  up = up > limit ? limit : up < -limit ? -limit : up;
  return gate * logistic(1.702f * gate) * (up + 1.0f);
}
