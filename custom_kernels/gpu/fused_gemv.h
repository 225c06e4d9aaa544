// One to three matmuls of up to M rows of x with what stands before and after them: see custom_kernels/ops/fused_matmul.py.
// The loop is gemv.h's, what it takes in fused_input.h's. With two weights and an activation a lane's two weight rows are
// one of gate and one of up.
#pragma once

#include "activation.h"
#include "fused_input.h"
#include "gemv.h"

// Which operands a kernel has, beside x and COUNT weights of one format.
template <u32 COUNT_, bool GATED_, u32 NORM_, bool BIASED_, bool ADDED_, u32 SUM_ = NO_SUM>
struct FusedForm {
  static constexpr u32 COUNT = COUNT_, NORM = NORM_, SUM = SUM_;
  static constexpr bool GATED = GATED_, BIASED = BIASED_, ADDED = ADDED_;
};

// Rows [first, first + n) of a tensor, and their bias.
struct FusedRows {
  const GLOBAL f32* bias;
  u32 first, n;
};

// y [m, stride], from column `column` on. Null are the operands that the form has not.
template <class X>
struct FusedShape {
  u32 m, k, lanes, workgroups, stride, column, activation;
  f32 limit, scale;
  RmsNorm norm;
  const GLOBAL f32* norm_bias;
  const GLOBAL X* residual;
  FusedSum<X> sum;
};

template <u32 M, class W, class FORM, class X>
DEVICE void fused_gemv(const GLOBAL X* x, W (&tensors)[FORM::COUNT], const FusedRows (&of)[FORM::COUNT],
                       GLOBAL X* y, const FusedShape<X> s) {
  constexpr u32 STRIDE = STAGED / M / 4, R = 2, RESULTS = FORM::GATED ? 1 : R;
  const u32 runs = s.k / W::RUN, part = lane_id() % s.lanes;
  const u32 columns_of_workgroup = GEMV_WAVES * (WAVE / s.lanes) * RESULTS;
  UNROLL for (u32 t = 0; t < FORM::COUNT; t++) tensors[t].runs = runs;

  f32 factor[M];
  FusedInput<M, GEMV_THREADS, FORM::SUM, FORM::NORM, X> in = {x, s.m, s.k, s.norm, s.norm_bias, s.sum};
  bool stored = false;
  const auto fill = [&](u32 start, u32 count) __attribute__((always_inline)) {
    // A column belongs to one thread whatever M is, so that squares are summed in one order.
    for (u32 i = (thread_id() - start) % GEMV_THREADS; i < count; i += GEMV_THREADS) {
      const f32x4 weight = in.weight_at(start + i);
      UNROLL for (u32 row = 0; row < M; row++) {
        Stage::x[row * staged(STRIDE) + staged(i)] = in.at(row, start + i, weight, stored);
      }
    }
  };

  in.begin();
  bool there = false;  // all of x is in local memory
  u32 blocks = 0;
  UNROLL for (u32 t = 0; t < (FORM::GATED ? 1 : FORM::COUNT); t++) blocks += ceil_div(of[t].n, columns_of_workgroup);
  for (u32 block = workgroup_id(); block < blocks; block += s.workgroups) {
    W tensor[R] = {tensors[0], tensors[FORM::GATED]};
    FusedRows rows_of[R] = {of[0], of[FORM::GATED]};
    u32 local = block, column = s.column;
    if constexpr (!FORM::GATED) {
      u32 left = block, before = s.column;
      UNROLL for (u32 t = 0; t < FORM::COUNT; t++) {
        const u32 own = ceil_div(of[t].n, columns_of_workgroup);
        if (left < own) {
          tensor[0] = tensor[1] = tensors[t];
          rows_of[0] = rows_of[1] = of[t];
          local = left;
          column = before;
          left = ~0u;
        } else if (left != ~0u) {
          left -= own;
        }
        before += of[t].n;
      }
    }
    const u32 first = local * columns_of_workgroup + (wave_id() * (WAVE / s.lanes) + lane_id() / s.lanes) * RESULTS;
    const u32 n = rows_of[0].n;
    u32 rows[R];  // a row past the end repeats the last one, and is not stored
    UNROLL for (u32 r = 0; r < R; r++) rows[r] = rows_of[r].first + smaller(first + (FORM::GATED ? 0 : r), n - 1);
    f32 sum[M][R] = {};
    const bool fresh = !there;
    if (fresh) UNROLL for (u32 i = 0; i < M; i++) in.squares[i] = 0.0f;
    gemv_block<M, R, W>(tensor, rows, first < n ? runs : 0, runs, s.lanes, block != workgroup_id(), there, fill, sum);
    if (FORM::NORM == INPUT_RMS && fresh) in.factors(factor);
    stored = true;
    UNROLL for (u32 i = 0; i < M; i++) {
      f32 total[R];
      UNROLL for (u32 r = 0; r < R; r++) {
        total[r] = sum_over(sum[i][r], s.lanes);
        if constexpr (FORM::NORM == INPUT_RMS) total[r] *= factor[i];
        if constexpr (FORM::BIASED) {  // one lane asks for it
          if (part == 0) total[r] += rows_of[r].bias[smaller(first + (FORM::GATED ? 0 : r), n - 1)];
        }
      }
      UNROLL for (u32 r = 0; r < RESULTS; r++) {
        if (part != 0 || i >= s.m || first + r >= n) continue;
        f32 value = total[r];
        if (s.activation != NO_ACTIVATION) value = activated(value, FORM::GATED ? total[1] : 1.0f, s.activation, s.limit);
        const u64 at = (u64)i * s.stride + column + first + r;
        if constexpr (FORM::ADDED) value = widen(s.residual[at]) + value * s.scale;
        store(y, at, value);
      }
    }
  }
}
