// fused_gemv.h on NVIDIA's matrix units: the loop is stripes.h's. Gate and up share a stripe, eight rows of each. Weights of
// several formats have workgroups of their own.
#pragma once

#include "fused_gemv.h"
#include "rows_of_x.h"

// A stripe's place: rows from `first` on of one tensor, or of both of gate and up, and their results' first column.
template <class W>
struct FusedStripe {
  W low, high;
  FusedRows low_rows, high_rows;
  u32 first, column;
};

// The stripes `share` of weights of one format, whose results begin at `column`.
template <u32 SIDES, u32 SHARING, u32 M, class FORM, class X, class Y, class WEIGHTS>
DEVICE void stripes_of_format(const GLOBAL X* x, GLOBAL Y* y, const FusedShape<X> s, const WEIGHTS weights,
                              const StripeShare share, u32 first_column) {
  using W = typename WEIGHTS::W;
  using S = Stripes<M, W, X, SIDES, SHARING>;
  const auto& of = weights.rows;
  const auto tensors = [&](u32 t) __attribute__((always_inline)) { return weights.tensor(t, s.k); };
  constexpr u32 ROWS = FORM::GATED ? STRIPE / 2 : STRIPE;  // of a tensor in a stripe
  const auto place = [&](u32 stripe) __attribute__((always_inline)) {
    FusedStripe<W> at = {tensors(0), tensors(FORM::GATED), of[0], of[FORM::GATED], stripe * ROWS, first_column};
    if constexpr (!FORM::GATED) {
      u32 before = ceil_div(of[0].n, ROWS), column = first_column + of[0].n;
      UNROLL for (u32 t = 1; t < WEIGHTS::COUNT; t++) {
        if (stripe >= before) at = {tensors(t), tensors(t), of[t], of[t], (stripe - before) * ROWS, column};
        before += ceil_div(of[t].n, ROWS);
        column += of[t].n;
      }
    }
    return at;
  };

  FusedInput<M, S::THREADS, FORM::SUM, FORM::NORM, X> in = {x, s.m, s.k, s.norm, s.norm_bias, s.sum};
  bool stored = false, there = false;
  const auto fill = [&](u32 first, u32 stages) __attribute__((always_inline)) {
    put_rows<S>(first, stages, s.m, s.k, [&](u32 row, u32 i) __attribute__((always_inline)) {
      return in.at(row, i, in.weight_at(i), stored);
    });
  };
  in.begin();
  f32 factor[M];
  for (u32 begin = share.begin; begin < share.end; begin += S::MOST) {
    const u32 count = smaller(S::MOST, share.end - begin);
    const auto rows_of = [&](u32 stripe) __attribute__((always_inline)) {
      const FusedStripe<W> at = place(begin + stripe);
      const u32 low = at.low_rows.first, high = at.high_rows.first, later = FORM::GATED ? 0 : 8;
      return StripeRows<W>{at.low, at.high, low + at.first, low + at.low_rows.n, high + at.first + later,
                           high + at.high_rows.n};
    };
    const bool fresh = !there;
    if (fresh) UNROLL for (u32 i = 0; i < M; i++) in.squares[i] = 0.0f;
    S::sum_stripes(count, s.k, rows_of, begin != share.begin, there, fill);
    if (FORM::NORM == INPUT_RMS && fresh) in.factors(factor);
    stored = true;
    S::each_result(count, s.m, [&](u32 stripe, u32 row, u32 of_x, f32 low, f32 high) __attribute__((always_inline)) {
      const FusedStripe<W> at = place(begin + stripe);
      f32 total[2] = {low * SpanScales<W>::whole(at.low), high * SpanScales<W>::whole(at.high)}, by = 1.0f;
      if constexpr (FORM::NORM == INPUT_RMS) UNROLL for (u32 i = 0; i < M; i++) by = of_x == i ? factor[i] : by;
      const u32 n = at.low_rows.n, first = at.first + row;
      UNROLL for (u32 r = 0; r < 2; r++) {
        total[r] *= by;
        const FusedRows& rows = r ? at.high_rows : at.low_rows;
        if constexpr (FORM::BIASED) total[r] += rows.bias[smaller(first + (FORM::GATED ? 0 : 8 * r), n - 1)];
      }
      UNROLL for (u32 r = 0; r < (FORM::GATED ? 1 : 2); r++) {
        if (first + 8 * r >= n) continue;
        f32 value = total[r];
        if (s.activation != NO_ACTIVATION) value = activated(value, FORM::GATED ? total[1] : 1.0f, s.activation, s.limit);
        const u64 to = (u64)of_x * s.stride + at.column + first + 8 * r;
        if constexpr (FORM::ADDED) value = widen(s.residual[to]) + value * s.scale;
        store(y, to, value);
      }
    });
  }
}

// weights: those of each format. Of several, s.lanes has the workgroups at which the second and the third format begin, 16
// bits each.
template <u32 SIDES, u32 SHARING, u32 M, class FORM, class X, class Y, class... WEIGHTS>
DEVICE void fused_in_stripes(const GLOBAL X* x, GLOBAL Y* y, const FusedShape<X> s, const WEIGHTS... weights) {
  constexpr u32 FORMATS = sizeof...(WEIGHTS), ROWS = FORM::GATED ? STRIPE / 2 : STRIPE;
  static_assert(FORMATS == 1 || !FORM::GATED);
  u32 format = 0, begin = 0, column = s.column;
  const auto visit = [&](const auto& of) __attribute__((always_inline)) {
    const u32 end = format + 1 == FORMATS ? s.workgroups : s.lanes >> 16 * format & 0xFFFF;
    if (FORMATS == 1 || (workgroup_id() >= begin && workgroup_id() < end)) {
      const StripeShare share(of.blocks(FORM::GATED, ROWS), end - begin, workgroup_id() - begin);
      stripes_of_format<SIDES, SHARING, M, FORM>(x, y, s, of, share, column);
    }
    format++, begin = end, column += of.columns();
  };
  (visit(weights), ...);
}
template <u32 M, class FORM, class X, class Y, class... WEIGHTS>
DEVICE void fused_stripes(const GLOBAL X* x, GLOBAL Y* y, const FusedShape<X> s, const WEIGHTS... weights) {
  fused_in_stripes<1, 8, M, FORM>(x, y, s, weights...);
}
template <u32 M, class FORM, class X, class Y, class... WEIGHTS>
DEVICE void fused_wide_stripes(const GLOBAL X* x, GLOBAL Y* y, const FusedShape<X> s, const WEIGHTS... weights) {
  fused_in_stripes<2, 8, M, FORM>(x, y, s, weights...);
}
template <u32 M, class FORM, class X, class Y, class... WEIGHTS>
DEVICE void fused_deep_stripes(const GLOBAL X* x, GLOBAL Y* y, const FusedShape<X> s, const WEIGHTS... weights) {
  fused_in_stripes<1, 16, M, FORM>(x, y, s, weights...);
}
