// Few rows of 8-bit activations: each weight is read and decoded once. The order of every sum is the same for any
// number of activation rows, so a row's result does not depend on its company.
#pragma once
#include "planes.h"
#include "row_store.h"

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

// The sum of the activations of each group of W runs.
template <class Fmt, bool FULL>
INLINE GroupValues group_totals(const Activations& x, int64_t run, int64_t runs, F scale) {
  const int32_t* sums = x.sum + run * 2;
  const I a = FULL ? load<I>(sums) : load_part(sums, min(2 * runs, W));
  const I b = FULL ? load<I>(sums + W) : load_part(sums + W, max(2 * runs - W, 0));
  if constexpr (Fmt::GROUPS == 1) return {to_float(evens(a, b) + odds(a, b)) * scale, {}};
  return {to_float(evens(a, b)) * scale, to_float(odds(a, b)) * scale};
}

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

// What is added per group where codes are those of `dot`: a minimum, and what they are too small by.
template <class Fmt, bool FULL>
INLINE GroupValues added(const Parts& row, int64_t runs, const GroupValues& scale) {
  constexpr int MORE = shift_of_stream<Fmt>() - zero_of<Fmt>();
  GroupValues values = minima<Fmt, FULL>(row, runs);
  if constexpr (MORE != 0) values.first = fma(scale.first, F(float(MORE)), values.first);
  return values;
}

// What W runs are multiplied with: a segment of M rows, put in order once for many weight rows.
template <class Fmt, int M>
struct __attribute__((may_alias)) OrderedRows {
  static constexpr int DIGITS = 1;
  static constexpr int64_t CAPACITY = 512 / M;  // runs
  static constexpr int KIND = M | ORDER<Fmt> << 4 | Fmt::GROUPS << 6 | Fmt::MINIMUM << 8 | zero_of<Fmt>() << 9 | 1 << 29;
  static constexpr int STRIDE = OF_CHUNK + ZERO_PLANES<Fmt, DIGITS> * PLANE;
  alignas(64) int8_t q[M][CAPACITY / W * STRIDE];
  alignas(64) float scales[M][CAPACITY];
  alignas(64) float total[Fmt::MINIMUM ? M : 1][Fmt::GROUPS][Fmt::MINIMUM ? CAPACITY : W];

  INLINE_MEMBER void fill(int m, const Activations& x, int64_t first, int64_t count) {
    for (int64_t run = 0; run < count; run += W) {
      const int64_t here = min(count - run, W);
      int8_t* to = q[m] + run / W * STRIDE;
      store_planes<Fmt>(x.q + (first + run) * RUN, here, to);
      store_zeros<Fmt, DIGITS>(to, to + OF_CHUNK);
      const F scale = load_part(x.scale + first + run, here);
      store(scales[m] + run, in_lanes(scale));
      if constexpr (Fmt::MINIMUM) {
        const GroupValues values = here == W ? group_totals<Fmt, true>(x, first + run, W, scale)
                                             : group_totals<Fmt, false>(x, first + run, here, scale);
        store(total[m][0] + run, values.first);
        if constexpr (Fmt::GROUPS == 2) store(total[m][1] + run, values.second);
      }
    }
  }
  INLINE_MEMBER const int8_t* chunk(int m, int64_t run) const { return q[m] + run / W * STRIDE; }
};

// The sums of one pair of rows: of the first groups of runs; of the second ones and of the minima.
struct Sums {
  F of[2];
};

// W runs (FULL) or the fewer that are left, of a weight row and the M rows of activations in `x`.
template <class Fmt, int M, bool FULL, class Input>
INLINE void chunk(Sums (&acc)[M], const Parts& row, const Input& x, int64_t run, int64_t runs) {
  constexpr int DIGITS = Input::DIGITS, BYTES = W * Fmt::CODE_BYTES;
  UNROLL
  for (int line = 0; line < BYTES; line += 64) prefetch(row.codes + line + PREFETCH);
  prefetch(advance(row.scale, PREFETCH / 8));
  if constexpr (Fmt::PLANES > 0) {
    UNROLL
    for (int line = 0; line < 4 * W * Fmt::PLANES; line += 64) prefetch(advance(row.high, PREFETCH / 4 + line));
  }
  if constexpr (Fmt::MINIMUM) prefetch(advance(row.minimum, PREFETCH / 8));
  const GroupValues scale = scales<Fmt, FULL>(row, runs);
  GroupValues more;
  if constexpr (Fmt::MINIMUM) more = added<Fmt, FULL>(row, runs, scale);
  const F of_lanes[2] = {in_lanes(scale.first), Fmt::GROUPS == 2 ? in_lanes(scale.second) : F(0.0f)};
  const Planes codes = load_planes<Fmt, FULL>(row, runs);
  UNROLL
  for (int m = 0; m < M; m++) {
    const int8_t* at = x.chunk(m, run);
    const F xs = load<F>(x.scales[m] + run);
    UNROLL
    for (int g = 0; g < Fmt::GROUPS; g++) {
      const Whole start = load_zeros<Fmt, DIGITS>(at + DIGITS * OF_CHUNK, g);
      const Whole whole = whole_products<Fmt, DIGITS>(start, codes, at, g);
      F product = to_float(whole.rest);
      if constexpr (TOP_APART<Fmt, DIGITS>) product = fma(to_float(whole.top), F(0x1p16f), product);
      acc[m].of[g] = fma(product, of_lanes[g] * xs, acc[m].of[g]);
    }
    if constexpr (Fmt::MINIMUM) {
      F& sum = acc[m].of[1];
      sum = fma(load<F>(x.total[m][0] + run), more.first, sum);
      if constexpr (Fmt::GROUPS == 2) sum = fma(load<F>(x.total[m][1] + run), more.second, sum);
    }
  }
}

// The first `runs` runs of a weight row.
template <class Fmt, int M, class Input>
INLINE void int8_row(Sums (&acc)[M], const Parts& row, const Input& x, int64_t runs) {
  int64_t run = 0;
  for (; run + W <= runs; run += W) chunk<Fmt, M, true>(acc, after<Fmt>(row, run), x, run, W);
  if (run < runs) chunk<Fmt, M, false>(acc, after<Fmt>(row, run), x, run, runs % W);
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
                                                int64_t N, RowStore& store) {
  using Rows = OrderedRows<Fmt, M>;
  static_assert(sizeof(Rows) <= sizeof store.rows);
  Rows& input = *reinterpret_cast<Rows*>(store.rows);
  constexpr int64_t BLOCK = MOST_SUMS / M;
  const int64_t runs = x.K / RUN;
  const bool whole = runs <= Rows::CAPACITY;
  bool ready = whole && store.has(x.q, Rows::KIND);
  store.keep(whole ? x.q : nullptr, Rows::KIND);
  for (int64_t n = 0; n < count; n += BLOCK) {
    const int64_t here = min(count - n, BLOCK);
    Sums of_segments[BLOCK][M];
    for (int64_t first = 0; first < runs; first += Rows::CAPACITY) {
      const int64_t of_segment = min(runs - first, Rows::CAPACITY);
      for (int m = 0; m < M && !ready; m++) input.fill(m, row_of(x, m), first, of_segment);
      ready = whole;
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
