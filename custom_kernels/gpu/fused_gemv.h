// One to three matmuls of up to M rows of x with what stands before and after them: see custom_kernels/ops/fused_matmul.py.
// The loop is gemv.h's, what it takes in fused_input.h's. With two weights and an activation a lane's two weight rows are
// one of gate and one of up. Weights may differ in format: a block of rows has one of them.
#pragma once

#include "activation.h"
#include "fused_input.h"
#include "gemv.h"

// Which operands a kernel has, beside x and COUNT weights.
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

// Weights of one format, side by side (of gate and up: both). PARTS: Parts, or WholeParts.
template <class W_, u32 COUNT_, class PARTS_>
struct FusedWeights {
  using W = W_;
  using PARTS = PARTS_;
  static constexpr u32 COUNT = COUNT_;
  PARTS parts[COUNT];
  FusedRows rows[COUNT];

  // Weight t, of k columns.
  MEMBER W tensor(u32 t, u32 k) const { return tensor(parts[t], k); }
  MEMBER W tensor(const PARTS& of, u32 k) const {
    W made(parts_of(of));
    made.runs = k / W::RUN;
    return made;
  }

  // How many blocks of rows they have; of gate and up one stands for both.
  MEMBER u32 blocks(bool gated, u32 of_block) const {
    u32 count = 0;
    UNROLL for (u32 t = 0; t < COUNT; t++) count += gated && t ? 0 : ceil_div(rows[t].n, of_block);
    return count;
  }
  MEMBER u32 columns() const {
    u32 count = 0;
    UNROLL for (u32 t = 0; t < COUNT; t++) count += rows[t].n;
    return count;
  }
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

// What a workgroup does, block after block.
template <u32 M, class FORM, class X, class Y>
struct FusedGemv {
  static constexpr u32 STRIDE = STAGED / M / 4, R = 2, RESULTS = FORM::GATED ? 1 : R;
  GLOBAL Y* y;
  const FusedShape<X> s;
  FusedInput<M, GEMV_THREADS, FORM::SUM, FORM::NORM, X> in;
  bool stored = false, there = false, begun = false;  // there: all of x is in local memory
  f32 factor[M] = {};

  MEMBER u32 columns_of_workgroup() const { return GEMV_WAVES * (WAVE / s.lanes) * RESULTS; }
  // The first result of a lane in a block.
  MEMBER u32 first_of(u32 block) const {
    return block * columns_of_workgroup() + (wave_id() * (WAVE / s.lanes) + lane_id() / s.lanes) * RESULTS;
  }

  // sum += x times one row of each of C weights; live: the lane has rows.
  template <u32 C, class W>
  MEMBER void add(const W (&tensor)[C], const u32 (&rows)[C], bool live, f32 (&sum)[M][C]) {
    const u32 runs = s.k / W::RUN;
    const auto fill = [&](u32 start, u32 count) __attribute__((always_inline)) {
      // A column belongs to one thread whatever M is, so that squares are summed in one order.
      for (u32 i = (thread_id() - start) % GEMV_THREADS; i < count; i += GEMV_THREADS) {
        const f32x4 weight = in.weight_at(start + i);
        UNROLL for (u32 row = 0; row < M; row++) {
          Stage::x[row * staged(STRIDE) + staged(i)] = in.at(row, start + i, weight, stored);
        }
      }
    };
    const bool fresh = !there;
    if (fresh) UNROLL for (u32 i = 0; i < M; i++) in.squares[i] = 0.0f;
    gemv_block<M, C, W>(tensor, rows, live ? runs : 0, runs, s.lanes, begun, there, fill, sum);
    if (FORM::NORM == INPUT_RMS && fresh) in.factors(factor);
    stored = begun = true;
  }

  MEMBER void finish(u32 first, const FusedRows (&rows_of)[R], u32 column, const f32 (&sum)[M][R]) const {
    const u32 part = lane_id() % s.lanes, n = rows_of[0].n, m = here(s.m), stride = here(s.stride);
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
        if (part != 0 || i >= m || first + r >= n) continue;
        f32 value = total[r];
        if (s.activation != NO_ACTIVATION) value = activated(value, FORM::GATED ? total[1] : 1.0f, s.activation, s.limit);
        const u64 at = (u64)i * stride + column + first + r;
        if constexpr (FORM::ADDED) value = widen(s.residual[at]) + value * s.scale;
        store(y, at, value);
      }
    }
  }

  // Block `block` of weights of one format, whose results begin at `column`.
  template <class WEIGHTS>
  MEMBER void block(const WEIGHTS& of, u32 block, u32 column) {
    using W = typename WEIGHTS::W;
    typename WEIGHTS::PARTS chosen = of.parts[0];
    FusedRows rows_of[R] = {of.rows[0], of.rows[FORM::GATED]};
    u32 local = block;
    if constexpr (!FORM::GATED) {
      u32 left = block, before = column;
      UNROLL for (u32 t = 0; t < WEIGHTS::COUNT; t++) {
        const u32 own = ceil_div(of.rows[t].n, columns_of_workgroup());
        if (left < own) {
          chosen = of.parts[t];
          rows_of[0] = rows_of[1] = of.rows[t];
          local = left;
          column = before;
          left = ~0u;
        } else if (left != ~0u) {
          left -= own;
        }
        before += of.rows[t].n;
      }
    }
    const W low = of.tensor(chosen, s.k), tensor[R] = {low, FORM::GATED ? of.tensor(FORM::GATED, s.k) : low};
    const u32 first = first_of(local), n = rows_of[0].n;
    u32 rows[R];  // a row past the end repeats the last one, and is not stored
    UNROLL for (u32 r = 0; r < R; r++) rows[r] = rows_of[r].first + smaller(first + (FORM::GATED ? 0 : r), n - 1);
    f32 sum[M][R] = {};
    add<R, W>(tensor, rows, first < n, sum);
    finish(first, rows_of, column, sum);
  }

  // Block `block` of gate and up, which differ in format: one after the other.
  template <class GATE, class UP>
  MEMBER void block_of_two(const GATE& gate, const UP& up, u32 block) {
    const FusedRows rows_of[R] = {gate.rows[0], up.rows[0]};
    const u32 first = first_of(block), n = rows_of[0].n, row = smaller(first, n - 1);
    f32 of_gate[M][1] = {}, of_up[M][1] = {}, sum[M][R];
    add<1, typename GATE::W>({gate.tensor(0, s.k)}, {gate.rows[0].first + row}, first < n, of_gate);
    add<1, typename UP::W>({up.tensor(0, s.k)}, {up.rows[0].first + row}, first < n, of_up);
    UNROLL for (u32 i = 0; i < M; i++) sum[i][0] = of_gate[i][0], sum[i][1] = of_up[i][0];
    finish(first, rows_of, s.column, sum);
  }
};

// weights: those of each format.
template <u32 M, class FORM, class X, class Y, class... WEIGHTS>
DEVICE void fused_gemv(const GLOBAL X* x, GLOBAL Y* y, const FusedShape<X> s, WEIGHTS... weights) {
  FusedGemv<M, FORM, X, Y> gemv = {y, s, {x, s.m, s.k, s.norm, s.norm_bias, s.sum}};
  gemv.in.begin();
  const u32 of_block = gemv.columns_of_workgroup();
  if constexpr (FORM::GATED && sizeof...(WEIGHTS) == 2) {
    const auto blocks = [&](const auto& gate, const auto&) { return gate.blocks(true, of_block); };
    const u32 count = blocks(weights...);
    for (u32 block = workgroup_id(); block < count; block += s.workgroups) gemv.block_of_two(weights..., block);
  } else {
    const u32 count = (weights.blocks(FORM::GATED, of_block) + ...);
    for (u32 block = workgroup_id(); block < count; block += s.workgroups) {
      u32 left = block, column = s.column;
      const auto visit = [&](const auto& of) __attribute__((always_inline)) {
        if constexpr (sizeof...(WEIGHTS) == 1) {
          gemv.block(of, block, column);
        } else {
          const u32 own = of.blocks(false, of_block);
          if (left < own) {
            gemv.block(of, left, column);
            left = ~0u;
          } else if (left != ~0u) {
            left -= own;
          }
          column += of.columns();
        }
      };
      (visit(weights), ...);
    }
  }
}
