// Few rows of float32 activations through the integer dot products: each group of 32 is a power of two times whole
// numbers of 24 bits, which are three digits of 8 bits. They are off by at most 2^-23 of the largest activation of their
// group. Rows of which a group is not finite, or below 2^-105, take plain float32. E4M3 weights: e4m3_terms.h.
#pragma once
#include "f32_rows.h"
#include "int8_gemv.h"
#include "e4m3_terms.h"
#include "quantize.h"

template <class Weight>
constexpr bool BY_DIGITS = false;

#if STRIXHLO_VNNI
template <class Fmt>
constexpr bool BY_DIGITS<QuantizedWeight<Fmt>> = Fmt::LAYOUT != FP8
#if STRIXHLO_BF16_TERMS
                                                 || true
#endif
    ;

constexpr int DIGITS = 3, DIGIT_BITS = 23;
constexpr int64_t DIGIT_RUNS = 128;  // that are prepared at once, of all rows together: half of the first cache

// M rows of activations, or a segment of them.
template <class Fmt, int M>
struct __attribute__((may_alias)) DigitRows {
  static constexpr int DIGITS = ::DIGITS;
  static constexpr int64_t CAPACITY = DIGIT_RUNS / M;
  static constexpr bool SEGMENTS = false;                     // preparing is dear: rather fewer rows at once
  static constexpr float UNIT = 1.0f / (1 << DIGIT_BITS);  // left to the end, so that scales stay normal floats
  static constexpr int STRIDE = DIGITS * OF_CHUNK + ZERO_PLANES<Fmt, DIGITS> * PLANE;
  // What tells its layout and values from those of other formats.
  static constexpr int KIND = M | ORDER<Fmt> << 4 | Fmt::GROUPS << 6 | ZERO_PLANES<Fmt, DIGITS> << 8 | zero_of<Fmt>() << 11;
  alignas(64) int8_t q[M][CAPACITY / W * STRIDE];  // of each chunk the planes of every digit, then what the zero adds
  alignas(64) float scales[M][CAPACITY];
  alignas(64) float total[M][Fmt::GROUPS][CAPACITY];
  bool plain[M];  // rows that are not held here

  // Runs [first, first + count) of row m.
  INLINE_MEMBER void fill(int m, const float* x, int64_t first, int64_t count) {
    if (first == 0) plain[m] = false;
    for (int64_t run = 0; run < count; run += W) fill_runs(m, x + (first + run) * RUN, run, min(count - run, W));
  }
  INLINE_MEMBER const int8_t* chunk(int m, int64_t run) const { return q[m] + run / W * STRIDE; }
  INLINE_MEMBER void add_row(Sums (&acc)[M], const Parts& row, int64_t runs) const {
    int8_row<Fmt, M>(acc, row, *this, runs);
  }

 private:
  // W runs, of which `runs` exist; the others are zero.
  INLINE_MEMBER void fill_runs(int m, const float* x, int64_t run, int64_t runs) {
    typedef int8_t C __attribute__((ext_vector_type(W)));
    const auto part = [&](int64_t r, int half) { return r < runs ? load<F>(x + r * RUN + half * W) : F(0.0f); };
    I most[W];
    for (int r = 0; r < W; r++)
      most[r] = __builtin_elementwise_max(bits_of(part(r, 0)) & 0x7fffffff, bits_of(part(r, 1)) & 0x7fffffff);
    const I largest = of_each(most, Larger());
    const I held = (largest == 0) | ((largest >= (DIGIT_BITS << 23)) & (largest < 0x7e800000));
    plain[m] |= _mm512_cmpneq_epi32_mask(__builtin_bit_cast(__m512i, held), _mm512_set1_epi32(-1)) != 0;
    // A power of two above all of them, so far that the highest digit is at most 127.
    const I above = ((largest + 0x10102) & 0x7f800000) + 0x00800000;
    store(scales[m] + run, in_lanes(float_of(above)));
    alignas(64) int32_t inverse[W];
    store(inverse, I(int32_t((254u + DIGIT_BITS) << 23)) - above);
    I halves[2][W];
    alignas(64) int8_t natural[DIGITS][W * RUN];
    for (int r = 0; r < W; r++) {
      const F factor = splat(__builtin_bit_cast(float, inverse[r]));
      UNROLL
      for (int half = 0; half < 2; half++) {
        const I whole = __builtin_bit_cast(I, _mm512_cvtps_epi32(part(r, half) * factor));
        halves[half][r] = whole;
        const I bytes = (whole + 0x8080) ^ 0x8080;  // the lower two signed as well
        UNROLL
        for (int d = 0; d < DIGITS; d++)
          store(natural[d] + r * RUN + half * W, __builtin_convertvector(bytes >> (8 * (DIGITS - 1 - d)), C));
      }
    }
    int8_t* to = q[m] + run / W * STRIDE;
    UNROLL
    for (int d = 0; d < DIGITS; d++) store_planes<Fmt>(natural[d], W, to + d * OF_CHUNK);
    store_zeros<Fmt, DIGITS>(to, to + DIGITS * OF_CHUNK);
    const I first = of_each(halves[0], Sum()), second = of_each(halves[1], Sum());
    if constexpr (Fmt::GROUPS == 1) {
      store(total[m][0] + run, to_float(first + second) * float_of(above));
    } else {
      store(total[m][0] + run, to_float(first) * float_of(above));
      store(total[m][1] + run, to_float(second) * float_of(above));
    }
  }
};

// y[i] = `sum` times the unit for i < count, or what plain float32 gives: where `plain`, and where the sum is so large
// that it might have left the range on the way, or NaN.
template <class Fmt>
static void store_few(F sum, float unit, bool plain, const float* x, const QuantizedWeight<Fmt>& weight, int64_t n,
                      int64_t count, float* y) {
  const I kept = __builtin_elementwise_abs(sum) < 0x1p120f;
  const bool all = _mm512_movepi32_mask(__builtin_bit_cast(__m512i, kept)) == 0xffff;
  if (all && !plain) return store_part(y, sum * unit, count);
  float in_float32[W];
  f32_rows<QuantizedWeight<Fmt>, 1>(x, weight, n, count, in_float32, count);
  const F other = load_part(in_float32, count);
  store_part(y, plain ? other : kept ? sum * unit : other, count);
}

// Rows: M rows of x as digits, or as terms.
template <class Rows, class Fmt, int M>
__attribute__((noinline)) static void few_rows(const float* x, const QuantizedWeight<Fmt>& weight, int64_t n, float* y,
                                               int64_t count, int64_t N, RowStore& store) {
  static_assert(sizeof(Rows) <= sizeof store.rows);
  Rows& input = *reinterpret_cast<Rows*>(store.rows);
  const int64_t K = weight.K, runs = K / RUN;
  constexpr int64_t BLOCK = MOST_SUMS / M;
  const bool whole = runs <= Rows::CAPACITY;
  bool ready = whole && store.has(x, Rows::KIND);
  store.keep(whole ? x : nullptr, Rows::KIND);
  Sums of_segments[BLOCK][M];
  for (int64_t i = 0; i < count; i += BLOCK) {
    const int64_t here = min(count - i, BLOCK);
    for (int64_t first = 0; first < runs; first += Rows::CAPACITY) {
      const int64_t of_segment = min(runs - first, Rows::CAPACITY);
      for (int m = 0; m < M && !ready; m++) input.fill(m, x + m * K, first, of_segment);
      ready = whole;
      for (int64_t r = 0; r < here; r++) {
        Sums acc[M];
        UNROLL
        for (int m = 0; m < M; m++) {
          acc[m].of[0] = acc[m].of[1] = 0;
          if (first > 0) acc[m] = of_segments[r][m];
        }
        input.add_row(acc, after<Fmt>(weight.row(n + i + r), first), of_segment);
        UNROLL
        for (int m = 0; m < M; m++) of_segments[r][m] = acc[m];
      }
    }
    for (int m = 0; m < M; m++)
      for (int64_t r = 0; r < here; r += W)
        store_few(sums_of(of_segments, m, r, here), Rows::UNIT, input.plain[m], x + m * K, weight, n + i + r,
                  min(here - r, W), y + m * N + i + r);
  }
}

template <class Fmt, int M>
struct FewRows {
  using Of = DigitRows<Fmt, M>;
};
#if STRIXHLO_BF16_TERMS
template <class Fmt, int M>
  requires(Fmt::LAYOUT == FP8)
struct FewRows<Fmt, M> {
  using Of = TermRows<Fmt, M>;
};
#endif

// All of a workgroup's weight rows, `count`. What a row gives does not depend on its company.
template <class Fmt, int M>
INLINE void few_rows_gemv(const float* x, const QuantizedWeight<Fmt>& weight, int64_t n, float* y, int64_t count, int64_t N,
                          RowStore& store) {
  using Rows = typename FewRows<Fmt, M>::Of;
  if constexpr (M > 1 && !Rows::SEGMENTS) {
    if (weight.K / RUN > Rows::CAPACITY) {
      few_rows_gemv<Fmt, M / 2>(x, weight, n, y, count, N, store);
      return few_rows_gemv<Fmt, M / 2>(x + M / 2 * weight.K, weight, n, y + M / 2 * N, count, N, store);
    }
  }
  few_rows<Rows, Fmt, M>(x, weight, n, y, count, N, store);
}
#endif
