// What comes after the matmuls of many rows of x: bias, activation, residual. See custom_kernels/ops/fused_matmul.py.
#pragma once

#include "activation.h"
#include "elements.h"

inline constexpr u32 FINISH_THREADS = 256;
enum FinishFlags : u32 { BIASED = 1, ADDED = 2, GATED = 4 };

// Columns [first, first + N) of rows that are `stride` wide, and their bias.
template <class X>
struct Columns {
  const GLOBAL X* y;
  const GLOBAL f32* bias;
  u32 first, stride;
};

// The result is columns [column, column + n) of rows that are `stride` wide; the residual has the same shape.
struct FinishShape {
  u32 m, n, column, stride, flags, activation;
  f32 limit, scale;
};

template <class X>
DEVICE f32 value_of(const Columns<X> c, u32 row, u32 column, u32 flags) {
  const f32 value = widen(c.y[(u64)row * c.stride + c.first + column]);
  return flags & BIASED ? value + c.bias[column] : value;
}

// With GATED, `up` counts; the residual where ADDED. A thread an element.
template <class X>
DEVICE void finish(const Columns<X> gate, const Columns<X> up, const GLOBAL X* residual, GLOBAL X* out,
                   const FinishShape s) {
  const u32 i = workgroup_id() * FINISH_THREADS + thread_id();
  if (i >= s.m * s.n) return;
  const u32 row = i / s.n, column = i % s.n;
  f32 value = value_of(gate, row, column, s.flags);
  if (s.activation != NO_ACTIVATION) {
    const f32 other = s.flags & GATED ? value_of(up, row, column, s.flags) : 1.0f;
    value = activated(value, other, s.activation, s.limit);
  }
  const u64 at = (u64)row * s.stride + s.column + column;
  store(out, at, s.flags & ADDED ? widen(residual[at]) + value * s.scale : value);
}
