// What comes after the matmuls of many rows of x: bias, activation, residual. See custom_kernels/ops/fused_matmul.py.
#pragma once

#include "activation.h"

inline constexpr u32 FINISH_THREADS = 256;
enum FinishFlags : u32 { BIASED = 1, ADDED = 2, GATED = 4 };

// Columns [first, first + N) of rows that are `stride` wide, and their bias.
struct Columns {
  const GLOBAL f32* y;
  const GLOBAL f32* bias;
  u32 first, stride;
};

// The result is columns [column, column + n) of rows that are `stride` wide; the residual has the same shape.
struct FinishShape {
  u32 m, n, column, stride, flags, activation;
  f32 limit, scale;
};

DEVICE f32 value_of(const Columns c, u32 row, u32 column, u32 flags) {
  const f32 value = c.y[(u64)row * c.stride + c.first + column];
  return flags & BIASED ? value + c.bias[column] : value;
}

// With GATED, `up` counts; the residual where ADDED. A thread an element.
DEVICE void finish(const Columns gate, const Columns up, const GLOBAL f32* residual, GLOBAL f32* out, const FinishShape s) {
  const u32 i = workgroup_id() * FINISH_THREADS + thread_id();
  if (i >= s.m * s.n) return;
  const u32 row = i / s.n, column = i % s.n;
  f32 value = value_of(gate, row, column, s.flags);
  if (s.activation != NO_ACTIVATION) {
    const f32 other = s.flags & GATED ? value_of(up, row, column, s.flags) : 1.0f;
    value = activated(value, other, s.activation, s.limit);
  }
  const u64 at = (u64)row * s.stride + s.column + column;
  out[at] = s.flags & ADDED ? residual[at] + value * s.scale : value;
}
