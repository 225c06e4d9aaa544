// float16 and bfloat16, as vectors of W floats.
#pragma once
#include "vector.h"

typedef uint16_t Halves __attribute__((ext_vector_type(W)));

struct Bfloat {
  uint16_t bits;
};

#if STRIXHLO_PLAIN
INLINE F floats_of_halves(Halves halves) {
  const I all = __builtin_convertvector(halves, I), magnitude = all & 0x7fff;
  const I normal = (magnitude << 13) + (112 << 23);
  // Through an integer, so that subnormals survive a thread that flushes them to zero.
  const I subnormal = bits_of(to_float(magnitude) * 0x1p-24f);
  const I special = (magnitude << 13) | 0x7f800000;  // infinity, NaN
  const I bits = magnitude >= 0x7c00 ? special : magnitude >= 0x0400 ? normal : subnormal;
  return float_of(bits | ((all & 0x8000) << 16));
}

INLINE Halves halves_of_floats(F values) {
  const I all = bits_of(values), magnitude = all & 0x7fffffff;
  const I nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  // Adding 0.5 puts the last bit of a float16 subnormal in the last place, rounded.
  const I subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000;
  const I normal = (magnitude - (112 << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const I finite = magnitude < 0x38800000 ? subnormal : normal;
  const I bits = magnitude > 0x7f800000 ? nan : magnitude >= 0x477ff000 ? I(0x7c00) : finite;
  return __builtin_convertvector(bits | ((all >> 16) & 0x8000), Halves);
}
#endif

// The value of a float16.
INLINE float float_of_half(uint16_t half) {
#if STRIXHLO_PLAIN
  return floats_of_halves(Halves(half))[0];
#else
  return _cvtsh_ss(half);
#endif
}

INLINE F load_half(const uint16_t* p) {
#if STRIXHLO_AVX512
  return _mm512_cvtph_ps(load<__m256i>(p));
#elif STRIXHLO_AVX2
  return _mm256_cvtph_ps(load<__m128i>(p));
#else
  return floats_of_halves(load<Halves>(p));
#endif
}
// The first n lanes, the others zero.
INLINE F load_half_part(const uint16_t* p, int64_t n) {
#if STRIXHLO_AVX512
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1), p));
#else
  Halves v = 0;
  for (int i = 0; i < n; i++) v[i] = p[i];
  return load_half(reinterpret_cast<const uint16_t*>(&v));
#endif
}

// Rounds to nearest, ties to even; too large becomes infinity, NaN stays NaN.
INLINE void store_half(uint16_t* p, F v) {
#if STRIXHLO_AVX512
  store(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif STRIXHLO_AVX2
  store(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  store(p, halves_of_floats(v));
#endif
}

INLINE F load_bfloat(const uint16_t* p) { return float_of(__builtin_convertvector(load<Halves>(p), I) << 16); }
INLINE F load_bfloat_part(const uint16_t* p, int64_t n) {
#if STRIXHLO_AVX512
  const auto v = __builtin_bit_cast(Halves, _mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1), p));
#else
  Halves v = 0;
  for (int i = 0; i < n; i++) v[i] = p[i];
#endif
  return float_of(__builtin_convertvector(v, I) << 16);
}

// Rounds to nearest, ties to even; too large becomes infinity, NaN stays NaN.
INLINE void store_bfloat(Bfloat* p, F v) {
  const I bits = bits_of(v);
  const I rounded = bits + 0x7fff + ((bits >> 16) & 1);
  store(p, __builtin_convertvector(((bits & 0x7fffffff) > 0x7f800000 ? (bits | 0x00400000) : rounded) >> 16, Halves));
}
