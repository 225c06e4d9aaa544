// y[m, n] = sum over k of x[m, k] * weight[n, k] for up to M rows of x: bound by reading the weight.
//
// A weight row is shared by `lanes` neighbouring lanes, each reading 16 bytes or more at a time. A lane works on R rows at
// once, so that what it loads of x serves R rows and several loads are under way. x goes through local memory: where all
// of it fits, a workgroup asks for it once and goes on to other rows. Codes are summed before they are scaled.
// Every y[m, n] is summed in an order that depends on n and k alone: other rows of x, and their number, do not change it.
#pragma once

#include "weights.h"

#if defined(__NVPTX__)
inline constexpr u32 GEMV_THREADS = 256;
inline constexpr u32 MOST_AHEAD = 8;
inline constexpr u32 STAGED = 8192;  // floats of x in local memory: 32 runs of 8 rows, one for each lane
#else
inline constexpr u32 GEMV_THREADS = 512;  // a workgroup asks for x once: the larger it is, the less is asked for
inline constexpr u32 MOST_AHEAD = 4;  // rows of x beside which another run fits into registers; other waves hide the rest
inline constexpr u32 STAGED = 4096;  // more would leave fewer waves, for which clang then spends more registers
#endif
inline constexpr u32 GEMV_WAVES = GEMV_THREADS / WAVE;

struct Stage {
  LOCAL_ARRAY static inline f32x4 x[STAGED / 4 + STAGED / 32];
};
// Where float4 number i of x is: a gap after every 8, so that lanes which read the same one of neighbouring runs meet
// different banks.
DEVICE u32 staged(u32 i) { return i + i / 8; }

// Adds the products of one run of R weight rows with M rows of x, which start at `x` and are `stride` apart.
template <u32 M, u32 R, class W>
DEVICE void add_run(const typename W::Run (&weights)[R], u32 run, u32 stride, f32 (&sum)[M][R]) {
  UNROLL for (u32 g = 0; g < W::GROUPS; g++) {
    f32 dot[M][R] = {}, sum_x[M] = {};
    UNROLL for (u32 j = 0; j < W::RUN / 4; j++) {
      if (W::group(j) != g) continue;
      f32 codes[R][4];
      UNROLL for (u32 r = 0; r < R; r++) W::codes(weights[r], j, codes[r]);
      UNROLL for (u32 i = 0; i < M; i++) {
        const f32x4 a = Stage::x[i * staged(stride) + staged(run * (W::RUN / 4)) + W::place(j)];
        if constexpr (W::MINIMUM) sum_x[i] += (a[0] + a[1]) + (a[2] + a[3]);
        UNROLL for (u32 r = 0; r < R; r++) {
          UNROLL for (u32 c = 0; c < 4; c++) dot[i][r] = multiply_add(codes[r][c], a[c], dot[i][r]);
        }
        if (i == 3) schedule_barrier();
      }
      if (M > 1 || j % 2) schedule_barrier();
    }
    UNROLL for (u32 i = 0; i < M; i++) {
      UNROLL for (u32 r = 0; r < R; r++) {
        if constexpr (W::SCALED) {
          sum[i][r] = multiply_add(dot[i][r] * W::UNIT, weights[r].scale[g], sum[i][r]);
        } else {
          sum[i][r] += dot[i][r];
        }
        if constexpr (W::MINIMUM) sum[i][r] = multiply_add(sum_x[i], weights[r].minimum[g], sum[i][r]);
      }
    }
  }
}

// Run `run` of rows of R weights.
template <u32 R, class W>
DEVICE void ask_each(const W (&weights)[R], const u32 (&rows)[R], u32 run, typename W::Stored (&stored)[R]) {
  UNROLL for (u32 r = 0; r < R; r++) ask_for_runs(weights[r], {rows[r]}, run, (typename W::Stored(&)[1])stored[r]);
}

// sum += M rows of x times one row of each of R weights, of whose runs the first `end` are asked for. `fill` puts columns
// of x into local memory: where `there`, all of them are in it already; `others` may still read what was before.
template <u32 M, u32 R, class W, class Fill>
DEVICE void gemv_block(const W (&weights)[R], const u32 (&rows)[R], u32 end, u32 runs, u32 lanes, bool others,
                       bool& there, const Fill& fill, f32 (&sum)[M][R]) {
  constexpr u32 STRIDE = STAGED / M / 4, PER_RUN = W::RUN / 4;  // in float4
  constexpr u32 RUNS_OF_STAGE = STRIDE / PER_RUN;
  constexpr bool AHEAD = M <= MOST_AHEAD;
  const u32 part = lane_id() % lanes;
  typename W::Stored next[R];
  if (AHEAD && part < end) ask_each(weights, rows, part, next);
  u32 run = part;
  for (u32 start = 0; start < runs; start += RUNS_OF_STAGE) {
    const u32 count = smaller(RUNS_OF_STAGE, runs - start);
    if (!there) {
      if (start || others) barrier();
      fill(start * PER_RUN, count * PER_RUN);
      barrier();
      there = count == runs;
    }
    for (; run < smaller(start + count, end); run += lanes) {
      if (!AHEAD) ask_each(weights, rows, run, next);
      typename W::Run now[R];
      UNROLL for (u32 r = 0; r < R; r++) now[r] = run_of<W>(next[r]);
      if (AHEAD && run + lanes < end) ask_each(weights, rows, run + lanes, next);
      add_run<M, R, W>(now, run - start, STRIDE, sum);
    }
  }
}

template <u32 M, u32 R, class W, class X>
DEVICE void gemv(const GLOBAL X* x, W weight, GLOBAL X* y, u32 m, u32 n, u32 k, u32 lanes, u32 workgroups) {
  constexpr u32 STRIDE = STAGED / M / 4;
  const u32 runs = k / W::RUN;
  const u32 part = lane_id() % lanes, rows_of_workgroup = GEMV_WAVES * (WAVE / lanes) * R;
  weight.runs = runs;
  const auto fill = [&](u32 start, u32 count) __attribute__((always_inline)) {
    for (u32 i = thread_id(); i < count; i += GEMV_THREADS) {
      UNROLL for (u32 row = 0; row < M; row++) {
        Stage::x[row * staged(STRIDE) + staged(i)] = load4(x, (u64)smaller(row, m - 1) * (k / 4) + start + i);
      }
    }
  };
  W same[R] = {weight, weight};
  static_assert(R == 2);
  bool there = false;  // all of x is in local memory
  for (u32 block = workgroup_id(); block * rows_of_workgroup < n; block += workgroups) {
    const u32 first = block * rows_of_workgroup + (wave_id() * (WAVE / lanes) + lane_id() / lanes) * R;
    u32 rows[R];  // a row past the end repeats the last one, and is not stored
    UNROLL for (u32 r = 0; r < R; r++) rows[r] = smaller(first + r, n - 1);
    f32 sum[M][R] = {};
    // A lane asks for no run that it does not use.
    gemv_block<M, R, W>(same, rows, first < n ? runs : 0, runs, lanes, block != workgroup_id(), there, fill, sum);
    UNROLL for (u32 i = 0; i < M; i++) {
      UNROLL for (u32 r = 0; r < R; r++) {
        const f32 total = sum_over(sum[i][r], lanes);
        if (part == 0 && i < m && first + r < n) store(y, (u64)i * n + first + r, total);
      }
    }
  }
}
