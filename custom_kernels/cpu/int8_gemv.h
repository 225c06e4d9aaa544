// Few rows of 8-bit activations: each weight is read and decoded once. The order of every sum is the same for any
// number of activation rows, so a row's result does not depend on its company.
#pragma once
#include "dot.h"
#include "transpose.h"

// The quantized activations of a matmul: xq int8 [M, K], xs float32 [M, K / 32], xsum int32 [M, K / 16].
struct Activations {
  const int8_t* q;
  const float* scale;
  const int32_t* sum;
  int64_t K;
};
INLINE Activations row_of(const Activations& x, int64_t m) {
  return {x.q + m * x.K, x.scale + m * (x.K / RUN), x.sum + m * (x.K / 16), x.K};
}

// Sums of activations, one in lanes 0 and 2 of every four: weights 0..15 and 16..31 of a run.
template <bool FULL>
INLINE I spread_sums(const int32_t* sums, int64_t runs) {
#if STRIXHLO_AVX512
  const __m256i v = FULL ? load<__m256i>(sums) : _mm256_maskz_loadu_epi32(__mmask8((1u << (2 * runs)) - 1), sums);
  return __builtin_bit_cast(I, _mm512_cvtepu32_epi64(v));
#elif STRIXHLO_AVX2
  const __m128i v = FULL || runs == 2 ? load<__m128i>(sums) : _mm_set_epi64x(0, load<int64_t>(sums));
  return __builtin_bit_cast(I, _mm256_cvtepu32_epi64(v));
#else
  (void)runs;
  return I{sums[0], 0, sums[1], 0};
#endif
}

// What is added per group where codes are those of `load_codes`: 8-bit codes of a stream are 128 less there.
template <class Fmt, bool FULL>
INLINE GroupValues integer_minima(const Parts& row, int64_t runs, const GroupValues& scale) {
  GroupValues values = minima<Fmt, FULL>(row, runs);
  if constexpr (Fmt::LAYOUT == STREAM && Fmt::BITS == 8) values.first = fma(scale.first, F(128.0f), values.first);
  return values;
}

// RUNS runs, the STEP-th of a chunk, of R weight rows and M activation rows.
template <class Fmt, int R, int M, int STEP, bool FULL>
INLINE void step(F (&acc)[M][R], const F (&by_group)[Fmt::GROUPS][M][R], const Parts (&rows)[R], const Activations& x,
                 int64_t run, int64_t runs) {
  Codes codes[R];
  UNROLL
  for (int r = 0; r < R; r++) {
    constexpr int BYTES = RUNS * Fmt::CODE_BYTES;
    UNROLL
    for (int line = 0; line < BYTES; line += 64) __builtin_prefetch(rows[r].codes + STEP * BYTES + line + PREFETCH);
    codes[r] = load_codes<Fmt, FULL>(after<Fmt>(rows[r], RUNS * STEP), runs);
    codes[r] = {prepared<Fmt>(codes[r].low), prepared<Fmt>(codes[r].high)};
  }
  UNROLL
  for (int m = 0; m < M; m++) {
    const Activations xm = row_of(x, m);
    const Codes xq = load_bytes<FULL>(xm.q + run * RUN, runs);
    I start = 0;  // minus zero * activations, exact in integers
    if constexpr (zero_of<Fmt>() != 0) start = spread_sums<FULL>(xm.sum + run * 2, runs) * -zero_of<Fmt>();
    UNROLL
    for (int r = 0; r < R; r++) {
      if constexpr (Fmt::GROUPS == 1) {
        const I both = dot<Fmt>(dot<Fmt>(start, codes[r].low, xq.low), codes[r].high, xq.high);
        acc[m][r] = fma(to_float(both), by_four<RUNS * STEP>(by_group[0][m][r]), acc[m][r]);
      } else {
        const I of_low = lane_index() % 4 == 0, of_high = lane_index() % 4 == 2;
        const I low = dot<Fmt>(start & of_low, codes[r].low, xq.low);
        const I high = dot<Fmt>(start & of_high, codes[r].high, xq.high);
        acc[m][r] = fma(to_float(low), by_four<RUNS * STEP>(by_group[0][m][r]), acc[m][r]);
        acc[m][r] = fma(to_float(high), by_four<RUNS * STEP>(by_group[1][m][r]), acc[m][r]);
      }
    }
  }
}

// W runs (FULL) or the fewer that are left.
template <class Fmt, int R, int M, bool FULL>
INLINE void chunk(F (&acc)[M][R], const Parts (&all)[R], const Activations& x, int64_t run, int64_t runs) {
  Parts rows[R];
  F by_group[Fmt::GROUPS][M][R];
  GroupValues scale[R], minimum[R];
  UNROLL
  for (int r = 0; r < R; r++) {
    rows[r] = after<Fmt>(all[r], run);
    scale[r] = scales<Fmt, FULL>(rows[r], runs);
    __builtin_prefetch(advance(rows[r].scale, PREFETCH / 8));
    if constexpr (Fmt::PLANES > 0) __builtin_prefetch(advance(rows[r].high, PREFETCH / 4));
    if constexpr (Fmt::MINIMUM) __builtin_prefetch(advance(rows[r].minimum, PREFETCH / 8));
    if constexpr (Fmt::MINIMUM) minimum[r] = integer_minima<Fmt, FULL>(rows[r], runs, scale[r]);
  }
  UNROLL
  for (int m = 0; m < M; m++) {
    const Activations xm = row_of(x, m);
    const F xs = FULL ? load<F>(xm.scale + run) : load_part(xm.scale + run, runs);
    UNROLL
    for (int r = 0; r < R; r++) {
      by_group[0][m][r] = scale[r].first * xs;
      if constexpr (Fmt::GROUPS == 2) by_group[1][m][r] = scale[r].second * xs;
    }
    if constexpr (Fmt::MINIMUM) {
      const int32_t* sums = xm.sum + run * 2;
      const I a = FULL ? load<I>(sums) : load_part(sums, min(2 * runs, W));
      const I b = FULL ? load<I>(sums + W) : load_part(sums + W, max(2 * runs - W, 0));
      if constexpr (Fmt::GROUPS == 1) {
        const F total = to_float(evens(a, b) + odds(a, b)) * xs;
        UNROLL
        for (int r = 0; r < R; r++) acc[m][r] = fma(total, minimum[r].first, acc[m][r]);
      } else {
        const F first = to_float(evens(a, b)) * xs, second = to_float(odds(a, b)) * xs;
        UNROLL
        for (int r = 0; r < R; r++)
          acc[m][r] = fma(second, minimum[r].second, fma(first, minimum[r].first, acc[m][r]));
      }
    }
  }
  if constexpr (FULL) {
    step<Fmt, R, M, 0, true>(acc, by_group, rows, x, run, RUNS);
    step<Fmt, R, M, 1, true>(acc, by_group, rows, x, run + RUNS, RUNS);
    step<Fmt, R, M, 2, true>(acc, by_group, rows, x, run + 2 * RUNS, RUNS);
    step<Fmt, R, M, 3, true>(acc, by_group, rows, x, run + 3 * RUNS, RUNS);
  } else {
    int64_t done = 0;
    for (; done + RUNS <= runs; done += RUNS) {
      step<Fmt, R, M, 0, true>(acc, by_group, rows, x, run + done, RUNS);
      UNROLL
      for (int r = 0; r < R; r++) {
        rows[r] = after<Fmt>(rows[r], RUNS);
        UNROLL
        for (int m = 0; m < M; m++) UNROLL
        for (int g = 0; g < Fmt::GROUPS; g++) by_group[g][m][r] = next_four(by_group[g][m][r]);
      }
    }
    if (done < runs) step<Fmt, R, M, 0, false>(acc, by_group, rows, x, run + done, runs % RUNS);
  }
}

// W weight rows (of which `count` exist) with M rows of activations. For one row memory is the limit, and likes one
// plain stream best; for more, two weight rows share what is prepared of the activations.
template <class Fmt, int M>
static void int8_rows(const Activations& x, const Parts& weight, int64_t count, float* y, int64_t N) {
  constexpr int R = M > 1 && M * 4 <= W ? 2 : 1;
  const int64_t runs = x.K / RUN, apart = (count + R - 1) / R;
  F of_row[M][W];
  UNROLL
  for (int m = 0; m < M; m++)
    for (int r = 0; r < W; r++) of_row[m][r] = 0;
  for (int64_t n = 0; n < apart; n++) {
    Parts rows[R];
    F acc[M][R];
    UNROLL
    for (int r = 0; r < R; r++) rows[r] = after<Fmt>(weight, min(n + r * apart, count - 1) * runs);
    UNROLL
    for (int m = 0; m < M; m++) UNROLL
    for (int r = 0; r < R; r++) acc[m][r] = 0;
    int64_t run = 0;
    for (; run + W <= runs; run += W) chunk<Fmt, R, M, true>(acc, rows, x, run, W);
    if (run < runs) chunk<Fmt, R, M, false>(acc, rows, x, run, runs % W);
    UNROLL
    for (int m = 0; m < M; m++) UNROLL
    for (int r = 0; r < R; r++) of_row[m][n + r * apart] = acc[m][r];
  }
  UNROLL
  for (int m = 0; m < M; m++) store_part(y + m * N, sums(of_row[m]), count);
}

// All of a workgroup's weight rows, `count`, with M activation rows.
template <class Fmt, int M>
INLINE void int8_gemv(const Activations& x, const Parts& weight, float* y, int64_t count, int64_t N) {
  for (int64_t n = 0; n < count; n += W) int8_rows<Fmt, M>(x, row_of<Fmt>(weight, n, x.K), min(count - n, W), y + n, N);
}
