// What becomes of the results of gate and up: see `activate` in custom_kernels/ops/moe_matmul.py.
#pragma once

#include "device.h"

enum Activation : u32 { SILU, GELU, CLAMPED, NO_ACTIVATION };

DEVICE f32 exponential(f32 x) { return exp2_fast(1.44269504088896f * x); }
// Below -87 it is no normal number any more.
DEVICE f32 logistic(f32 x) { return x < -87.0f ? 0.0f : reciprocal_fast(1.0f + exponential(-x)); }

// Without branches, since a lane has many: what differs is chosen.
DEVICE f32 activated(f32 gate, f32 up, u32 activation, f32 limit) {
  const bool clamped = activation == CLAMPED;
  gate = clamped && gate > limit ? limit : gate;  // NaN stays NaN
  up = clamped && up > limit ? limit : clamped && up < -limit ? -limit : up;
  // (1 + tanh x) / 2 is the logistic function of 2 x
  const f32 cubic = 1.5957691216f * (gate + 0.044715f * gate * gate * gate);
  const f32 factor = clamped ? 1.702f : 1.0f;
  return gate * logistic(activation == GELU ? cubic : factor * gate) * (up + (clamped ? 1.0f : 0.0f));
}
