// Rows of activations rounded to 8 bits, per 32 columns one scale; on the way there they may be normalized.
#pragma once
#include "formats.h"
#include "transpose.h"

constexpr int HALF_RUN = 16;  // columns whose quantized values are summed
constexpr int SIDE_BY_SIDE = W * HALF_RUN;  // columns whose scales are worked out side by side
constexpr int OF_HALF = HALF_RUN / W;  // vectors of one half

struct Larger {
  INLINE_MEMBER I operator()(I a, I b) const { return __builtin_elementwise_max(a, b); }
};
struct Sum {
  INLINE_MEMBER I operator()(I a, I b) const { return a + b; }
};

// Lane i of the result: all lanes of v[i] taken together.
template <class Op>
INLINE I of_each(const I (&v)[W], Op op) {
  I by_lane[W / 4];
  UNROLL
  for (int i = 0; i < W / 4; i++) {
    const I ac = op(interleave<false>(v[4 * i], v[4 * i + 2]), interleave<true>(v[4 * i], v[4 * i + 2]));
    const I bd = op(interleave<false>(v[4 * i + 1], v[4 * i + 3]), interleave<true>(v[4 * i + 1], v[4 * i + 3]));
    by_lane[i] = op(interleave<false>(ac, bd), interleave<true>(ac, bd));
  }
#if STRIXHLO_AVX512
  const __m512i a = __builtin_bit_cast(__m512i, by_lane[0]), b = __builtin_bit_cast(__m512i, by_lane[1]);
  const __m512i c = __builtin_bit_cast(__m512i, by_lane[2]), d = __builtin_bit_cast(__m512i, by_lane[3]);
  const auto both = [&](__m512i x, __m512i y) __attribute__((always_inline)) {
    return __builtin_bit_cast(__m512i, op(__builtin_bit_cast(I, _mm512_shuffle_i32x4(x, y, 0x88)),
                                          __builtin_bit_cast(I, _mm512_shuffle_i32x4(x, y, 0xdd))));
  };
  return __builtin_bit_cast(I, both(both(a, b), both(c, d)));
#elif STRIXHLO_AVX2
  const __m256i a = __builtin_bit_cast(__m256i, by_lane[0]), b = __builtin_bit_cast(__m256i, by_lane[1]);
  return op(__builtin_bit_cast(I, _mm256_permute2x128_si256(a, b, 0x20)),
            __builtin_bit_cast(I, _mm256_permute2x128_si256(a, b, 0x31)));
#else
  return by_lane[0];
#endif
}

// Each lane's neighbour: 1, 0, 3, 2, ...
INLINE I neighbours(I v) {
#if STRIXHLO_AVX512
  return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#elif STRIXHLO_AVX2
  return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
#else
  return __builtin_shufflevector(v, v, 1, 0, 3, 2);
#endif
}

// A row as it is; see rms_norm.h for one that is normalized.
struct AsItIs {
  const float* x;
  INLINE_MEMBER F at(int64_t k) const { return load<F>(x + k); }
};

// `halves` times 16 columns from the k-th, an even number and at most W. A scale is the largest magnitude / 127; one
// below the normal floats stands for zero; infinity or NaN anywhere in its 32 columns makes it NaN.
template <bool FULL, class Row>
INLINE void quantize_block(const Row& row, int64_t k, int halves, int8_t* xq, float* xs, int32_t* xsum) {
  typedef int8_t C __attribute__((ext_vector_type(W)));
  alignas(64) F values[W * OF_HALF];
  I most[W];
  UNROLL
  for (int h = 0; h < W; h++) {
    most[h] = 0;
    UNROLL
    for (int i = 0; i < OF_HALF; i++) {
      F& v = values[h * OF_HALF + i];
      v = FULL || h < halves ? row.at(k + h * HALF_RUN + i * W) : F(0.0f);
      // As the bits of a float: an order that puts infinity above every number, and NaN above infinity.
      most[h] = __builtin_elementwise_max(most[h], bits_of(v) & 0x7fffffff);
    }
  }
  const I of_half = of_each(most, Larger());
  const I largest = __builtin_elementwise_max(of_half, neighbours(of_half));
  F scale = float_of(largest) / 127.0f;
  F inverse = 1.0f / scale;
  const I normal = scale >= 0x1p-126f, finite = largest < 0x7f800000;
  scale = float_of(bits_of(scale) & normal);
  inverse = float_of(bits_of(inverse) & normal & finite);
  scale = finite ? scale : F(__builtin_nanf(""));
  alignas(64) float inverses[W];
  alignas(64) int32_t kept[W], scales[W];
  store(inverses, inverse);
  store(kept, finite);
  store(scales, bits_of(scale));
  UNROLL
  for (int h = 0; h < W; h += 2) {
    if (FULL || h < halves) xs[h / 2] = __builtin_bit_cast(float, scales[h]);
  }
  I totals[W];
  UNROLL
  for (int h = 0; h < W; h++) {
    totals[h] = 0;
    UNROLL
    for (int i = 0; i < OF_HALF; i++) {
      // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits.
      const F magic = 0x1.8p23f;
      const I q = (bits_of(values[h * OF_HALF + i] * splat(inverses[h]) + magic) - bits_of(magic)) & I(kept[h]);
      totals[h] += q;
      if (FULL || h < halves) store(xq + h * HALF_RUN + i * W, __builtin_convertvector(q, C));
    }
  }
  const I sums_of_halves = of_each(totals, Sum());
  if (FULL) {
    store(xsum, sums_of_halves);
  } else {
    for (int h = 0; h < halves; h++) xsum[h] = sums_of_halves[h];
  }
}

// A row of K columns, a multiple of 32 -> xq int8 [K], xs float32 [K / 32], xsum int32 [K / 16] (sums of xq). It is
// about xq * xs: xs = max / 127, xq = x * (1 / xs), rounded to nearest even.
template <class Row>
static void quantize_row(const Row& row, int64_t K, int8_t* xq, float* xs, int32_t* xsum) {
  int64_t k = 0;
  for (; k + SIDE_BY_SIDE <= K; k += SIDE_BY_SIDE) quantize_block<true>(row, k, W, xq + k, xs + k / RUN, xsum + k / HALF_RUN);
  if (k < K) quantize_block<false>(row, k, int((K - k) / HALF_RUN), xq + k, xs + k / RUN, xsum + k / HALF_RUN);
}
