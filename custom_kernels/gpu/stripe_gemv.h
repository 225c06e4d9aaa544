// y[m, n] = sum over k of x[m, k] * weight[n, k] for up to M rows of x on NVIDIA's matrix units: see stripes.h. Each
// workgroup has an even share of the weight's rows, eight at a time.
#pragma once

#include "rows_of_x.h"
#include "stripe_loop.h"

template <u32 M, u32 SHARING, class W, class X>
DEVICE void stripe_gemv(const GLOBAL X* x, W weight, GLOBAL X* y, u32 m, u32 n, u32 k, u32 workgroups) {
  using S = Stripes<M, W, X, SHARING>;
  const StripeShare eights(ceil_div(n, 8), workgroups);
  const u32 begin = eights.begin * 8, end = smaller(eights.end * 8, n);
  weight.runs = k / W::RUN;
  const auto rows_of = [&](u32 stripe) __attribute__((always_inline)) {
    const u32 row = begin + stripe * STRIPE;
    return StripeRows<W>{weight, weight, row, end, row + 8, end};
  };
  PutRows<S, RowsOfX<X>> fill = {{x, k}, m, k};
  const auto finish = [&](u32 first, u32 count) __attribute__((always_inline)) {
    const f32 whole = SpanScales<W>::whole(weight);
    S::each_result(count, m, [&](u32 stripe, u32 row, u32 of_x, f32 low, f32 high)
                                        __attribute__((always_inline)) {
      const u32 column = begin + (first + stripe) * STRIPE + row;
      if (column < end) store(y, (u64)of_x * n + column, low * whole);
      if (column + 8 < end) store(y, (u64)of_x * n + column + 8, high * whole);
    });
  };
  StripeLoop<S>::each_stripe(ceil_div(end - begin, STRIPE), k, rows_of, fill, finish);
}
