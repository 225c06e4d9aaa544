// Codes of 2 to 8 bits in one stream of bits, the first code lowest: a run of 32 is 4 * BITS bytes, 8 codes are BITS.
#pragma once
#include "vector.h"

// The bytes of a stream that a code is in: its first bit is bit `shift_of` of byte `byte_of`.
constexpr int byte_of(int code, int bits) { return code * bits / 8; }
constexpr int shift_of(int code, int bits) { return code * bits % 8; }

// N <= 8 bytes as a number; nothing else is read.
template <int N>
INLINE uint64_t load_number(const uint8_t* p) {
  if constexpr (N == 8) return load<uint64_t>(p);
  uint64_t v = 0;
  int at = 0;
  if constexpr (N & 4) v = load<uint32_t>(p), at = 4;
  if constexpr (N & 2) v |= uint64_t(load<uint16_t>(p + at)) << (8 * at), at += 2;
  if constexpr (N & 1) v |= uint64_t(p[at]) << (8 * at);
  return v;
}

// Codes v * W .. of a run, each in the low BITS bits of its lane; above them is anything.
template <int BITS>
INLINE I stream_codes(const uint8_t* run, int v) {
  I shift;
  UNROLL
  for (int i = 0; i < W; i++) shift[i] = shift_of(v * W + i, BITS);
#if STRIXHLO_PLAIN
  I result;
  UNROLL
  for (int i = 0; i < W; i++) {
    const int at = byte_of(v * W + i, BITS);
    const bool two = shift[i] + BITS > 8;
    result[i] = (run[at] | (two ? run[at + 1] << 8 : 0)) >> shift[i];
  }
  return result;
#else
  B pick;  // two bytes from where the code begins, in each 32 bits; 8 codes (AVX2) or 16 are in every 128-bit lane
  UNROLL
  for (int i = 0; i < W; i++) {
    pick[4 * i] = byte_of(i, BITS), pick[4 * i + 1] = (byte_of(i, BITS) + 1) % 16;
    pick[4 * i + 2] = pick[4 * i + 3] = 128;
  }
#if STRIXHLO_AVX512
  __m512i bytes;  // those of the codes in every 128 bits, from byte `from` on
  int from = 0;
  if constexpr (BITS == 4) {
    bytes = _mm512_broadcast_i32x4(load<__m128i>(run)), from = v * 8;
  } else if constexpr (BITS < 4) {
    bytes = _mm512_set1_epi64(load<int64_t>(run + v * (4 * BITS - 8))), from = v * (8 - 2 * BITS);
  } else {
    bytes = _mm512_broadcast_i32x4(_mm_maskz_loadu_epi16(__mmask8((1u << BITS) - 1), run + v * 2 * BITS));
  }
  UNROLL
  for (int i = 0; i < W; i++) pick[4 * i] += from, pick[4 * i + 1] = (pick[4 * i + 1] + from) % 16;
  const __m512i picked = _mm512_shuffle_epi8(bytes, __builtin_bit_cast(__m512i, pick));
#else
  const __m256i bytes = _mm256_set1_epi64x(int64_t(load_number<BITS>(run + v * BITS)));
  const __m256i picked = _mm256_shuffle_epi8(bytes, __builtin_bit_cast(__m256i, pick));
#endif
  return __builtin_bit_cast(I, __builtin_bit_cast(I, picked) >> shift);
#endif
}

#if STRIXHLO_PLAIN
// Codes of 16 weights, `first` of a run and on.
template <int BITS>
INLINE B stream_bytes(const uint8_t* run, int first) {
  B result;
  UNROLL
  for (int i = 0; i < 16; i++) {
    const int at = byte_of(first + i, BITS), shift = shift_of(first + i, BITS);
    result[i] = ((run[at] | (shift + BITS > 8 ? run[at + 1] << 8 : 0)) >> shift) & ((1 << BITS) - 1);
  }
  return result;
}
#else
// Each 128-bit lane: 16 codes from its first 2 * BITS bytes.
template <int BITS>
INLINE B unpacked(B lanes) {
  typedef uint16_t H __attribute__((ext_vector_type(2 * W)));
  B pick[2];
  H factor;  // moves a code to the top of its 16 bits
  UNROLL
  for (int i = 0; i < 2 * W; i++) {
    UNROLL
    for (int half = 0; half < 2; half++) {
      const int at = half * BITS + byte_of(i % 8, BITS);
      pick[half][2 * i] = at, pick[half][2 * i + 1] = (at + 1) % 16;
    }
    factor[i] = 1 << (16 - BITS - shift_of(i % 8, BITS));
  }
#if STRIXHLO_AVX512
  const auto codes = [&](B which) {
    const __m512i x =
        _mm512_shuffle_epi8(__builtin_bit_cast(__m512i, lanes), __builtin_bit_cast(__m512i, which));
    return __builtin_bit_cast(__m512i, H((__builtin_bit_cast(H, x) * factor) >> H(16 - BITS)));
  };
  return __builtin_bit_cast(B, _mm512_packus_epi16(codes(pick[0]), codes(pick[1])));
#else
  const auto codes = [&](B which) {
    const __m256i x =
        _mm256_shuffle_epi8(__builtin_bit_cast(__m256i, lanes), __builtin_bit_cast(__m256i, which));
    return __builtin_bit_cast(__m256i, H((__builtin_bit_cast(H, x) * factor) >> H(16 - BITS)));
  };
  return __builtin_bit_cast(B, _mm256_packus_epi16(codes(pick[0]), codes(pick[1])));
#endif
}
#endif
