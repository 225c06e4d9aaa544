// The last step of a mixture of experts: of one token the matmul over all its experts and their weighted sum at once, of
// more tokens the weighted sum of what other kernels have multiplied. See custom_kernels/ops/moe_matmul.py.
#pragma once

#include "moe_gemv.h"

inline constexpr u32 MOST_CHOSEN = 16, COMBINE_THREADS = 256;

struct Chosen {
  LOCAL_ARRAY static inline u32 first_row[MOST_CHOSEN];  // of the expert's weight
  LOCAL_ARRAY static inline u32 of_h[MOST_CHOSEN];       // its row of h, in float4
  LOCAL_ARRAY static inline f32 weight[MOST_CHOSEN];
};

// One token: of each of its experts the sums that moe_rows_gemv has, then what moe_combine makes of them, in the same
// order: a token has the same result in company.
template <class W, class X>
DEVICE void moe_down_gemv(const GLOBAL X* h, const GLOBAL f32* weights, const ExpertRouting routing, W weight,
                          const GLOBAL f32* bias, GLOBAL X* y, const ExpertShape s, u32 biased) {
  constexpr u32 R = 2;
  const u32 k = routing.k, lane = lane_id(), part = lane % s.lanes;
  if ((u32)routing.expert[0] >= s.experts) {  // padding: no expert at all
    const u32 threads = s.workgroups * GEMV_THREADS;
    for (u32 i = workgroup_id() * GEMV_THREADS + thread_id(); i < s.n; i += threads) store(y, i, 0.0f);
    return;
  }
  if (thread_id() < k) {
    const u32 j = (u32)routing.order[thread_id()];
    Chosen::first_row[j] = (u32)routing.expert[thread_id()] * s.n;
    Chosen::of_h[j] = thread_id() * (s.columns / 4);
    Chosen::weight[j] = weights[j];
  }
  barrier();
  weight.runs = s.columns / W::RUN;
  const u32 rows_of_block = GEMV_WAVES * (WAVE / s.lanes) * R;
  for (u32 block = workgroup_id(); block * rows_of_block < s.n; block += s.workgroups) {
    const u32 row = block * rows_of_block + (wave_id() * (WAVE / s.lanes) + lane / s.lanes) * R;
    f32 total[R] = {};
    for (u32 j = 0; j < k; j++) {
      const u32 first = Chosen::first_row[j], of_h = Chosen::of_h[j];
      u32 rows[R];
      UNROLL for (u32 r = 0; r < R; r++) rows[r] = first + smaller(row + r, s.n - 1);
      const auto ask = [&](u32 run, typename W::Stored(&stored)[R]) __attribute__((always_inline)) {
        ask_for_runs(weight, rows, run, stored);
      };
      const auto x_at = [&](u32, u32 at) __attribute__((always_inline)) { return load4(h, of_h + at); };
      f32 sum[1][R] = {};
      bool there = false;
      sum_runs<1, R, W>(weight.runs, s.lanes, true, row < s.n, there, ask, x_at, sum);
      UNROLL for (u32 r = 0; r < R; r++) {
        f32 value = widen(Element<X>::of(sum_over(sum[0][r], s.lanes)));
        if (biased && part == 0) value += bias[rows[r]];
        total[r] = multiply_add(value, Chosen::weight[j], total[r]);
      }
    }
    UNROLL for (u32 r = 0; r < R; r++) {
      if (part == 0 && row + r < s.n) store(y, row + r, total[r]);
    }
  }
}

// Where gate and up are not multiplied together: sorted[s] = the row of x of sorted row s, four numbers a thread.
template <class X>
DEVICE void moe_gather(const GLOBAL X* x, const ExpertRouting routing, GLOBAL X* sorted, u32 experts, u32 pairs,
                       u32 columns) {
  const u32 item = workgroup_id() * COMBINE_THREADS + thread_id(), row = item / (columns / 4);
  if (row >= pairs || (u32)routing.expert[row] >= experts) return;
  const u32 at = item % (columns / 4);
  ((GLOBAL Four<X>*)sorted)[item] = ask4(x, routing.token(row) * (columns / 4) + at);
}
// ... and their activation. A thread makes one number.
template <class X>
DEVICE void moe_activate(const GLOBAL X* gate, const GLOBAL X* up, const GLOBAL i32* expert, const GatedBy gated,
                         GLOBAL X* h, u32 experts, u32 pairs, u32 n) {
  const u32 item = workgroup_id() * COMBINE_THREADS + thread_id(), row = item / n;
  if (row >= pairs || (u32)expert[row] >= experts) return;
  store(h, item, gated(widen(gate[item]), widen(up[item]), (u32)expert[row] * n + item % n));
}

// y[t] = sum over j of weights[t, j] * (down[places[t, j]] + the bias of its expert). A thread makes one number.
template <class X>
DEVICE void moe_combine(const GLOBAL X* down, const GLOBAL f32* weights, const GLOBAL i32* places,
                        const GLOBAL i32* expert, const GLOBAL f32* bias, GLOBAL X* y, u32 tokens, u32 k, u32 experts,
                        u32 n, u32 biased) {
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
  store(y, item, total);
}
