// The scales and minima of a row's groups, as float32.
#pragma once
#include "e4m3.h"
#include "formats.h"

// float32 scales (or minima) of the groups of W runs, of which the first `runs` exist; the rest is zero.
struct GroupValues {
  F first, second;  // groups of 16: of weights 0..15 and 16..31 of each run. Groups of 32 and more: only `first`
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

// int8 per group times float16 per 8 runs.
template <int GROUPS, bool FULL>
INLINE GroupValues two_levels(const void* values, const uint16_t* super, int64_t runs) {
  const F of_super = super_values<FULL>(super, runs);
  if constexpr (GROUPS == 1) {
    typedef int8_t C __attribute__((ext_vector_type(W)));
#if STRIXHLO_AVX512
    const C v = FULL ? load<C>(values) : __builtin_bit_cast(C, _mm_maskz_loadu_epi8(__mmask16((1u << runs) - 1), values));
#else
    const C v = load<C>(values);  // super groups are 8 runs: always whole here
#endif
    return {__builtin_convertvector(v, F) * of_super, {}};
  } else {
#if STRIXHLO_AVX512
    const S v =
        FULL ? load<S>(values) : __builtin_bit_cast(S, _mm256_maskz_loadu_epi16(__mmask16((1u << runs) - 1), values));
#else
    const S v = load<S>(values);
#endif
    return {__builtin_convertvector(S((v << 8) >> 8), F) * of_super,
            __builtin_convertvector(S(v >> 8), F) * of_super};
  }
}

// Lane i: element i >> shift of an array of reals, for the first `runs` lanes; the others hold anything finite that is
// in the array or zero.
INLINE F shared_values(const void* values, int32_t type, int32_t shift, int64_t runs) {
  const int64_t count = ((runs - 1) >> shift) + 1;
  const uint16_t* halves = static_cast<const uint16_t*>(values);
  F v;
  if (type == REAL_F32)
    v = load_part(static_cast<const float*>(values), count);
  else if (type == REAL_F16)
    v = load_half_part(halves, count);
  else
    v = load_bfloat_part(halves, count);
  const I from = lane_index() >> I(shift);
#if STRIXHLO_AVX512
  return _mm512_permutexvar_ps(__builtin_bit_cast(__m512i, from), v);
#elif STRIXHLO_AVX2
  return _mm256_permutevar8x32_ps(v, __builtin_bit_cast(__m256i, from));
#else
  F result;
  UNROLL
  for (int i = 0; i < W; i++) result[i] = v[from[i]];
  return result;
#endif
}

// The first `runs` bytes, as integers.
INLINE I load_bytes_part(const void* p, int64_t runs) {
  Bytes v = 0;
  if (runs == W) {
    v = load<Bytes>(p);
  } else {
#if STRIXHLO_AVX512
    v = __builtin_bit_cast(Bytes, _mm_maskz_loadu_epi8(__mmask16((1u << runs) - 1), p));
#else
    for (int i = 0; i < runs; i++) v[i] = static_cast<const uint8_t*>(p)[i];
#endif
  }
  return __builtin_convertvector(v, I);
}

// 2^(bits - bias), bias 127 or 128; 255 is NaN.
INLINE F powers_of_two(I bits, int bias) {
#if STRIXHLO_AVX512
  const __m512i above = __builtin_bit_cast(__m512i, bits - (bias - 126));  // the smallest that is a normal float
  if (_mm512_cmple_epu32_mask(above, _mm512_set1_epi32(254 - (bias - 126))) == 0xffff)
    return float_of((bits << 23) - ((bias - 127) << 23));
#endif
  const I exponent = bits - (bias - 127);
  const I subnormal = exponent == 0 ? I(0x00400000) : I(0x00200000);
  const I finite = exponent > 0 ? exponent << 23 : subnormal;
  return float_of(bits == 255 ? I(0x7fc00000) : finite);
}

#if STRIXHLO_AVX512
// 2^-8 of the numbers in the upper bytes: their fields where a float16 has them.
INLINE F e4m3_in_upper_bytes(S numbers) {
  const S half = (numbers >> S(1)) & S(int16_t(0xbf80));
  const S nan = (half & S(0x7fff)) == S(0x3f80);
  return F(_mm512_cvtph_ps(__builtin_bit_cast(__m256i, S(half | (nan & S(0x7e00))))));
}
#endif

// E4M3 per 16 weights times one float32, halved for the doubled codes.
INLINE GroupValues nvidia_scales(const void* values, float global_scale, int64_t runs) {
  typedef uint16_t Pairs __attribute__((ext_vector_type(W)));
  Pairs pairs = 0;
  if (runs == W) {
    pairs = load<Pairs>(values);
  } else {
#if STRIXHLO_AVX512
    pairs = __builtin_bit_cast(Pairs, _mm256_maskz_loadu_epi16(__mmask16((1u << runs) - 1), values));
#else
    for (int i = 0; i < runs; i++) pairs[i] = load<uint16_t>(advance(values, 2 * i));
#endif
  }
#if STRIXHLO_AVX512
  const S lower = __builtin_bit_cast(S, pairs) << S(8), upper = __builtin_bit_cast(S, pairs);
  return {e4m3_in_upper_bytes(lower) * 128.0f * global_scale, e4m3_in_upper_bytes(upper) * 128.0f * global_scale};
#else
  const Bytes first = __builtin_convertvector(Pairs(pairs & Pairs(255)), Bytes);
  const Bytes second = __builtin_convertvector(Pairs(pairs >> Pairs(8)), Bytes);
  return {floats_of_e4m3(first) * global_scale * 0.5f, floats_of_e4m3(second) * global_scale * 0.5f};
#endif
}

template <class Fmt, bool FULL>
INLINE GroupValues scales(const Parts& row, int64_t runs) {
  if constexpr (Fmt::SCALING == HALF) {
    const uint16_t* p = static_cast<const uint16_t*>(row.scale);
    return {FULL ? load_half(p) : load_half_part(p, runs), {}};
  } else if constexpr (Fmt::SCALING == SUPER) {
    return two_levels<Fmt::GROUPS, FULL>(row.scale, row.super_scale, runs);
  } else if constexpr (Fmt::SCALING == AFFINE) {
    return {shared_values(row.scale, row.grouping.scale_type, row.grouping.shift, FULL ? W : runs), {}};
  } else if constexpr (Fmt::SCALING == E8M0) {
    return {powers_of_two(load_bytes_part(row.scale, FULL ? W : runs), Fmt::LAYOUT == FP4 ? 128 : 127), {}};
  } else if constexpr (Fmt::SCALING == E4M3) {
    return nvidia_scales(row.scale, *row.global_scale, FULL ? W : runs);
  } else {
    return {shared_values(row.scale, REAL_F32, row.grouping.shift, FULL ? W : runs), {}};
  }
}

// What is added to code * scale: of formats with MINIMUM.
template <class Fmt, bool FULL>
INLINE GroupValues minima(const Parts& row, int64_t runs) {
  if constexpr (Fmt::SCALING == AFFINE) {
    return {shared_values(row.minimum, row.grouping.minimum_type, row.grouping.shift, FULL ? W : runs), {}};
  } else if constexpr (Fmt::SCALING == SUPER) {
    return two_levels<Fmt::GROUPS, FULL>(row.minimum, row.super_minimum, runs);
  } else {
    const uint16_t* p = static_cast<const uint16_t*>(row.minimum);
    return {FULL ? load_half(p) : load_half_part(p, runs), {}};
  }
}
