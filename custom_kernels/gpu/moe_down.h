// Steps of a mixture of experts of many tokens around the matmuls of other kernels: the weighted sum of each token's
// experts, and what comes between matmuls where they are not one kernel. See custom_kernels/ops/moe_matmul.py.
#pragma once

#include "moe_gemv.h"

inline constexpr u32 MOST_CHOSEN = 16, COMBINE_THREADS = 256;

// What the weighted sum of a token's experts is added to, times `scale`; x [tokens, n], or null for nothing.
template <class X>
struct Residual {
  const GLOBAL X* x;
  f32 scale;

  MEMBER f32 operator()(f32 sum, u64 at) const { return x ? multiply_add(scale, sum, widen(x[at])) : sum; }
};

// What a shared expert gives, x [tokens, n] or null, times `scale` and the sigmoid of a column of logits.
template <class X>
struct GatedShared {
  const GLOBAL X *x, *logits;
  u32 columns, column;
  f32 scale;

  MEMBER f32 operator()(f32 base, u64 at, u32 token) const {
    return x ? multiply_add(scale, logistic(widen(logits[token * columns + column])) * widen(x[at]), base) : base;
  }
};

// y = base and what the shared expert gives. A thread makes one number.
template <class X>
DEVICE void add_gated(const GLOBAL X* base, const GatedShared<X> shared, GLOBAL X* y, u32 items, u32 n) {
  const u32 item = workgroup_id() * COMBINE_THREADS + thread_id();
  if (item < items) store(y, item, shared(widen(base[item]), item, item / n));
}

// Where gate and up are not multiplied together: sorted[s] = the row of x of sorted row s, times its pair's weight where
// there are weights; four numbers a thread.
template <class X>
DEVICE void moe_gather(const GLOBAL X* x, const ExpertRouting routing, const GLOBAL f32* weights, GLOBAL X* sorted,
                       u32 experts, u32 pairs, u32 columns) {
  const u32 item = workgroup_id() * COMBINE_THREADS + thread_id(), row = item / (columns / 4);
  if (row >= pairs || (u32)routing.expert[row] >= experts) return;
  const u32 at = item % (columns / 4);
  const u32 from = routing.token(row) * (columns / 4) + at;
  if (weights) {
    store4(sorted, item, load4(x, from) * weights[(u32)routing.order[row]]);
  } else {
    ((GLOBAL Four<X>*)sorted)[item] = ask4(x, from);
  }
}
// ... and their activation. A thread makes one number.
template <class X>
DEVICE void moe_activate(const GLOBAL X* gate, const GLOBAL X* up, const GLOBAL i32* expert, const GatedBy gated,
                         GLOBAL X* h, u32 experts, u32 pairs, u32 n) {
  const u32 item = workgroup_id() * COMBINE_THREADS + thread_id(), row = item / n;
  if (row >= pairs || (u32)expert[row] >= experts) return;
  store(h, item, gated(widen(gate[item]), widen(up[item]), (u32)expert[row] * n + item % n));
}

// y[t] = sum over j of weights[t, j] * (down[places[t, j]] + the bias of its expert), added to the residual. A thread makes
// one number.
template <class X>
DEVICE void moe_combine(const GLOBAL X* down, const GLOBAL f32* weights, const GLOBAL i32* places,
                        const GLOBAL i32* expert, const GLOBAL f32* bias, const Residual<X> residual, GLOBAL X* y,
                        u32 tokens, u32 k, u32 experts, u32 n, u32 biased) {
  const u32 item = workgroup_id() * COMBINE_THREADS + thread_id();
  if (item >= tokens * n) return;
  const u32 token = item / n, column = item % n;
  f32 total = 0.0f;
  for (u32 j = 0; j < k; j++) {
    const u32 place = (u32)places[token * k + j], e = (u32)expert[place];
    if (e >= experts) continue;
    f32 value = widen(down[(u64)place * n + column]);
    if (biased) value += bias[e * n + column];
    total = multiply_add(value, weights[token * k + j], total);
  }
  store(y, item, residual(total, item));
}
