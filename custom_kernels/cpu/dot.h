// Integer dot products: four bytes of weights times four bytes of activations, added to each 32-bit lane.
#pragma once
#include "codes.h"
#include "group_scales.h"

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

#if !STRIXHLO_VNNI && !STRIXHLO_PLAIN
typedef int16_t H __attribute__((ext_vector_type(2 * W)));
struct Signed {
  B w, x;
};
#if STRIXHLO_AVX512
INLINE H dot_pairs(B w, B x) {
  return __builtin_bit_cast(H, _mm512_maddubs_epi16(__builtin_bit_cast(__m512i, w), __builtin_bit_cast(__m512i, x)));
}
INLINE I sum_pairs(H v) {
  return __builtin_bit_cast(I, _mm512_madd_epi16(__builtin_bit_cast(__m512i, v), _mm512_set1_epi16(1)));
}
INLINE Signed move_sign(B w, B x) {
  const __m512i u = __builtin_bit_cast(__m512i, w), s = __builtin_bit_cast(__m512i, x);
  const __m512i negated = _mm512_mask_sub_epi8(s, _mm512_movepi8_mask(u), _mm512_setzero_si512(), s);
  return {__builtin_bit_cast(B, _mm512_abs_epi8(u)), __builtin_bit_cast(B, negated)};
}
#else
INLINE H dot_pairs(B w, B x) {
  return __builtin_bit_cast(H, _mm256_maddubs_epi16(__builtin_bit_cast(__m256i, w), __builtin_bit_cast(__m256i, x)));
}
INLINE I sum_pairs(H v) {
  return __builtin_bit_cast(I, _mm256_madd_epi16(__builtin_bit_cast(__m256i, v), _mm256_set1_epi16(1)));
}
INLINE Signed move_sign(B w, B x) {
  const __m256i u = __builtin_bit_cast(__m256i, w), s = __builtin_bit_cast(__m256i, x);
  return {__builtin_bit_cast(B, _mm256_abs_epi8(u)), __builtin_bit_cast(B, _mm256_sign_epi8(s, u))};
}
#endif
#endif

// acc + sums of 4 products. w: prepared codes; x: signed bytes, -127 .. 127.
template <class Fmt>
INLINE I dot(I acc, B w, B x) {
#if STRIXHLO_VNNI
  return __builtin_bit_cast(I, _mm512_dpbusd_epi32(__builtin_bit_cast(__m512i, acc), __builtin_bit_cast(__m512i, w),
                                                   __builtin_bit_cast(__m512i, x)));
#elif !STRIXHLO_PLAIN
  if constexpr (Fmt::BITS == 8) {  // |w| * (x with w's sign): 128 * 127 * 2 fits 16 bits, 255 * 127 * 2 would not
    const Signed moved = move_sign(w, x);
    return acc + sum_pairs(dot_pairs(moved.w, moved.x));
  }
  return acc + sum_pairs(dot_pairs(w, x));
#else
  typedef int8_t C __attribute__((ext_vector_type(16)));
  typedef int16_t P __attribute__((ext_vector_type(16)));  // a product of two codes fits: 128 * 127
  typedef int32_t T __attribute__((ext_vector_type(16)));
  const P codes = Fmt::BITS == 8 ? __builtin_convertvector(__builtin_bit_cast(C, w), P) : __builtin_convertvector(w, P);
  const T products = __builtin_convertvector(codes * __builtin_convertvector(__builtin_bit_cast(C, x), P), T);
  const auto pairs = __builtin_shufflevector(products, products, 0, 2, 4, 6, 8, 10, 12, 14) +
                     __builtin_shufflevector(products, products, 1, 3, 5, 7, 9, 11, 13, 15);
  return acc + __builtin_shufflevector(pairs, pairs, 0, 2, 4, 6) + __builtin_shufflevector(pairs, pairs, 1, 3, 5, 7);
#endif
}

// start + the products of 4 * COUNT columns of W weight rows side by side with one row of activations (4 * COUNT
// bytes).
template <class Fmt, int COUNT>
INLINE I dot_columns(I start, const int32_t (*w)[W], const int8_t* x) {
#if STRIXHLO_VNNI || STRIXHLO_PLAIN
  UNROLL
  for (int i = 0; i < COUNT; i++)
    start = dot<Fmt>(start, load<B>(w[i]), __builtin_bit_cast(B, I(load<int32_t>(x + 4 * i))));
  return start;
#else
  // Products of unsigned codes and activations can be summed in 16 bits this many times: 2 * 127 * code each.
  constexpr int FITS = Fmt::BITS <= 4 ? 8 : Fmt::BITS == 5 ? 4 : Fmt::BITS == 6 ? 2 : 1;
  constexpr int SUMMED = FITS < COUNT ? FITS : COUNT;
  UNROLL
  for (int i = 0; i < COUNT; i += SUMMED) {
    if constexpr (Fmt::BITS == 8) {
      start = dot<Fmt>(start, load<B>(w[i]), __builtin_bit_cast(B, I(load<int32_t>(x + 4 * i))));
    } else {
      H pairs = dot_pairs(load<B>(w[i]), __builtin_bit_cast(B, I(load<int32_t>(x + 4 * i))));
      UNROLL
      for (int j = 1; j < SUMMED; j++)
        pairs += dot_pairs(load<B>(w[i + j]), __builtin_bit_cast(B, I(load<int32_t>(x + 4 * (i + j)))));
      start += sum_pairs(pairs);
    }
  }
  return start;
#endif
}
