// Matmuls of a mixture of experts where each expert has few rows: the loop of gemv.h over the rows of the experts that
// were chosen, read where they are. Of few tokens moe_pairs.h goes on from here. See custom_kernels/ops/moe_matmul.py for the operands.
//
// `tiles` lists up to 16 sorted rows of one expert, which share what is read of its weight. A row is summed in an order that
// depends on its weight alone.
#pragma once

#include "gemv.h"
#include "rms_norm.h"
#include "activation.h"
#include "moe_tiles.h"

#if defined(__NVPTX__)
inline constexpr u32 RUNS_AHEAD = 4;  // of one row of x: loads under way, since a launch is short
#else
inline constexpr u32 RUNS_AHEAD = 2;
#endif

// Adds to sum[i][r] the products of x row i with weight row r, over `runs` runs that `lanes` neighbouring lanes share.
// ask(run, stored): asks for a run of the R weight rows; x_at(i, at): float4 number `at` of x row i. `shared`: the first
// of SHARERS lanes asks for all of them (see weights.h). `inside`: this lane's rows are there. `there`: all of x is in
// local memory.
template <u32 M, u32 R, class W, class Ask, class XAt>
DEVICE void sum_runs(u32 runs, u32 lanes, bool shared, bool inside, bool& there, const Ask& ask, const XAt& x_at,
                     f32 (&sum)[M][R]) {
  constexpr u32 AHEAD = M == 1 ? RUNS_AHEAD : 1;
  constexpr bool EARLY = M <= MOST_AHEAD;
  constexpr u32 STRIDE = STAGED / M / 4, PER_RUN = W::RUN / 4, RUNS_OF_STAGE = STRIDE / PER_RUN;
  static_assert(M > 1 || RUNS_OF_STAGE % (AHEAD * WAVE) == 0);
  const u32 part = lane_id() % lanes, last = inside ? runs : 0;
  typename W::Stored next[AHEAD][R];
  UNROLL for (u32 d = 0; d < AHEAD; d++) {
    if (EARLY && part + d * lanes < last) ask(part + d * lanes, next[d]);
  }
  u32 run = part;
  for (u32 start = 0; start < runs; start += RUNS_OF_STAGE) {
    const u32 end = smaller(start + RUNS_OF_STAGE, runs);
    if (!there) {
      barrier();  // nobody reads any more what was there
      for (u32 i = thread_id(); i < (end - start) * PER_RUN; i += GEMV_THREADS) {
        UNROLL for (u32 row = 0; row < M; row++) {
          Stage::x[row * staged(STRIDE) + staged(i)] = x_at(row, start * PER_RUN + i);
        }
      }
      barrier();
      there = end - start == runs;
    }
    for (; run < smaller(end, last); run += AHEAD * lanes) {
      UNROLL for (u32 d = 0; d < AHEAD; d++) {
        const u32 at = run + d * lanes;
        if (at >= smaller(end, last)) continue;
        if (!EARLY) ask(at, next[d]);
        typename W::Run now[R];
        UNROLL for (u32 r = 0; r < R; r++) {
          if constexpr (FIRST_LANE_ASKS && W::SHARERS > 1) {
            if (shared) W::share(next[d][r]);
          }
          now[r] = W::run(next[d][r]);
        }
        if (EARLY && at + AHEAD * lanes < last) ask(at + AHEAD * lanes, next[d]);
        add_run<M, R, W>(now, at - start, STRIDE, sum);
      }
    }
  }
}

// How the workgroups of a launch share its work: `workgroups` for each tile, `lanes` lanes for a weight row.
struct ExpertShape {
  u32 experts, n, columns, lanes, workgroups;
};

// Asks for a run of one row of both weights.
template <class W>
struct GateAndUp {
  const W &gate, &up;
  u32 row;

  MEMBER void operator()(u32 run, typename W::Stored (&stored)[2]) const {
    const u32 rows[1] = {row};
    ask_for_runs(gate, rows, run, (typename W::Stored(&)[1])stored[0]);
    ask_for_runs(up, rows, run, (typename W::Stored(&)[1])stored[1]);
  }
};

struct TokenRows {
  LOCAL_ARRAY static inline u32 start[8];  // of the rows of x that a tile gathers, in float4
};

// M sorted rows, `count` of them there, of expert e: h = activation(gate, up).
template <u32 M, class W, class X>
DEVICE void gate_up_rows(const GLOBAL X* x, const ExpertRouting& routing, const W& gate, const W& up,
                         const GatedBy& gated, GLOBAL X* h, const ExpertShape& s, u32 e, u32 first, u32 count) {
  const u32 rows_of_block = GEMV_WAVES * (WAVE / s.lanes), lane = lane_id();
  const W own_gate = of_expert(gate, e), own_up = of_expert(up, e);
  barrier();  // nobody reads any more what was there
  if (thread_id() < M) {
    TokenRows::start[thread_id()] = routing.token(first + smaller(thread_id(), count - 1)) * (s.columns / 4);
  }
  barrier();
  bool there = false;
  for (u32 block = workgroup_id() % s.workgroups; block * rows_of_block < s.n; block += s.workgroups) {
    const u32 row = block * rows_of_block + wave_id() * (WAVE / s.lanes) + lane / s.lanes;
    const u32 of_weight = e * s.n + smaller(row, s.n - 1);
    const GateAndUp<W> ask = {own_gate, own_up, of_weight};
    const auto x_at = [&](u32 i, u32 at) __attribute__((always_inline)) { return load4(x, TokenRows::start[i] + at); };
    f32 sum[M][2] = {};
    sum_runs<M, 2, W>(s.columns / W::RUN, s.lanes, true, row < s.n, there, ask, x_at, sum);
    UNROLL for (u32 i = 0; i < M; i++) {
      const f32 g = sum_over(sum[i][0], s.lanes), u = sum_over(sum[i][1], s.lanes);
      if (lane % s.lanes == 0 && i < count && row < s.n) store(h, (u64)(first + i) * s.n + row, gated(g, u, of_weight));
    }
  }
}

// M sorted rows, `count` of them there, of expert e: y = h times the expert's weight.
template <u32 M, class W, class X>
DEVICE void plain_rows(const GLOBAL X* h, const W& weight, GLOBAL X* y, const ExpertShape& s, u32 e, u32 first,
                       u32 count) {
  constexpr u32 R = 2;
  const u32 rows_of_block = GEMV_WAVES * (WAVE / s.lanes) * R, lane = lane_id();
  const W own = of_expert(weight, e);
  bool there = false;
  for (u32 block = workgroup_id() % s.workgroups; block * rows_of_block < s.n; block += s.workgroups) {
    const u32 row = block * rows_of_block + (wave_id() * (WAVE / s.lanes) + lane / s.lanes) * R;
    u32 rows[R];
    UNROLL for (u32 r = 0; r < R; r++) rows[r] = e * s.n + smaller(row + r, s.n - 1);
    const auto ask = [&](u32 run, typename W::Stored(&stored)[R]) __attribute__((always_inline)) {
      ask_for_runs(own, rows, run, stored);
    };
    const auto x_at = [&](u32 i, u32 at) __attribute__((always_inline)) {
      return load4(h, (first + smaller(i, count - 1)) * (s.columns / 4) + at);
    };
    f32 sum[M][R] = {};
    sum_runs<M, R, W>(s.columns / W::RUN, s.lanes, true, row < s.n, there, ask, x_at, sum);
    UNROLL for (u32 i = 0; i < M; i++) {
      UNROLL for (u32 r = 0; r < R; r++) {
        const f32 total = sum_over(sum[i][r], s.lanes);
        if (lane % s.lanes == 0 && i < count && row + r < s.n) store(y, (u64)(first + i) * s.n + row + r, total);
      }
    }
  }
}

// Calls rows(M, first, count) for the rows of this workgroup's tile, MOST at a time. Tiles that the matrix units take
// (moe_gemm.h), where there are `matrix_rows`, are left to them.
template <u32 MOST, class Rows>
DEVICE void each_few_rows(const ExpertRouting& routing, const ExpertShape& s, u32 matrix_rows, const Rows& rows) {
  const u32 tile = workgroup_id() / s.workgroups;
  const ExpertTile at = routing.tile(tile);
  if (!at.count || at.together >= matrix_rows) return;
  u32 first = at.first, left = at.count;
  for (; left > 4; left -= smaller(left, MOST), first += MOST) rows(Count<MOST>(), at.expert, first, smaller(left, MOST));
  if (left > 2) {
    rows(Count<4>(), at.expert, first, left);
  } else if (left == 2) {
    rows(Count<2>(), at.expert, first, left);
  } else if (left == 1) {
    rows(Count<1>(), at.expert, first, left);
  }
}

template <u32 MOST, class W, class X>
DEVICE void moe_gate_up_gemv(const GLOBAL X* x, const ExpertRouting routing, W gate, W up, const GatedBy gated,
                             GLOBAL X* h, const ExpertShape s, u32 matrix_rows) {
  gate.runs = up.runs = s.columns / W::RUN;
  each_few_rows<MOST>(routing, s, matrix_rows, [&](auto m, u32 e, u32 first, u32 count) __attribute__((always_inline)) {
    gate_up_rows<decltype(m)::VALUE>(x, routing, gate, up, gated, h, s, e, first, count);
  });
}

template <u32 MOST, class W, class X>
DEVICE void moe_rows_gemv(const GLOBAL X* h, const ExpertRouting routing, W weight, GLOBAL X* y,
                          const ExpertShape s, u32 matrix_rows) {
  weight.runs = s.columns / W::RUN;
  each_few_rows<MOST>(routing, s, matrix_rows, [&](auto m, u32 e, u32 first, u32 count) __attribute__((always_inline)) {
    plain_rows<decltype(m)::VALUE>(h, weight, y, s, e, first, count);
  });
}
