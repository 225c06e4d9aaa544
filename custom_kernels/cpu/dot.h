// Integer dot products: four bytes of weights times four bytes of activations, added to each 32-bit lane.
#pragma once
#include "codes.h"

#if STRIXHLO_AVX512 && defined(__AVX512VNNI__)
#define STRIXHLO_VNNI 1
#endif

// What is subtracted from the weight's code: vpdpbusd wants unsigned weights, so 8-bit codes are moved up by 128.
template <class Fmt>
constexpr int zero_of() {
#if STRIXHLO_VNNI
  return Fmt::BITS == 8 ? 128 : Fmt::ZERO;
#else
  return Fmt::ZERO;
#endif
}

// Codes as `dot` wants them.
template <class Fmt>
INLINE B prepared(B codes) {
#if STRIXHLO_VNNI
  if constexpr (Fmt::BITS == 8) return codes ^ B(128);
#endif
  return codes;
}

// acc + sums of 4 products. w: prepared codes; x: signed bytes, -127 .. 127.
template <class Fmt>
INLINE I dot(I acc, B w, B x) {
#if STRIXHLO_VNNI
  return __builtin_bit_cast(I, _mm512_dpbusd_epi32(__builtin_bit_cast(__m512i, acc), __builtin_bit_cast(__m512i, w),
                                                   __builtin_bit_cast(__m512i, x)));
#elif STRIXHLO_AVX512
  __m512i u = __builtin_bit_cast(__m512i, w), s = __builtin_bit_cast(__m512i, x);
  if constexpr (Fmt::BITS == 8) {  // |w| * (x with w's sign): 128 * 127 * 2 fits 16 bits, 255 * 127 * 2 would not
    s = _mm512_mask_sub_epi8(s, _mm512_movepi8_mask(u), _mm512_setzero_si512(), s);
    u = _mm512_abs_epi8(u);
  }
  const __m512i pairs = _mm512_madd_epi16(_mm512_maddubs_epi16(u, s), _mm512_set1_epi16(1));
  return acc + __builtin_bit_cast(I, pairs);
#elif STRIXHLO_AVX2
  __m256i u = __builtin_bit_cast(__m256i, w), s = __builtin_bit_cast(__m256i, x);
  if constexpr (Fmt::BITS == 8) {
    s = _mm256_sign_epi8(s, u);
    u = _mm256_abs_epi8(u);
  }
  const __m256i pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1));
  return acc + __builtin_bit_cast(I, pairs);
#else
  UNROLL for (int i = 0; i < W; i++) UNROLL for (int j = 0; j < 4; j++) {
    const int code = Fmt::BITS == 8 ? int(int8_t(w[4 * i + j])) : int(w[4 * i + j]);
    acc[i] += code * int(int8_t(x[4 * i + j]));
  }
  return acc;
#endif
}
