// fused_gemv.h on NVIDIA's matrix units: the loop is stripes.h's. Gate and up share a stripe, eight rows of each.
// Weights of several formats have workgroups of their own.
#pragma once

#include "fused_gemv.h"
#include "rows_of_x.h"
#include "stripe_loop.h"

// Where eight rows of a stripe are: from `first` on of a tensor, and their results' first column.
template <class W>
struct EightRows {
  W weight;
  FusedRows rows;
  u32 first, column;
};

// Rows of a fused input: loads that need nothing else come early.
template <class IN>
struct RowsOfInput {
  static constexpr bool NORMED = IN::NORM == INPUT_RMS, WHOLE = IN::SUM != NO_SUM || IN::LAYER;
  struct Nothing {};
  struct Normed {
    typename IN::Raw x;
    f32x4 weight;
  };
  friend inline __attribute__((always_inline)) void asked(Nothing&) {}
  friend inline __attribute__((always_inline)) void asked(Normed& v) {
    asked(v.x);
    asked(v.weight);
  }
  using Raw = If<WHOLE, Nothing, If<NORMED, Normed, typename IN::Raw>>;
  IN& in;
  const bool& stored;
  MEMBER Raw load(u32 row, u32 i) const {
    if constexpr (WHOLE) return {};
    else if constexpr (NORMED) return {in.raw(row, i), in.weight_at(i)};
    else return in.raw(row, i);
  }
  MEMBER f32x4 finish(const Raw& raw, u32 row, u32 i) const {
    if constexpr (WHOLE) return in.at(row, i, in.weight_at(i), stored);
    else if constexpr (NORMED) return in.finished(row, widen4(raw.x), raw.weight);
    else return widen4(raw);
  }
};

// The eights `share` of weights of one format, whose results begin at `first_column`.
template <u32 SHARING, u32 M, class FORM, class X, class Y, class WEIGHTS>
DEVICE void stripes_of_format(const GLOBAL X* x, GLOBAL Y* y, const FusedShape<X> s, const WEIGHTS weights,
                              const StripeShare share, u32 first_column) {
  using W = typename WEIGHTS::W;
  using S = Stripes<M, W, X, SHARING>;
  const auto& of = weights.rows;
  const auto eight = [&](u32 i) __attribute__((always_inline)) {
    EightRows<W> at = {weights.tensor(0, s.k), of[0], i * 8, first_column};
    if constexpr (!FORM::GATED) {
      u32 before = ceil_div(of[0].n, 8), column = first_column + of[0].n;
      UNROLL for (u32 t = 1; t < WEIGHTS::COUNT; t++) {
        if (i >= before) at = {weights.tensor(t, s.k), of[t], (i - before) * 8, column};
        before += ceil_div(of[t].n, 8);
        column += of[t].n;
      }
    }
    return at;
  };
  // Of stripe `stripe` of this workgroup rows 0 to 7, and 8 to 15, of which there may be none.
  const auto low_of = [&](u32 stripe) __attribute__((always_inline)) {
    return eight(share.begin + (FORM::GATED ? 1 : 2) * stripe);
  };
  const auto high_of = [&](u32 stripe) __attribute__((always_inline)) {
    if constexpr (FORM::GATED) {
      const u32 i = share.begin + stripe;
      return EightRows<W>{weights.tensor(FORM::GATED, s.k), of[FORM::GATED], i * 8, first_column};
    } else {
      const u32 i = share.begin + 2 * stripe + 1;
      EightRows<W> at = eight(smaller(i, share.end - 1));
      if (i >= share.end) at.first = at.rows.n;
      return at;
    }
  };

  FusedInput<M, S::THREADS, FORM::SUM, FORM::NORM, X> in = {x, s.m, s.k, s.norm, s.norm_bias, s.sum};
  bool stored = false;
  PutRows<S, RowsOfInput<decltype(in)>> fill = {{in, stored}, s.m, s.k};
  const auto rows_of = [&](u32 stripe) __attribute__((always_inline)) {
    const EightRows<W> low = low_of(stripe), high = high_of(stripe);
    const u32 first = low.rows.first, later = high.rows.first;
    return StripeRows<W>{low.weight, high.weight, first + low.first, first + low.rows.n, later + high.first,
                         later + high.rows.n};
  };
  f32 factor[M];
  const auto finish = [&](u32 begin, u32 stripes) __attribute__((always_inline)) {
    if (FORM::NORM == INPUT_RMS && !stored) in.factors(factor);
    stored = true;
    S::each_result(stripes, s.m, [&](u32 stripe, u32 row, u32 of_x, f32 low, f32 high)
                                            __attribute__((always_inline)) {
      const EightRows<W> at[2] = {low_of(begin + stripe), high_of(begin + stripe)};
      f32 total[2] = {low * SpanScales<W>::whole(at[0].weight), high * SpanScales<W>::whole(at[1].weight)}, by = 1.0f;
      if constexpr (FORM::NORM == INPUT_RMS) UNROLL for (u32 i = 0; i < M; i++) by = of_x == i ? factor[i] : by;
      UNROLL for (u32 r = 0; r < 2; r++) {
        total[r] *= by;
        if constexpr (FORM::BIASED) total[r] += at[r].rows.bias[smaller(at[r].first + row, at[r].rows.n - 1)];
      }
      UNROLL for (u32 r = 0; r < (FORM::GATED ? 1 : 2); r++) {
        if (at[r].first + row >= at[r].rows.n) continue;
        f32 value = total[r];
        if (s.activation != NO_ACTIVATION) {
          value = activated(value, FORM::GATED ? total[1] : 1.0f, s.activation, s.limit);
        }
        const u64 to = (u64)of_x * s.stride + at[r].column + at[r].first + row;
        if constexpr (FORM::ADDED) value = widen(s.residual[to]) + value * s.scale;
        store(y, to, value);
      }
    });
  };
  in.begin();
  const u32 eights = share.end - share.begin;
  StripeLoop<S>::each_stripe(FORM::GATED ? eights : ceil_div(eights, 2), s.k, rows_of, fill, finish);
}

// weights: those of each format. Of several, s.lanes has the workgroups at which the second and the third format begin,
// 16 bits each.
template <u32 SHARING, u32 M, class FORM, class X, class Y, class... WEIGHTS>
DEVICE void fused_in_stripes(const GLOBAL X* x, GLOBAL Y* y, const FusedShape<X> s, const WEIGHTS... weights) {
  constexpr u32 FORMATS = sizeof...(WEIGHTS);
  static_assert(FORMATS == 1 || !FORM::GATED);
  u32 format = 0, begin = 0, column = s.column;
  const auto visit = [&](const auto& of) __attribute__((always_inline)) {
    const u32 end = format + 1 == FORMATS ? s.workgroups : s.lanes >> 16 * format & 0xFFFF;
    if (FORMATS == 1 || (workgroup_id() >= begin && workgroup_id() < end)) {
      const StripeShare share(of.blocks(FORM::GATED, 8), end - begin, workgroup_id() - begin);
      stripes_of_format<SHARING, M, FORM>(x, y, s, of, share, column);
    }
    format++, begin = end, column += of.columns();
  };
  (visit(weights), ...);
}
template <u32 M, class FORM, class X, class Y, class... WEIGHTS>
DEVICE void fused_stripes(const GLOBAL X* x, GLOBAL Y* y, const FusedShape<X> s, const WEIGHTS... weights) {
  fused_in_stripes<8, M, FORM>(x, y, s, weights...);
}
template <u32 M, class FORM, class X, class Y, class... WEIGHTS>
DEVICE void fused_deep_stripes(const GLOBAL X* x, GLOBAL Y* y, const FusedShape<X> s, const WEIGHTS... weights) {
  fused_in_stripes<16, M, FORM>(x, y, s, weights...);
}
