// The quantized weight formats (see ops/formats.py) and where one weight row's parts lie.
#pragma once
#include "half.h"

constexpr int RUN = 32;  // weights packed together

template <int BITS_, int GROUP_, int ZERO_, bool MINIMUM_, bool SUPER_>
struct Format {
  static constexpr int BITS = BITS_, GROUP = GROUP_, ZERO = ZERO_;
  static constexpr bool MINIMUM = MINIMUM_, SUPER = SUPER_;  // SUPER: int8 per group times float16 per 256 weights
  static constexpr int PLANES = BITS == 8 ? 0 : BITS - 4;
  static constexpr int GROUPS = RUN / GROUP;  // groups of one run
  static constexpr int CODE_BYTES = BITS == 8 ? RUN : RUN / 2;
  static constexpr int SCALE_BYTES = SUPER ? 1 : 2;
};

using Q4_0 = Format<4, 32, 8, false, false>;
using Q4_1 = Format<4, 32, 0, true, false>;
using Q5_0 = Format<5, 32, 16, false, false>;
using Q5_1 = Format<5, 32, 0, true, false>;
using Q8_0 = Format<8, 32, 0, false, false>;
using Q4_K = Format<4, 32, 0, true, true>;
using Q5_K = Format<5, 32, 0, true, true>;
using Q6_K = Format<6, 16, 32, false, true>;

// The parts of a weight, or of one row of it. Parts that the format lacks stay null.
struct Parts {
  const uint8_t* codes = nullptr;
  const int32_t* high = nullptr;
  const void* scale = nullptr;
  const uint16_t* super_scale = nullptr;
  const void* minimum = nullptr;
  const uint16_t* super_minimum = nullptr;
};

INLINE const void* advance(const void* p, int64_t bytes) { return static_cast<const uint8_t*>(p) + bytes; }

// `parts`, moved on by so many runs. (256 weights, one super group, are 8 runs.)
template <class Fmt>
INLINE Parts after(Parts parts, int64_t runs) {
  parts.codes += runs * Fmt::CODE_BYTES;
  if constexpr (Fmt::PLANES > 0) parts.high += runs * Fmt::PLANES;
  parts.scale = advance(parts.scale, runs * Fmt::GROUPS * Fmt::SCALE_BYTES);
  if constexpr (Fmt::SUPER) parts.super_scale += runs / 8;
  if constexpr (Fmt::MINIMUM) parts.minimum = advance(parts.minimum, runs * Fmt::GROUPS * Fmt::SCALE_BYTES);
  if constexpr (Fmt::MINIMUM && Fmt::SUPER) parts.super_minimum += runs / 8;
  return parts;
}

// Row n of a weight of K columns.
template <class Fmt>
INLINE Parts row_of(const Parts& weight, int64_t n, int64_t K) {
  return after<Fmt>(weight, n * (K / RUN));
}

// float32 scales (or minima) of the groups of W runs, of which the first `runs` exist; the rest is zero.
struct GroupValues {
  F first, second;  // groups of 16: of weights 0..15 and 16..31 of each run. Groups of 32: only `first`
};

// The super scale of each of W runs, the first being a multiple of 8 from the start of the row.
template <bool FULL>
INLINE F super_values(const uint16_t* super, int64_t runs) {
#if STRIXHLO_AVX512
  const uint32_t both = FULL || runs > 8 ? load<uint32_t>(super) : super[0];
  const __m256i which = _mm256_set_epi64x(0x0001000100010001, 0x0001000100010001, 0, 0);
  return _mm512_cvtph_ps(_mm256_permutexvar_epi16(which, _mm256_set1_epi32(int32_t(both))));
#else
  (void)runs;
  return splat(float_of_half(super[0]));
#endif
}

template <class Fmt, bool FULL>
INLINE GroupValues group_values(const void* values, const uint16_t* super, int64_t runs) {
  GroupValues result = {};
  if constexpr (!Fmt::SUPER) {
    const uint16_t* p = static_cast<const uint16_t*>(values);
    result.first = FULL ? load_half(p) : load_half_part(p, runs);
  } else if constexpr (Fmt::GROUP == 32) {
    typedef int8_t C __attribute__((ext_vector_type(W)));
    C v;
#if STRIXHLO_AVX512
    v = FULL ? load<C>(values) : __builtin_bit_cast(C, _mm_maskz_loadu_epi8(__mmask16((1u << runs) - 1), values));
#else
    v = load<C>(values);  // super groups are 8 runs: always whole here
#endif
    result.first = __builtin_convertvector(v, F) * super_values<FULL>(super, runs);
  } else {
    S v;
#if STRIXHLO_AVX512
    v = FULL ? load<S>(values) : __builtin_bit_cast(S, _mm256_maskz_loadu_epi16(__mmask16((1u << runs) - 1), values));
#else
    v = load<S>(values);
#endif
    const F of_super = super_values<FULL>(super, runs);
    result.first = __builtin_convertvector(S((v << 8) >> 8), F) * of_super;
    result.second = __builtin_convertvector(S(v >> 8), F) * of_super;
  }
  return result;
}
template <class Fmt, bool FULL>
INLINE GroupValues scales(const Parts& row, int64_t runs) {
  return group_values<Fmt, FULL>(row.scale, row.super_scale, runs);
}
template <class Fmt, bool FULL>
INLINE F minima(const Parts& row, int64_t runs) {
  static_assert(Fmt::GROUP == 32, "no format has minima per 16 weights");
  return group_values<Fmt, FULL>(row.minimum, row.super_minimum, runs).first;
}
