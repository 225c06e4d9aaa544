// Weight codes and 8-bit activations as vectors of bytes: RUNS runs of 32 at a time, 16 bytes of each in a 128-bit
// lane.
#pragma once
#include "bit_stream.h"
#include "formats.h"

constexpr int RUNS = W / 4;

// Lane r of `low`: weights (or activations) 0..15 of run r; of `high`: 16..31.
struct Codes {
  B low, high;
};

// 128-bit lanes 0, 2, ... and 1, 3, ... of the 2 RUNS in a, b: runs in natural order -> Codes.
INLINE Codes split_halves(B a, B b) {
#if STRIXHLO_AVX512
  const __m512i x = __builtin_bit_cast(__m512i, a), y = __builtin_bit_cast(__m512i, b);
  return {__builtin_bit_cast(B, _mm512_shuffle_i64x2(x, y, 0x88)),
          __builtin_bit_cast(B, _mm512_shuffle_i64x2(x, y, 0xdd))};
#elif STRIXHLO_AVX2
  const __m256i x = __builtin_bit_cast(__m256i, a), y = __builtin_bit_cast(__m256i, b);
  return {__builtin_bit_cast(B, _mm256_permute2x128_si256(x, y, 0x20)),
          __builtin_bit_cast(B, _mm256_permute2x128_si256(x, y, 0x31))};
#else
  return {a, b};
#endif
}

// The first `lanes` 128-bit lanes from memory, the others zero.
INLINE B load_lanes(const void* p, int64_t lanes) {
#if STRIXHLO_AVX512
  return __builtin_bit_cast(B, _mm512_maskz_loadu_epi32(__mmask16((1u << (4 * lanes)) - 1), p));
#elif STRIXHLO_AVX2
  if (lanes >= 2) return load<B>(p);
  return lanes == 1 ? __builtin_bit_cast(B, _mm256_zextsi128_si256(load<__m128i>(p))) : B(0);
#else
  return lanes ? load<B>(p) : B(0);
#endif
}

// Bytes of `runs` runs (at most RUNS; FULL: exactly) in natural order.
template <bool FULL>
INLINE Codes load_bytes(const void* p, int64_t runs) {
  if constexpr (FULL) return split_halves(load<B>(p), load<B>(advance(p, 4 * W)));
  const int64_t lanes = 2 * runs;
  return split_halves(load_lanes(p, min(lanes, RUNS)), load_lanes(advance(p, 4 * W), max(lanes - RUNS, 0)));
}

// Adds bit planes to the nibbles: plane p of run r is the word high[r * PLANES + p], worth 16 << p.
template <int PLANES, bool FULL>
INLINE Codes add_planes(Codes codes, const int32_t* high, int64_t runs) {
#if STRIXHLO_AVX512
  __m512i low = __builtin_bit_cast(__m512i, codes.low), up = __builtin_bit_cast(__m512i, codes.high);
  const __m512i bit4 = _mm512_set1_epi8(16), bit5 = _mm512_set1_epi8(32);
  if constexpr (PLANES == 1) {
    const __m128i words = FULL ? load<__m128i>(high) : _mm_maskz_loadu_epi32(__mmask8((1u << runs) - 1), high);
    const __m128i halves = _mm_permutexvar_epi16(_mm_setr_epi16(0, 2, 4, 6, 1, 3, 5, 7), words);
    low = _mm512_mask_add_epi8(low, __mmask64(_mm_extract_epi64(halves, 0)), low, bit4);
    up = _mm512_mask_add_epi8(up, __mmask64(_mm_extract_epi64(halves, 1)), up, bit4);
  } else {
    const __m256i words = FULL ? load<__m256i>(high) : _mm256_maskz_loadu_epi32(__mmask8((1u << (2 * runs)) - 1), high);
    const __m256i halves =
        _mm256_permutexvar_epi16(_mm256_setr_epi16(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), words);
    low = _mm512_mask_add_epi8(low, __mmask64(_mm256_extract_epi64(halves, 0)), low, bit4);
    up = _mm512_mask_add_epi8(up, __mmask64(_mm256_extract_epi64(halves, 1)), up, bit4);
    low = _mm512_mask_add_epi8(low, __mmask64(_mm256_extract_epi64(halves, 2)), low, bit5);
    up = _mm512_mask_add_epi8(up, __mmask64(_mm256_extract_epi64(halves, 3)), up, bit5);
  }
  return {__builtin_bit_cast(B, low), __builtin_bit_cast(B, up)};
#elif STRIXHLO_AVX2
  __m128i words;
  if constexpr (PLANES == 1)
    words = _mm_set1_epi64x(FULL || runs == 2 ? load<int64_t>(high) : int64_t(uint32_t(high[0])));
  else
    words = FULL || runs == 2 ? load<__m128i>(high) : _mm_set_epi64x(0, load<int64_t>(high));
  const __m256i both = _mm256_broadcastsi128_si256(words);
  const __m256i bit = _mm256_set1_epi64x(int64_t(0x8040201008040201ull));
  // Byte b of `pick` says which byte of the words holds the bit of weight b: lane 1 (run 1) starts PLANES words later.
  const __m256i pick = _mm256_add_epi8(_mm256_setr_epi64x(0, 0x0101010101010101ll, 0, 0x0101010101010101ll),
                                       _mm256_setr_m128i(_mm_setzero_si128(), _mm_set1_epi8(4 * PLANES)));
  UNROLL
  for (int p = 0; p < PLANES; p++) {
    const __m256i value = _mm256_set1_epi8(char(16 << p));
    UNROLL
    for (int half = 0; half < 2; half++) {
      const __m256i bytes = _mm256_shuffle_epi8(both, _mm256_add_epi8(pick, _mm256_set1_epi8(char(4 * p + 2 * half))));
      const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
      B& target = half ? codes.high : codes.low;
      target |= __builtin_bit_cast(B, _mm256_and_si256(set, value));
    }
  }
  return codes;
#else
  (void)runs;
  UNROLL
  for (int p = 0; p < PLANES; p++) UNROLL
  for (int i = 0; i < 16; i++) {
    codes.low[i] |= ((uint32_t(high[p]) >> i) & 1) << (4 + p);
    codes.high[i] |= ((uint32_t(high[p]) >> (16 + i)) & 1) << (4 + p);
  }
  return codes;
#endif
}

// Nibbles whose order is natural (the low one first), 16 bytes a run -> Codes.
INLINE Codes split_nibbles(B packed) {
  const B low = packed & B(15), high = packed >> B(4);
#if STRIXHLO_AVX512
  const __m512i x = __builtin_bit_cast(__m512i, low), y = __builtin_bit_cast(__m512i, high);
  return {__builtin_bit_cast(B, _mm512_unpacklo_epi8(x, y)), __builtin_bit_cast(B, _mm512_unpackhi_epi8(x, y))};
#elif STRIXHLO_AVX2
  const __m256i x = __builtin_bit_cast(__m256i, low), y = __builtin_bit_cast(__m256i, high);
  return {__builtin_bit_cast(B, _mm256_unpacklo_epi8(x, y)), __builtin_bit_cast(B, _mm256_unpackhi_epi8(x, y))};
#else
  return {__builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
          __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)};
#endif
}

// E2M1 codes -> twice the number, plus 12.
INLINE B doubled_e2m1(B codes) {
  const B16 table = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
#if STRIXHLO_AVX512
  const __m512i wide = _mm512_broadcast_i32x4(__builtin_bit_cast(__m128i, table));
  return __builtin_bit_cast(B, _mm512_shuffle_epi8(wide, __builtin_bit_cast(__m512i, codes)));
#elif STRIXHLO_AVX2
  const __m256i wide = _mm256_broadcastsi128_si256(__builtin_bit_cast(__m128i, table));
  return __builtin_bit_cast(B, _mm256_shuffle_epi8(wide, __builtin_bit_cast(__m256i, codes)));
#else
  B result;
  UNROLL
  for (int i = 0; i < 16; i++) result[i] = table[codes[i]];
  return result;
#endif
}

#if STRIXHLO_AVX512
// 16-bit words of 4 runs of a stream, to 128-bit lanes: BITS of each run from the first or the second half of it.
template <int BITS>
INLINE B half_runs(__m512i bytes, __m512i more, int half) {
  typedef uint16_t H __attribute__((ext_vector_type(32)));
  H from;
  UNROLL
  for (int i = 0; i < 32; i++) from[i] = (i / 8 * 2 + half) * BITS + i % 8 % BITS;
  const __m512i index = __builtin_bit_cast(__m512i, from);
  if constexpr (BITS > 4) return __builtin_bit_cast(B, _mm512_permutex2var_epi16(bytes, index, more));
  return __builtin_bit_cast(B, _mm512_permutexvar_epi16(index, bytes));
}
#endif

// Codes of a stream of 2, 3, 5 or 6 bits, `runs` runs.
template <int BITS, bool FULL>
INLINE Codes load_stream(const uint8_t* p, int64_t runs) {
#if STRIXHLO_AVX512
  const int words = BITS * int(FULL ? RUNS : runs);  // of 32 bits; nothing after them is read
  const int first = words < 16 ? words : 16;
  const __m512i bytes = _mm512_maskz_loadu_epi32(__mmask16((1u << first) - 1), p);
  __m512i more = bytes;
  if constexpr (BITS > 4) more = _mm512_maskz_loadu_epi32(__mmask16((1u << (words - first)) - 1), p + 64);
  return {unpacked<BITS>(half_runs<BITS>(bytes, more, 0)), unpacked<BITS>(half_runs<BITS>(bytes, more, 1))};
#elif STRIXHLO_AVX2
  const auto lane = [&](int half) {
    const uint8_t* at = p + half * 2 * BITS;
    constexpr int LOW = 2 * BITS < 8 ? 2 * BITS : 8;
    return _mm_set_epi64x(BITS > 4 ? int64_t(load_number<2 * BITS - LOW>(at + LOW)) : 0, int64_t(load_number<LOW>(at)));
  };
  const auto half = [&](int h) {
    const __m128i second = FULL || runs == 2 ? lane(h + 2) : _mm_setzero_si128();
    return unpacked<BITS>(__builtin_bit_cast(B, _mm256_set_m128i(second, lane(h))));
  };
  return {half(0), half(1)};
#else
  (void)runs;
  return {stream_bytes<BITS>(p, 0), stream_bytes<BITS>(p, 16)};
#endif
}

// Codes of `runs` runs at the start of `row`: unsigned, 0 .. 2^BITS - 1; signed bytes for 8 bits (of a stream: less
// 128).
template <class Fmt, bool FULL>
INLINE Codes load_codes(const Parts& row, int64_t runs) {
  if constexpr (Fmt::BITS == 8) {
    const Codes codes = load_bytes<FULL>(row.codes, runs);
    if constexpr (Fmt::LAYOUT == STREAM) return {codes.low ^ B(128), codes.high ^ B(128)};
    return codes;
  } else if constexpr (Fmt::LAYOUT == STREAM && Fmt::BITS != 4) {
    return load_stream<Fmt::BITS, FULL>(row.codes, runs);
  } else {
    const B packed = FULL ? load<B>(row.codes) : load_lanes(row.codes, runs);
    if constexpr (Fmt::LAYOUT != PLANAR) {
      const Codes codes = split_nibbles(packed);
      if constexpr (Fmt::LAYOUT == FP4) return {doubled_e2m1(codes.low), doubled_e2m1(codes.high)};
      return codes;
    } else {
      Codes codes = {packed & B(15), packed >> B(4)};
      if constexpr (Fmt::PLANES > 0) codes = add_planes<Fmt::PLANES, FULL>(codes, row.high, runs);
      return codes;
    }
  }
}
