// y[m, n] = sum over k of x[m, k] * weight[n, k] for up to M rows of x: bound by reading the weight.
//
// A weight row is shared by `lanes` neighbouring lanes of each of `waves` waves, each lane reading 16 bytes or more at a
// time. A lane works on R rows at once, so that what it loads of x serves R rows and several loads are under way; lanes
// that hold the same columns of other rows load the same x, so few lanes a row make few distinct loads. Every y[m, n] is
// summed in an order that depends on n and k alone: other rows of x, and their number, do not change it.
#pragma once

#include "weights.h"

inline constexpr u32 GEMV_THREADS = 128, GEMV_WAVES = GEMV_THREADS / WAVE, GEMV_ROWS = 4;  // R at most

template <u32 M>
struct Sums {  // of each wave: [wave][row][m], at most 8 lane groups (lanes >= 4)
  LOCAL_ARRAY static inline f32 of[GEMV_WAVES * (WAVE / 4) * GEMV_ROWS * M];
};

template <u32 M, u32 R, class W>
DEVICE void gemv(const GLOBAL f32* x, W weight, GLOBAL f32* y, u32 m, u32 n, u32 k, u32 lanes, u32 waves) {
  using Run = typename W::Run;
  const u32 wave = wave_id(), part = lane_id() % lanes;
  const u32 rows_of_wave = WAVE / lanes * R, teams = GEMV_WAVES / waves;
  const u32 first_of_workgroup = workgroup_id() * teams * rows_of_wave;
  const u32 first_of_lane = lane_id() / lanes * R;
  const u32 first = first_of_workgroup + wave / waves * rows_of_wave + first_of_lane;
  const u32 runs = k / W::RUN, step = lanes * waves;
  weight.runs = runs;
  const GLOBAL f32x4* x4 = (const GLOBAL f32x4*)x;

  u32 rows[R];  // rows past the end repeat the last one, and are not stored
  UNROLL for (u32 r = 0; r < R; r++) rows[r] = smaller(first + r, n - 1);
  u32 columns[M];
  UNROLL for (u32 i = 0; i < M; i++) columns[i] = smaller(i, m - 1) * (k / 4);

  f32 sum[M][R] = {};
  const u32 begin = wave % waves * lanes + part;
  Run next[R];
  UNROLL for (u32 r = 0; r < R; r++) next[r] = weight.load(rows[r], smaller(begin, runs - 1));
  for (u32 run = begin; run < runs; run += step) {
    Run now[R];
    UNROLL for (u32 r = 0; r < R; r++) now[r] = next[r];
    const u32 ahead = smaller(run + step, runs - 1);
    UNROLL for (u32 r = 0; r < R; r++) next[r] = weight.load(rows[r], ahead);
    UNROLL for (u32 j = 0; j < W::RUN / 4; j++) {
      f32 w[R][4];
      UNROLL for (u32 r = 0; r < R; r++) W::decode(now[r], j, w[r]);
      UNROLL for (u32 i = 0; i < M; i++) {
        const f32x4 a = x4[columns[i] + run * (W::RUN / 4) + W::place(j)];
        UNROLL for (u32 r = 0; r < R; r++) {
          UNROLL for (u32 c = 0; c < 4; c++) sum[i][r] = multiply_add(w[r][c], a[c], sum[i][r]);
        }
      }
    }
  }
  UNROLL for (u32 r = 0; r < R; r++) {
    UNROLL for (u32 i = 0; i < M; i++) {
      const f32 total = sum_over(sum[i][r], lanes);
      if (part == 0) Sums<M>::of[(wave * rows_of_wave + first_of_lane + r) * M + i] = total;
    }
  }
  barrier();
  for (u32 item = thread_id(); item < teams * rows_of_wave * M; item += GEMV_THREADS) {
    const u32 row = item % (teams * rows_of_wave), i = item / (teams * rows_of_wave);
    const u32 at = row / rows_of_wave * waves * rows_of_wave + row % rows_of_wave;
    f32 total = Sums<M>::of[at * M + i];
    for (u32 w = 1; w < waves; w++) total += Sums<M>::of[(at + w * rows_of_wave) * M + i];
    if (i < m && first_of_workgroup + row < n) y[(u64)i * n + first_of_workgroup + row] = total;
  }
}
