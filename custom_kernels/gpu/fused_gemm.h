// One to three matmuls of many rows of x with what stands after them: see custom_kernels/ops/fused_matmul.py. The operands are
// fused_gemv.h's; x is normalized already.
#pragma once

#include "fused_gemv.h"
#include "tiled_gemm.h"

// y [m, stride], from column `column` on.
template <class X>
struct FusedGemmShape {
  u32 m, k, stride, column, activation;
  f32 limit, scale;
  const GLOBAL X* residual;
};

// A row of m that is there: of those that are not different ones, since memory is slow to give all workgroups one row.
// (As `row < m ? row : smaller(row - m, m - 1)` clang 20 makes it the last row of all for NVIDIA GPUs.)
DEVICE u32 row_or_another(u32 row, u32 m) { return smaller(row - (row < m ? 0 : m), m - 1); }

// Where a result of a tensor goes: from row `first_m` of y on, from column `column`.
template <class FORM, class X>
struct FusedFinish {
  const FusedGemmShape<X>& s;
  GLOBAL X* y;
  FusedRows rows, rows_of_other;
  u32 first_m, column;

  MEMBER void operator()(u32 row, u32 at, f32 value, f32 up) const {
    if (first_m + row >= s.m || at >= rows.n) return;
    if constexpr (FORM::BIASED) {
      value += rows.bias[at];
      if constexpr (FORM::GATED) up += rows_of_other.bias[at];
    }
    if (s.activation != NO_ACTIVATION) value = activated(value, FORM::GATED ? up : 1.0f, s.activation, s.limit);
    const u64 place = (u64)(first_m + row) * s.stride + column + at;
    if constexpr (FORM::ADDED) value = widen(s.residual[place]) + value * s.scale;
    store(y, place, value);
  }
};

template <class TILE, class FORM, class X, class W, class PARTS>
DEVICE void fused_gemm(const GLOBAL X* x, GLOBAL X* y, const FusedGemmShape<X> s,
                       const FusedWeights<W, FORM::COUNT, PARTS> weights) {
  using Gemm = typename TILE::template Gemm<W, X, FORM::GATED>;
  const auto& of = weights.rows;
  const u32 tiles_m = ceil_div(s.m, Gemm::M), first_m = workgroup_id() % tiles_m * Gemm::M;
  u32 block = workgroup_id() / tiles_m, column = s.column, before = s.column;
  PARTS chosen = weights.parts[0];
  FusedRows rows = of[0];
  if constexpr (!FORM::GATED && FORM::COUNT > 1) {
    u32 left = block;
    bool found = false;
    UNROLL for (u32 i = 0; i < FORM::COUNT; i++) {
      const u32 own = ceil_div(of[i].n, Gemm::COLUMNS);
      if (!found && left < own) {
        chosen = weights.parts[i];
        rows = of[i];
        block = left;
        column = before;
        found = true;
      }
      left -= found ? 0 : own;
      before += of[i].n;
    }
  }
  const W tensor = weights.tensor(chosen, s.k), other = FORM::GATED ? weights.tensor(FORM::GATED, s.k) : tensor;
  const FusedFinish<FORM, X> finish = {s, y, rows, of[FORM::GATED], first_m, column};
  const auto source = [&](u32 row) __attribute__((always_inline)) { return row_or_another(first_m + row, s.m); };
  Gemm().run(x, tensor, other, rows.first, of[FORM::GATED].first, rows.n, s.k, block * Gemm::COLUMNS, source, finish);
}
