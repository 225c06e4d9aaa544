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

// `runs` runs of activations in the order in which a format's codes are used.
template <class Fmt, bool FULL>
INLINE Codes load_activations(const int8_t* q, int64_t runs) {
  const Codes natural = load_natural<FULL>(q, runs);
  return ALTERNATING<Fmt> ? split_pairs(natural.low, natural.high) : split_halves(natural.low, natural.high);
}

// The sum of the activations of each group of W runs.
template <class Fmt, bool FULL>
INLINE GroupValues group_totals(const Activations& x, int64_t run, int64_t runs, F scale) {
  const int32_t* sums = x.sum + run * 2;
  const I a = FULL ? load<I>(sums) : load_part(sums, min(2 * runs, W));
  const I b = FULL ? load<I>(sums + W) : load_part(sums + W, max(2 * runs - W, 0));
  if constexpr (Fmt::GROUPS == 1) return {to_float(evens(a, b) + odds(a, b)) * scale, {}};
  return {to_float(evens(a, b)) * scale, to_float(odds(a, b)) * scale};
}

// What W runs are multiplied with: of M rows as they are.
template <class Fmt>
struct PlainRows {
  static constexpr int DIGITS = 1;  // vectors of codes that make one of activations
  Activations x;
  template <bool FULL>
  INLINE_MEMBER Codes codes(int m, int, int64_t run, int64_t runs) const {
    return load_activations<Fmt, FULL>(row_of(x, m).q + run * RUN, runs);
  }
  template <bool FULL>
  INLINE_MEMBER GroupValues totals(int m, int64_t run, int64_t runs, F scale) const {
    return group_totals<Fmt, FULL>(row_of(x, m), run, runs, scale);
  }
  INLINE_MEMBER const float* scale(int m, int64_t run) const { return row_of(x, m).scale + run; }
};

constexpr int64_t SEGMENT_RUNS = 512;  // of a row that is put in order, on the stack

// And of one row, put in order once for many weight rows.
template <class Fmt>
struct OrderedRow {
  static constexpr int DIGITS = 1;
  alignas(64) int8_t q[SEGMENT_RUNS * RUN];
  alignas(64) float total[Fmt::GROUPS][SEGMENT_RUNS];
  const float* scales;

  INLINE_MEMBER void fill(const Activations& x, int64_t first, int64_t count) {
    scales = x.scale + first;
    for (int64_t run = 0; run < count; run += RUNS) {
      const int8_t* from = x.q + (first + run) * RUN;
      const int64_t here = count - run;
      const Codes codes = here >= RUNS ? load_activations<Fmt, true>(from, RUNS) : load_activations<Fmt, false>(from, here);
      store(q + run * RUN, codes.low);
      store(q + run * RUN + 4 * W, codes.high);
    }
    for (int64_t run = 0; run < count; run += W) {
      const int64_t here = min(count - run, W);
      const F scale = load_part(scales + run, here);
      const GroupValues values = here == W ? group_totals<Fmt, true>(x, first + run, W, scale)
                                           : group_totals<Fmt, false>(x, first + run, here, scale);
      store(total[0] + run, values.first);
      if constexpr (Fmt::GROUPS == 2) store(total[1] + run, values.second);
    }
  }
  template <bool FULL>
  INLINE_MEMBER Codes codes(int, int, int64_t run, int64_t) const {
    return {load<B>(q + run * RUN), load<B>(q + run * RUN + 4 * W)};
  }
  template <bool FULL>
  INLINE_MEMBER GroupValues totals(int, int64_t run, int64_t, F) const {
    if constexpr (Fmt::GROUPS == 1) return {load<F>(total[0] + run), {}};
    return {load<F>(total[0] + run), load<F>(total[1] + run)};
  }
  INLINE_MEMBER const float* scale(int, int64_t run) const { return scales + run; }
};

// What the codes of `load_codes` are too small by: 8-bit codes of a stream are 128 less there.
template <class Fmt>
constexpr int shift_of_stream() {
  return Fmt::LAYOUT == STREAM && Fmt::BITS == 8 ? 128 : 0;
}

// What is added per group where codes are those of `load_codes`.
template <class Fmt, bool FULL>
INLINE GroupValues integer_minima(const Parts& row, int64_t runs, const GroupValues& scale) {
  GroupValues values = minima<Fmt, FULL>(row, runs);
  if constexpr (shift_of_stream<Fmt>() != 0) values.first = fma(scale.first, F(128.0f), values.first);
  return values;
}

// Whether the zero is subtracted from the integers: one of 128 would leave too little of a float32 sum's precision.
template <class Fmt>
constexpr bool INTEGER_ZERO = Fmt::BITS == 8 && zero_of<Fmt>() != 0 && !Fmt::MINIMUM;

// A group adds `added` times the sum of its activations: its minimum, and what the codes of `dot` are too large by.
template <class Fmt>
constexpr bool ADDS = Fmt::MINIMUM || (zero_of<Fmt>() != 0 && !INTEGER_ZERO<Fmt>);

template <class Fmt, bool FULL>
INLINE GroupValues added(const Parts& row, int64_t runs, const GroupValues& scale) {
  constexpr int MORE = shift_of_stream<Fmt>() - zero_of<Fmt>();
  if constexpr (!Fmt::MINIMUM) return {scale.first * float(MORE), scale.second * float(MORE)};
  GroupValues values = minima<Fmt, FULL>(row, runs);
  if constexpr (MORE != 0) values.first = fma(scale.first, F(float(MORE)), values.first);
  return values;
}

// The sums of one pair of rows: two, so that a multiply-add need not wait for the one before.
struct Sums {
  F of[2];
};

// Whether the zero leaves the integers as they are multiplied with the digits of activations: exactly, and for all weight
// rows once.
template <class Fmt, class Input>
constexpr bool ZERO_OF_DIGITS = Input::DIGITS > 1 && zero_of<Fmt>() != 0 && !Fmt::MINIMUM;
template <class Fmt, class Input>
constexpr bool ADDS_WITH = ADDS<Fmt> && !ZERO_OF_DIGITS<Fmt, Input>;
template <class Fmt>
constexpr bool HALVES_APART = Fmt::GROUPS == 2 && !ALTERNATING<Fmt>;
// Whether the products of 8 codes with three digits would not fit 32 bits, so that the highest one is summed apart.
template <class Fmt, class Input>
constexpr bool TOP_APART = Input::DIGITS > 1 && (Fmt::BITS == 8 || (Fmt::BITS == 6 && !HALVES_APART<Fmt>));

// Whole numbers times RUNS runs of codes, the sums of 8 products in each lane.
template <class Fmt, class Input>
INLINE F products(const Codes& codes, const Codes (&xq)[Input::DIGITS], I start, const Input& x, int m, int64_t run) {
  I top = 0, both = start;
  UNROLL
  for (int d = 0; d < Input::DIGITS; d++) {
    both = dot<Fmt>(dot<Fmt>(d ? both << 8 : both, codes.low, xq[d].low), codes.high, xq[d].high);
    if constexpr (TOP_APART<Fmt, Input>)
      if (d == 0) top = both, both = 0;
  }
  if constexpr (ZERO_OF_DIGITS<Fmt, Input>) both += x.zeros(m, 0, run);
  if constexpr (!TOP_APART<Fmt, Input>) return to_float(both);
  if constexpr (ZERO_OF_DIGITS<Fmt, Input>) top += x.zeros(m, 1, run);
  return fma(to_float(top), F(0x1p16f), to_float(both));
}

// RUNS runs, the STEP-th of a chunk, of R weight rows and M activation rows.
template <class Fmt, int R, int M, int STEP, bool FULL, class Input>
INLINE void step(Sums (&acc)[M][R], const F (&by_group)[Fmt::GROUPS][M][R], const Parts (&rows)[R], const Input& x,
                 int64_t run, int64_t runs) {
  Codes codes[R];
  UNROLL
  for (int r = 0; r < R; r++) {
    constexpr int BYTES = RUNS * Fmt::CODE_BYTES;
    UNROLL
    for (int line = 0; line < BYTES; line += 64) prefetch(rows[r].codes + STEP * BYTES + line + PREFETCH);
    codes[r] = load_codes<Fmt, FULL, true>(after<Fmt>(rows[r], RUNS * STEP), runs);
    codes[r] = {prepared<Fmt>(codes[r].low), prepared<Fmt>(codes[r].high)};
  }
  UNROLL
  for (int m = 0; m < M; m++) {
    Codes xq[Input::DIGITS];  // the highest digit first
    UNROLL
    for (int d = 0; d < Input::DIGITS; d++) xq[d] = x.template codes<FULL>(m, d, run, runs);
    I start = 0;
    if constexpr (INTEGER_ZERO<Fmt> && !ZERO_OF_DIGITS<Fmt, Input>) {
      const B zero = zero_of<Fmt>();
      start = -dot<Fmt>(dot<Fmt>(I(0), zero, xq[0].low), zero, xq[0].high);
    }
    UNROLL
    for (int r = 0; r < R; r++) {
      Sums& sum = acc[m][r];
      if constexpr (!HALVES_APART<Fmt>) {
        F scale = {};  // of alternating formats the first and the second half of a run are in different lanes
        if constexpr (Fmt::GROUPS == 1)
          scale = by_four<RUNS * STEP>(by_group[0][m][r]);
        else
          scale = by_two<RUNS * STEP>(by_group[0][m][r], by_group[1][m][r]);
        sum.of[STEP % 2] = fma(products<Fmt>(codes[r], xq, start, x, m, run), scale, sum.of[STEP % 2]);
      } else {
        I low = 0, high = 0;
        UNROLL
        for (int d = 0; d < Input::DIGITS; d++) {
          low = dot<Fmt>(d ? low << 8 : low, codes[r].low, xq[d].low);
          high = dot<Fmt>(d ? high << 8 : high, codes[r].high, xq[d].high);
        }
        if constexpr (ZERO_OF_DIGITS<Fmt, Input>) low += x.zeros(m, 0, run), high += x.zeros(m, 1, run);
        sum.of[0] = fma(to_float(low), by_four<RUNS * STEP>(by_group[0][m][r]), sum.of[0]);
        sum.of[1] = fma(to_float(high), by_four<RUNS * STEP>(by_group[1][m][r]), sum.of[1]);
      }
    }
  }
}

// W runs (FULL) or the fewer that are left.
template <class Fmt, int R, int M, bool FULL, class Input>
INLINE void chunk(Sums (&acc)[M][R], const Parts (&all)[R], const Input& x, int64_t run, int64_t runs) {
  Parts rows[R];
  F by_group[Fmt::GROUPS][M][R];
  GroupValues scale[R], more[R];
  UNROLL
  for (int r = 0; r < R; r++) {
    rows[r] = after<Fmt>(all[r], run);
    scale[r] = scales<Fmt, FULL>(rows[r], runs);
    prefetch(advance(rows[r].scale, PREFETCH / 8));
    if constexpr (Fmt::PLANES > 0) {
      constexpr int BYTES = 4 * W * Fmt::PLANES;
      UNROLL
      for (int line = 0; line < BYTES; line += 64) prefetch(advance(rows[r].high, PREFETCH / 4 + line));
    }
    if constexpr (Fmt::MINIMUM) prefetch(advance(rows[r].minimum, PREFETCH / 8));
    if constexpr (ADDS_WITH<Fmt, Input>) more[r] = added<Fmt, FULL>(rows[r], runs, scale[r]);
  }
  UNROLL
  for (int m = 0; m < M; m++) {
    const F xs = FULL ? load<F>(x.scale(m, run)) : load_part(x.scale(m, run), runs);
    UNROLL
    for (int r = 0; r < R; r++) {
      by_group[0][m][r] = scale[r].first * xs;
      if constexpr (Fmt::GROUPS == 2) by_group[1][m][r] = scale[r].second * xs;
    }
    if constexpr (ADDS_WITH<Fmt, Input>) {
      const GroupValues total = x.template totals<FULL>(m, run, runs, xs);
      UNROLL
      for (int r = 0; r < R; r++) {
        F& sum = acc[m][r].of[1];
        sum = fma(total.first, more[r].first, sum);
        if constexpr (Fmt::GROUPS == 2) sum = fma(total.second, more[r].second, sum);
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

// R weight rows over `runs` runs.
template <class Fmt, int R, int M, class Input>
INLINE void int8_row(Sums (&acc)[M][R], const Parts (&rows)[R], const Input& x, int64_t runs) {
  int64_t run = 0;
  for (; run + W <= runs; run += W) chunk<Fmt, R, M, true>(acc, rows, x, run, W);
  if (run < runs) chunk<Fmt, R, M, false>(acc, rows, x, run, runs % W);
}

// W weight rows (of which `count` exist) with M rows of activations: two weight rows share what is prepared of them.
template <class Fmt, int M>
static void int8_rows(const Activations& x, const Parts& weight, int64_t count, float* y, int64_t N) {
  constexpr int R = M * 4 <= W ? 2 : 1;
  const int64_t runs = x.K / RUN, apart = (count + R - 1) / R;
  const PlainRows<Fmt> input = {x};
  F of_row[M][W];
  UNROLL
  for (int m = 0; m < M; m++)
    for (int r = 0; r < W; r++) of_row[m][r] = 0;
  for (int64_t n = 0; n < apart; n++) {
    Parts rows[R];
    Sums acc[M][R];
    UNROLL
    for (int r = 0; r < R; r++) rows[r] = after<Fmt>(weight, min(n + r * apart, count - 1) * runs);
    UNROLL
    for (int m = 0; m < M; m++) UNROLL
    for (int r = 0; r < R; r++) acc[m][r].of[0] = acc[m][r].of[1] = 0;
    int8_row<Fmt, R, M>(acc, rows, input, runs);
    UNROLL
    for (int m = 0; m < M; m++) UNROLL
    for (int r = 0; r < R; r++) of_row[m][n + r * apart] = acc[m][r].of[0] + acc[m][r].of[1];
  }
  UNROLL
  for (int m = 0; m < M; m++) store_part(y + m * N, sums(of_row[m]), count);
}

// All of a workgroup's weight rows with one row of activations. Memory is the limit, and likes one plain stream best.
template <class Fmt>
static void int8_gemv_of_one(const Activations& x, const Parts& weight, float* y, int64_t count) {
  const int64_t runs = x.K / RUN;
  OrderedRow<Fmt> input;
  for (int64_t n = 0; n < count; n += W) {
    const int64_t here = min(count - n, W);
    Sums of_segments[W];
    for (Sums& sum : of_segments) sum.of[0] = sum.of[1] = 0;
    for (int64_t first = 0; first < runs; first += SEGMENT_RUNS) {
      const int64_t of_segment = min(runs - first, SEGMENT_RUNS);
      if (n == 0 || runs > SEGMENT_RUNS) input.fill(x, first, of_segment);
      for (int64_t r = 0; r < here; r++) {
        const Parts rows[1] = {after<Fmt>(row_of<Fmt>(weight, n + r, x.K), first)};
        Sums acc[1][1] = {{of_segments[r]}};
        int8_row<Fmt, 1, 1>(acc, rows, input, of_segment);
        of_segments[r] = acc[0][0];
      }
    }
    F of_row[W];
    for (int r = 0; r < W; r++) of_row[r] = of_segments[r].of[0] + of_segments[r].of[1];
    store_part(y + n, sums(of_row), here);
  }
}

// All of a workgroup's weight rows, `count`, with M activation rows.
template <class Fmt, int M>
INLINE void int8_gemv(const Activations& x, const Parts& weight, float* y, int64_t count, int64_t N) {
  if constexpr (M == 1) return int8_gemv_of_one<Fmt>(x, weight, y, count);
  for (int64_t n = 0; n < count; n += W) int8_rows<Fmt, M>(x, row_of<Fmt>(weight, n, x.K), min(count - n, W), y + n, N);
}
