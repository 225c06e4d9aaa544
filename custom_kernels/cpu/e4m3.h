// E4M3 "fn" numbers (bias 7, no infinity, 0x7f is NaN), as vectors of W floats: the elements of an fp8 KV pool.
#pragma once
#include "vector.h"

typedef uint8_t Bytes __attribute__((ext_vector_type(W)));

INLINE F floats_of_e4m3(Bytes bytes) {
#if !STRIXHLO_PLAIN  // its fields where a float16 has them: that is 2^-8 of it
  typedef int8_t Signed __attribute__((ext_vector_type(W)));
  typedef int16_t H __attribute__((ext_vector_type(W)));
  const H wide = __builtin_convertvector(__builtin_bit_cast(Signed, bytes), H);
  const H half = (wide << H(7)) & H(int16_t(0xbfff));
#if STRIXHLO_AVX512
  const F value = F(_mm512_cvtph_ps(__builtin_bit_cast(__m256i, half))) * 256.0f;
#else
  const F value = F(_mm256_cvtph_ps(__builtin_bit_cast(__m128i, half))) * 256.0f;
#endif
  return __builtin_elementwise_abs(value) == 480.0f ? F(__builtin_nanf("")) : value;
#else
  const I all = __builtin_convertvector(bytes, I), magnitude = all & 0x7f;
  const I normal = (magnitude << 20) + (120 << 23);
  const I subnormal = bits_of(to_float(magnitude) * 0x1p-9f);
  const I finite = magnitude >= 8 ? normal : subnormal;
  const I bits = magnitude == 0x7f ? I(0x7fc00000) : finite;
  return float_of(bits | ((all & 0x80) << 24));
#endif
}

// Rounds to nearest, ties to even; too large becomes 448, NaN stays NaN.
INLINE Bytes e4m3_of_floats(F values) {
  const I all = bits_of(values), magnitude = all & 0x7fffffff;
  const I clipped = magnitude > 0x43e00000 ? I(0x43e00000) : magnitude;
  const I normal = (clipped - (120 << 23) + 0x7ffff + ((clipped >> 20) & 1)) >> 20;
  // Adding 2^14 leaves a multiple of 2^-9, the step of the subnormals.
  const I subnormal = bits_of(float_of(clipped) + 0x1p14f) - (141 << 23);
  const I finite = clipped < (121 << 23) ? subnormal : normal;
  const I bits = magnitude > 0x7f800000 ? I(0x7f) : finite;
  return __builtin_convertvector(bits | ((all >> 24) & 0x80), Bytes);
}

INLINE F load_e4m3_part(const uint8_t* p, int64_t n) {
  Bytes v = 0;
  for (int i = 0; i < n; i++) v[i] = p[i];
  return floats_of_e4m3(v);
}
