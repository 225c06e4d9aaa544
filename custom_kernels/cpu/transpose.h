// Rows to columns: weight rows side by side, and the sums of W vectors at once; 4 x 4 elements in each 128-bit lane.
#pragma once
#include "vector.h"

template <int LANE>
INLINE I4 lane_of(I v) {
  return __builtin_shufflevector(v, v, 4 * LANE, 4 * LANE + 1, 4 * LANE + 2, 4 * LANE + 3);
}

// The lower (or upper) two elements of each lane of a and of b, alternating.
template <bool UPPER>
INLINE I interleave(I a, I b) {
#if STRIXHLO_AVX512
  const __m512i x = __builtin_bit_cast(__m512i, a), y = __builtin_bit_cast(__m512i, b);
  return __builtin_bit_cast(I, UPPER ? _mm512_unpackhi_epi32(x, y) : _mm512_unpacklo_epi32(x, y));
#elif STRIXHLO_AVX2
  const __m256i x = __builtin_bit_cast(__m256i, a), y = __builtin_bit_cast(__m256i, b);
  return __builtin_bit_cast(I, UPPER ? _mm256_unpackhi_epi32(x, y) : _mm256_unpacklo_epi32(x, y));
#else
  return UPPER ? __builtin_shufflevector(a, b, 2, 6, 3, 7) : __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}

// Element e of rows v[0..3] goes to the 16 bytes at out + (e / 4) * lane_stride + (e % 4) * stride (in elements), for
// the first `lanes` lanes of 4 elements.
INLINE void store_transposed(int32_t* out, int64_t stride, int64_t lane_stride, const I v[4], int lanes) {
  const I a = interleave<false>(v[0], v[2]), b = interleave<false>(v[1], v[3]);
  const I c = interleave<true>(v[0], v[2]), d = interleave<true>(v[1], v[3]);
  const I columns[4] = {interleave<false>(a, b), interleave<true>(a, b), interleave<false>(c, d),
                        interleave<true>(c, d)};
  UNROLL
  for (int e = 0; e < 4; e++) {
    int32_t* to = out + e * stride;
    store(to, lane_of<0>(columns[e]));
    if constexpr (W > 4)
      if (lanes > 1) store(to + lane_stride, lane_of<1>(columns[e]));
    if constexpr (W > 8) {
      if (lanes > 2) store(to + 2 * lane_stride, lane_of<2>(columns[e]));
      if (lanes > 3) store(to + 3 * lane_stride, lane_of<3>(columns[e]));
    }
  }
}

// Lane i of the result: the sum of v[i].
INLINE F sums(const F (&v)[W]) {
  F by_lane[W / 4];  // each 128-bit lane: partial sums of four of the vectors
  UNROLL
  for (int i = 0; i < W / 4; i++) {
    const I a = bits_of(v[4 * i]), b = bits_of(v[4 * i + 1]), c = bits_of(v[4 * i + 2]), d = bits_of(v[4 * i + 3]);
    const I ac = bits_of(float_of(interleave<false>(a, c)) + float_of(interleave<true>(a, c)));
    const I bd = bits_of(float_of(interleave<false>(b, d)) + float_of(interleave<true>(b, d)));
    by_lane[i] = float_of(interleave<false>(ac, bd)) + float_of(interleave<true>(ac, bd));
  }
#if STRIXHLO_AVX512
  const __m512 a = by_lane[0], b = by_lane[1], c = by_lane[2], d = by_lane[3];
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x88), _mm512_shuffle_f32x4(c, d, 0xdd));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
#elif STRIXHLO_AVX2
  const __m256 a = by_lane[0], b = by_lane[1];
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
#else
  return by_lane[0];
#endif
}
