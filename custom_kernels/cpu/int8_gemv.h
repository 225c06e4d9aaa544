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

// Whether the zero is subtracted from the integers: one of 128 would leave too little of a float32 sum's precision.
template <class Fmt>
constexpr bool INTEGER_ZERO = Fmt::BITS == 8 && zero_of<Fmt>() != 0 && !Fmt::MINIMUM;

// What W runs are multiplied with: a segment of M rows, put in order once for many weight rows.
template <class Fmt, int M>
struct OrderedRows {
  static constexpr int DIGITS = 1;  // vectors of codes that make one of activations
  static constexpr bool HOLDS_ZEROS = INTEGER_ZERO<Fmt>;
  static constexpr int64_t CAPACITY = M == 1 ? 512 : 384 / M;              // runs
  static constexpr int OF_RUN = RUN + (HOLDS_ZEROS ? W : 0);               // bytes
  alignas(64) int8_t q[M][CAPACITY * OF_RUN];
  alignas(64) float total[M][Fmt::GROUPS][CAPACITY];
  const float* scales[M];

  INLINE_MEMBER void fill(int m, const Activations& x, int64_t first, int64_t count) {
    scales[m] = x.scale + first;
    for (int64_t run = 0; run < count; run += RUNS) {
      const int8_t* from = x.q + (first + run) * RUN;
      const int64_t here = count - run;
      const Codes codes = here >= RUNS ? load_activations<Fmt, true>(from, RUNS) : load_activations<Fmt, false>(from, here);
      int8_t* to = q[m] + run * OF_RUN;
      store(to, codes.low);
      store(to + 4 * W, codes.high);
      if constexpr (HOLDS_ZEROS) store(to + 8 * W, -dot<Fmt>(dot<Fmt>(I(0), B(zero_of<Fmt>()), codes.low), B(zero_of<Fmt>()), codes.high));
    }
    for (int64_t run = 0; run < count; run += W) {
      const int64_t here = min(count - run, W);
      const F scale = load_part(scales[m] + run, here);
      const GroupValues values = here == W ? group_totals<Fmt, true>(x, first + run, W, scale)
                                           : group_totals<Fmt, false>(x, first + run, here, scale);
      store(total[m][0] + run, values.first);
      if constexpr (Fmt::GROUPS == 2) store(total[m][1] + run, values.second);
    }
  }
  INLINE_MEMBER Codes codes(int m, int, int64_t run) const {
    const int8_t* at = q[m] + run * OF_RUN;
    return {load<B>(at), load<B>(at + 4 * W)};
  }
  INLINE_MEMBER I zeros(int m, int, int64_t run) const { return load<I>(q[m] + run * OF_RUN + 8 * W); }
  INLINE_MEMBER GroupValues totals(int m, int64_t run) const {
    if constexpr (Fmt::GROUPS == 1) return {load<F>(total[m][0] + run), {}};
    return {load<F>(total[m][0] + run), load<F>(total[m][1] + run)};
  }
  INLINE_MEMBER const float* scale(int m, int64_t run) const { return scales[m] + run; }
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

// Input::HOLDS_ZEROS: the zero leaves the integers as they are multiplied, exactly, and for all weight rows once.
template <class Fmt, class Input>
constexpr bool ADDS_WITH = ADDS<Fmt> && !Input::HOLDS_ZEROS;
template <class Fmt>
constexpr bool HALVES_APART = Fmt::GROUPS == 2 && !ALTERNATING<Fmt>;
// Whether the products of 8 codes with three digits would not fit 32 bits, so that the highest one is summed apart.
template <class Fmt, class Input>
constexpr bool TOP_APART = Input::DIGITS > 1 && (Fmt::BITS == 8 || (Fmt::BITS == 6 && !HALVES_APART<Fmt>));

// Whole numbers times RUNS runs of codes, the sums of 8 products in each lane.
template <class Fmt, class Input>
INLINE F products(const Codes& codes, const Codes (&xq)[Input::DIGITS], const Input& x, int m, int64_t run) {
  if constexpr (Input::DIGITS == 1) {
    const I start = Input::HOLDS_ZEROS ? x.zeros(m, 0, run) : I(0);
    return to_float(dot<Fmt>(dot<Fmt>(start, codes.low, xq[0].low), codes.high, xq[0].high));
  }
  I top = 0, both = 0;
  UNROLL
  for (int d = 0; d < Input::DIGITS; d++) {
    both = dot<Fmt>(dot<Fmt>(d ? both << 8 : both, codes.low, xq[d].low), codes.high, xq[d].high);
    if constexpr (TOP_APART<Fmt, Input>)
      if (d == 0) top = both, both = 0;
  }
  if constexpr (Input::HOLDS_ZEROS) both += x.zeros(m, 0, run);
  if constexpr (!TOP_APART<Fmt, Input>) return to_float(both);
  if constexpr (Input::HOLDS_ZEROS) top += x.zeros(m, 1, run);
  return fma(to_float(top), F(0x1p16f), to_float(both));
}

// RUNS runs, the STEP-th of a chunk, of a weight row and M activation rows. Of those, whole vectors are there.
template <class Fmt, int M, int STEP, bool FULL, class Input>
INLINE void step(Sums (&acc)[M], const F (&by_group)[Fmt::GROUPS][M], const Parts& row, const Input& x, int64_t run,
                 int64_t runs) {
  constexpr int BYTES = RUNS * Fmt::CODE_BYTES;
  UNROLL
  for (int line = 0; line < BYTES; line += 64) prefetch(row.codes + STEP * BYTES + line + PREFETCH);
  Codes codes = load_codes<Fmt, FULL, true>(after<Fmt>(row, RUNS * STEP), runs);
  codes = {prepared<Fmt>(codes.low), prepared<Fmt>(codes.high)};
  UNROLL
  for (int m = 0; m < M; m++) {
    Codes xq[Input::DIGITS];  // the highest digit first
    UNROLL
    for (int d = 0; d < Input::DIGITS; d++) xq[d] = x.codes(m, d, run);
    Sums& sum = acc[m];
    if constexpr (!HALVES_APART<Fmt>) {
      F scale = {};  // of alternating formats the first and the second half of a run are in different lanes
      if constexpr (Fmt::GROUPS == 1)
        scale = by_four<RUNS * STEP>(by_group[0][m]);
      else
        scale = by_two<RUNS * STEP>(by_group[0][m], by_group[1][m]);
      sum.of[STEP % 2] = fma(products<Fmt>(codes, xq, x, m, run), scale, sum.of[STEP % 2]);
    } else {
      I low = 0, high = 0;
      UNROLL
      for (int d = 0; d < Input::DIGITS; d++) {
        low = dot<Fmt>(d ? low << 8 : low, codes.low, xq[d].low);
        high = dot<Fmt>(d ? high << 8 : high, codes.high, xq[d].high);
      }
      if constexpr (Input::HOLDS_ZEROS) low += x.zeros(m, 0, run), high += x.zeros(m, 1, run);
      sum.of[0] = fma(to_float(low), by_four<RUNS * STEP>(by_group[0][m]), sum.of[0]);
      sum.of[1] = fma(to_float(high), by_four<RUNS * STEP>(by_group[1][m]), sum.of[1]);
    }
  }
}

// W runs (FULL) or the fewer that are left.
template <class Fmt, int M, bool FULL, class Input>
INLINE void chunk(Sums (&acc)[M], const Parts& all, const Input& x, int64_t run, int64_t runs) {
  F by_group[Fmt::GROUPS][M];
  Parts row = after<Fmt>(all, run);
  const GroupValues scale = scales<Fmt, FULL>(row, runs);
  prefetch(advance(row.scale, PREFETCH / 8));
  if constexpr (Fmt::PLANES > 0) {
    constexpr int BYTES = 4 * W * Fmt::PLANES;
    UNROLL
    for (int line = 0; line < BYTES; line += 64) prefetch(advance(row.high, PREFETCH / 4 + line));
  }
  if constexpr (Fmt::MINIMUM) prefetch(advance(row.minimum, PREFETCH / 8));
  GroupValues more;
  if constexpr (ADDS_WITH<Fmt, Input>) more = added<Fmt, FULL>(row, runs, scale);
  UNROLL
  for (int m = 0; m < M; m++) {
    const F xs = FULL ? load<F>(x.scale(m, run)) : load_part(x.scale(m, run), runs);
    by_group[0][m] = scale.first * xs;
    if constexpr (Fmt::GROUPS == 2) by_group[1][m] = scale.second * xs;
    if constexpr (ADDS_WITH<Fmt, Input>) {
      const GroupValues total = x.totals(m, run);
      F& sum = acc[m].of[1];
      sum = fma(total.first, more.first, sum);
      if constexpr (Fmt::GROUPS == 2) sum = fma(total.second, more.second, sum);
    }
  }
  if constexpr (FULL) {
    step<Fmt, M, 0, true>(acc, by_group, row, x, run, RUNS);
    step<Fmt, M, 1, true>(acc, by_group, row, x, run + RUNS, RUNS);
    step<Fmt, M, 2, true>(acc, by_group, row, x, run + 2 * RUNS, RUNS);
    step<Fmt, M, 3, true>(acc, by_group, row, x, run + 3 * RUNS, RUNS);
  } else {
    int64_t done = 0;
    for (; done + RUNS <= runs; done += RUNS) {
      step<Fmt, M, 0, true>(acc, by_group, row, x, run + done, RUNS);
      row = after<Fmt>(row, RUNS);
      UNROLL
      for (int m = 0; m < M; m++) UNROLL
      for (int g = 0; g < Fmt::GROUPS; g++) by_group[g][m] = next_four(by_group[g][m]);
    }
    if (done < runs) step<Fmt, M, 0, false>(acc, by_group, row, x, run + done, runs % RUNS);
  }
}

// The first `runs` runs of a weight row.
template <class Fmt, int M, class Input>
INLINE void int8_row(Sums (&acc)[M], const Parts& row, const Input& x, int64_t runs) {
  int64_t run = 0;
  for (; run + W <= runs; run += W) chunk<Fmt, M, true>(acc, row, x, run, W);
  if (run < runs) chunk<Fmt, M, false>(acc, row, x, run, runs % W);
}

constexpr int64_t MOST_SUMS = 64;  // pairs of rows whose sums are kept from segment to segment

// The results of activation row m with weight rows r and on, of `count`.
template <int64_t BLOCK, int M>
INLINE F sums_of(const Sums (&pairs)[BLOCK][M], int m, int64_t r, int64_t count) {
  F of_row[W];
  for (int64_t j = 0; j < W; j++) {
    const Sums& sum = pairs[min(r + j, count - 1)][m];
    of_row[j] = sum.of[0] + sum.of[1];
  }
  return sums(of_row);
}

// All of a workgroup's weight rows, `count`, with M activation rows. Memory is the limit, and likes one plain stream
// best: a block of weight rows is read from it once, and from the second cache where activations take several segments.
template <class Fmt, int M>
__attribute__((noinline)) static void int8_gemv(const Activations& x, const Parts& weight, float* y, int64_t count,
                                                int64_t N) {
  using Rows = OrderedRows<Fmt, M>;
  constexpr int64_t BLOCK = MOST_SUMS / M;
  const int64_t runs = x.K / RUN;
  Rows input;
  for (int64_t n = 0; n < count; n += BLOCK) {
    const int64_t here = min(count - n, BLOCK);
    Sums of_segments[BLOCK][M];
    for (int64_t first = 0; first < runs; first += Rows::CAPACITY) {
      const int64_t of_segment = min(runs - first, Rows::CAPACITY);
      if (n == 0 || runs > Rows::CAPACITY)
        for (int m = 0; m < M; m++) input.fill(m, row_of(x, m), first, of_segment);
      for (int64_t r = 0; r < here; r++) {
        Sums acc[M];
        UNROLL
        for (int m = 0; m < M; m++) {
          acc[m].of[0] = acc[m].of[1] = 0;
          if (first > 0) acc[m] = of_segments[r][m];
        }
        int8_row<Fmt, M>(acc, after<Fmt>(row_of<Fmt>(weight, n + r, x.K), first), input, of_segment);
        UNROLL
        for (int m = 0; m < M; m++) of_segments[r][m] = acc[m];
      }
    }
    for (int m = 0; m < M; m++)
      for (int64_t r = 0; r < here; r += W)
        store_part(y + m * N + n + r, sums_of(of_segments, m, r, here), min(here - r, W));
  }
}
