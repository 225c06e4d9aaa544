// y[m, n] = sum over k of x[m, k] * weight[n, k] for up to M rows of x on NVIDIA's matrix units: see stripes.h. Each
// workgroup has an even share of the stripes.
#pragma once

#include "rows_of_x.h"

template <u32 M, u32 SIDES, u32 SHARING, class W, class X>
DEVICE void stripe_gemv(const GLOBAL X* x, W weight, GLOBAL X* y, u32 m, u32 n, u32 k, u32 workgroups) {
  using S = Stripes<M, W, X, SIDES, SHARING>;
  const StripeShare share(ceil_div(n, STRIPE), workgroups);
  weight.runs = k / W::RUN;
  const auto fill = [&](u32 first, u32 stages) __attribute__((always_inline)) {
    put_rows<S>(first, stages, m, k, [&](u32 row, u32 i) __attribute__((always_inline)) {
      return load4(x, (u64)row * (k / 4) + i);
    });
  };
  const f32 whole = SpanScales<W>::whole(weight);
  bool there = false;
  for (u32 first = share.begin; first < share.end; first += S::MOST) {
    const u32 count = smaller(S::MOST, share.end - first);
    const auto rows_of = [&](u32 stripe) __attribute__((always_inline)) {
      const u32 row = (first + stripe) * STRIPE;
      return StripeRows<W>{weight, weight, row, n, row + 8, n};
    };
    S::sum_stripes(count, k, rows_of, first != share.begin, there, fill);
    S::each_result(count, m, [&](u32 stripe, u32 row, u32 of_x, f32 low, f32 high) __attribute__((always_inline)) {
      const u32 column = (first + stripe) * STRIPE + row;
      if (column < n) store(y, (u64)of_x * n + column, low * whole);
      if (column + 8 < n) store(y, (u64)of_x * n + column + 8, high * whole);
    });
  }
}
