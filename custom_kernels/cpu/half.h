// float16 and bfloat16, as vectors of W floats.
#pragma once
#include "vector.h"

// Bits of a float16 -> float. Goes through an integer, so that subnormals survive a thread that flushes them to zero.
INLINE float float_of_half(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const uint32_t sign = uint32_t(half & 0x8000u) << 16;
  uint32_t bits;
  if (magnitude >= 0x7c00u)
    bits = (magnitude << 13) | 0x7f800000u;
  else if (magnitude >= 0x0400u)
    bits = (magnitude << 13) + (112u << 23);
  else
    bits = __builtin_bit_cast(uint32_t, float(magnitude) * 0x1p-24f);
  return __builtin_bit_cast(float, bits | sign);
}

// float -> bits of the nearest float16, ties to even; too large becomes infinity, NaN stays NaN.
INLINE uint16_t half_of_float(float value) {
  const uint32_t all = __builtin_bit_cast(uint32_t, value);
  const uint32_t magnitude = all & 0x7fffffffu;
  const uint32_t sign = (all >> 16) & 0x8000u;
  uint32_t bits;
  if (magnitude > 0x7f800000u)
    bits = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  else if (magnitude >= 0x477ff000u)
    bits = 0x7c00u;
  else if (magnitude < 0x38800000u)  // adding 0.5 puts the last bit of a float16 subnormal in the last place
    bits = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) + 0.5f) - 0x3f000000u;
  else
    bits = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  return uint16_t(bits | sign);
}

INLINE F load_half(const uint16_t* p) {
#if STRIXHLO_AVX512
  return _mm512_cvtph_ps(load<__m256i>(p));
#elif STRIXHLO_AVX2
  return _mm256_cvtph_ps(load<__m128i>(p));
#else
  F v;
  UNROLL for (int i = 0; i < W; i++) v[i] = float_of_half(p[i]);
  return v;
#endif
}
INLINE F load_half_part(const uint16_t* p, int64_t n) {
#if STRIXHLO_AVX512
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1), p));
#else
  uint16_t copy[W];
  UNROLL for (int i = 0; i < W; i++) copy[i] = i < n ? p[i] : 0;
  return load_half(copy);
#endif
}
INLINE void store_half(uint16_t* p, F v) {
#if STRIXHLO_AVX512
  store(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif STRIXHLO_AVX2
  store(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  UNROLL for (int i = 0; i < W; i++) p[i] = half_of_float(v[i]);
#endif
}

INLINE F load_bfloat(const uint16_t* p) {
  typedef uint16_t U __attribute__((ext_vector_type(W)));
  return float_of(__builtin_convertvector(load<U>(p), I) << 16);
}
INLINE F load_bfloat_part(const uint16_t* p, int64_t n) {
  uint16_t copy[W];
  UNROLL for (int i = 0; i < W; i++) copy[i] = i < n ? p[i] : 0;
  return load_bfloat(copy);
}
