// The vector of this build: 16, 8 or 4 floats wide, as -march allows. Everything above this file is written for W
// lanes.
#pragma once
#include <stddef.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define INLINE_MEMBER inline __attribute__((always_inline))
#define UNROLL _Pragma("clang loop unroll(full)")

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define STRIXHLO_AVX512 1
#if defined(__AVX512VBMI__)
#define STRIXHLO_VBMI 1
#endif
constexpr int W = 16;
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define STRIXHLO_AVX2 1
constexpr int W = 8;
#else
#define STRIXHLO_PLAIN 1
constexpr int W = 4;
#endif

typedef float F __attribute__((ext_vector_type(W)));
typedef int32_t I __attribute__((ext_vector_type(W)));
typedef uint8_t B __attribute__((ext_vector_type(4 * W)));
typedef int16_t S __attribute__((ext_vector_type(W)));
typedef uint8_t B16 __attribute__((ext_vector_type(16)));
typedef int32_t I4 __attribute__((ext_vector_type(4)));

// Weights are asked for this many bytes ahead, into the second cache: the first one has few places for what is on its
// way. Rows follow each other without a gap, so this runs on into the next rows.
constexpr int64_t PREFETCH = 8192;
INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

// `T` at any address, over memory of any type.
template <class T>
struct __attribute__((packed, may_alias)) Unaligned {
  T value;
};
template <class T>
INLINE T load(const void* p) {
  return static_cast<const Unaligned<T>*>(p)->value;
}
template <class T>
INLINE void store(void* p, T value) {
  static_cast<Unaligned<T>*>(p)->value = value;
}

INLINE constexpr int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE constexpr int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE F splat(float x) { return F(x); }
INLINE I bits_of(F x) { return __builtin_bit_cast(I, x); }
INLINE F float_of(I x) { return __builtin_bit_cast(F, x); }
INLINE F to_float(I x) { return __builtin_convertvector(x, F); }
INLINE I lane_index() {
  I lane;
  UNROLL
  for (int i = 0; i < W; i++) lane[i] = i;
  return lane;
}

// One rounding where the machine has it; the plain build rounds twice, the same way for every row count.
INLINE F fma(F a, F b, F c) {
#if STRIXHLO_PLAIN
  return a * b + c;
#else
  return __builtin_elementwise_fma(a, b, c);
#endif
}

// The first n lanes from memory, the others zero. Nothing past the n-th is touched.
INLINE F load_part(const float* p, int64_t n) {
#if STRIXHLO_AVX512
  return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p);
#elif STRIXHLO_AVX2
  return _mm256_maskload_ps(p, __builtin_bit_cast(__m256i, lane_index() < I(int32_t(n))));
#else
  F v = 0;
  for (int i = 0; i < n; i++) v[i] = p[i];
  return v;
#endif
}
INLINE void store_part(float* p, F v, int64_t n) {
#if STRIXHLO_AVX512
  _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), v);
#elif STRIXHLO_AVX2
  _mm256_maskstore_ps(p, __builtin_bit_cast(__m256i, lane_index() < I(int32_t(n))), v);
#else
  for (int i = 0; i < n; i++) p[i] = v[i];
#endif
}
INLINE I load_part(const int32_t* p, int64_t n) { return bits_of(load_part(reinterpret_cast<const float*>(p), n)); }

// Sum of the lanes, always in the same order.
INLINE float sum(F v) {
#if STRIXHLO_AVX512
  const auto eight = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#elif STRIXHLO_AVX2
  const auto eight = v;
#endif
#if STRIXHLO_PLAIN
  const auto four = v;
#else
  const auto four =
      __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
#endif
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// The even and the odd elements of the 2 W in a, b.
INLINE I evens(I a, I b) {
#if STRIXHLO_AVX512
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#elif STRIXHLO_AVX2
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
#else
  return __builtin_shufflevector(a, b, 0, 2, 4, 6);
#endif
}
INLINE I odds(I a, I b) {
#if STRIXHLO_AVX512
  return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif STRIXHLO_AVX2
  return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#else
  return __builtin_shufflevector(a, b, 1, 3, 5, 7);
#endif
}

// Lane i gets element FIRST + i / 4: one value for each 4 lanes.
template <int FIRST>
INLINE F by_four(F v) {
#if STRIXHLO_AVX512
  return __builtin_shufflevector(v, v, FIRST, FIRST, FIRST, FIRST, FIRST + 1, FIRST + 1, FIRST + 1, FIRST + 1,
                                 FIRST + 2, FIRST + 2, FIRST + 2, FIRST + 2, FIRST + 3, FIRST + 3, FIRST + 3,
                                 FIRST + 3);
#elif STRIXHLO_AVX2
  return __builtin_shufflevector(v, v, FIRST, FIRST, FIRST, FIRST, FIRST + 1, FIRST + 1, FIRST + 1, FIRST + 1);
#else
  return __builtin_shufflevector(v, v, FIRST, FIRST, FIRST, FIRST);
#endif
}

// As by_four, but of every four lanes the first two from a and the others from b.
template <int FIRST>
INLINE F by_two(F a, F b) {
#if STRIXHLO_AVX512
  return __builtin_shufflevector(a, b, FIRST, FIRST, 16 + FIRST, 16 + FIRST, FIRST + 1, FIRST + 1, 17 + FIRST,
                                 17 + FIRST, FIRST + 2, FIRST + 2, 18 + FIRST, 18 + FIRST, FIRST + 3, FIRST + 3,
                                 19 + FIRST, 19 + FIRST);
#endif
  const I upper = (lane_index() & 2) != 0;
  return float_of((bits_of(by_four<FIRST>(a)) & ~upper) | (bits_of(by_four<FIRST>(b)) & upper));
}

// The lanes moved down by W / 4, so that by_four<0> gives what by_four<W / 4> gave.
INLINE F next_four(F v) {
#if STRIXHLO_AVX512
  return __builtin_shufflevector(v, v, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3);
#elif STRIXHLO_AVX2
  return __builtin_shufflevector(v, v, 2, 3, 4, 5, 6, 7, 0, 1);
#else
  return __builtin_shufflevector(v, v, 1, 2, 3, 0);
#endif
}
