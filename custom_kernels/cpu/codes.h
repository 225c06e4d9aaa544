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
INLINE Codes load_natural(const void* p, int64_t runs) {
  if constexpr (FULL) return {load<B>(p), load<B>(advance(p, 4 * W))};
  const int64_t lanes = 2 * runs;
  return {load_lanes(p, min(lanes, RUNS)), load_lanes(advance(p, 4 * W), max(lanes - RUNS, 0))};
}
template <bool FULL>
INLINE Codes load_bytes(const void* p, int64_t runs) {
  const Codes bytes = load_natural<FULL>(p, runs);
  return split_halves(bytes.low, bytes.high);
}

#if STRIXHLO_VBMI
// The weights' bits of plane p, one each at bit 4 + p of its byte, of 16 weights of every run; other bits are anything.
// words: the 64 bits of a run's planes in both halves of its lane; one plane: two runs' words, the second for odd lanes.
template <int PLANES>
INLINE B plane_bits(__m512i words, int p, int half) {
  B from;
  UNROLL
  for (int i = 0; i < 64; i++) from[i] = (32 * (PLANES == 1 ? i / 16 % 2 : p) + half * 16 + i % 16 - 4 - p) & 63;
  return __builtin_bit_cast(B, _mm512_multishift_epi64_epi8(__builtin_bit_cast(__m512i, from), words));
}
#elif STRIXHLO_AVX512
// Adds `value` to the weights whose bits are set: those of an even run are in its lane's bytes `first` and on, of an odd
// run in bytes first + of_odd_run and on.
INLINE __m512i add_bits(__m512i codes, __m512i words, int first, int of_odd_run, int8_t value) {
  B pick, bit;
  UNROLL
  for (int i = 0; i < 64; i++) pick[i] = first + (i / 16 % 2) * of_odd_run + i % 16 / 8, bit[i] = 1 << i % 8;
  const __m512i bytes = _mm512_shuffle_epi8(words, __builtin_bit_cast(__m512i, pick));
  const __mmask64 set = _mm512_test_epi8_mask(bytes, __builtin_bit_cast(__m512i, bit));
  return _mm512_mask_add_epi8(codes, set, codes, _mm512_set1_epi8(value));
}
#endif

// Adds bit planes to the nibbles: plane p of run r is the word high[r * PLANES + p], worth 16 << p.
template <int PLANES, bool FULL>
INLINE Codes add_planes(Codes codes, const int32_t* high, int64_t runs) {
#if STRIXHLO_AVX512
  __m512i words;  // in the lane of each run its own words, and those of its neighbour
  if constexpr (PLANES == 1) {
    const __m128i all = FULL ? load<__m128i>(high) : _mm_maskz_loadu_epi32(__mmask8((1u << runs) - 1), high);
    words = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 0, 0, 1, 1, 1, 1), _mm512_zextsi128_si512(all));
  } else {
    const __m256i all = FULL ? load<__m256i>(high) : _mm256_maskz_loadu_epi32(__mmask8((1u << (2 * runs)) - 1), high);
#if STRIXHLO_VBMI
    words = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), _mm512_zextsi256_si512(all));
#else
    words = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), _mm512_zextsi256_si512(all));
#endif
  }
#if STRIXHLO_VBMI
  UNROLL
  for (int p = 0; p < PLANES; p++) {
    codes.low |= plane_bits<PLANES>(words, p, 0) & B(16 << p);
    codes.high |= plane_bits<PLANES>(words, p, 1) & B(16 << p);
  }
  return codes;
#else
  __m512i low = __builtin_bit_cast(__m512i, codes.low), up = __builtin_bit_cast(__m512i, codes.high);
  UNROLL
  for (int p = 0; p < PLANES; p++) {
    low = add_bits(low, words, 4 * p, 4 * PLANES, int8_t(16 << p));
    up = add_bits(up, words, 4 * p + 2, 4 * PLANES, int8_t(16 << p));
  }
  return {__builtin_bit_cast(B, low), __builtin_bit_cast(B, up)};
#endif
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

// E2M1 codes -> twice the number, plus 12. Above the 4 bits of a code there may be anything where VBMI looks it up.
INLINE B doubled_e2m1(B codes) {
  const B16 table = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
#if STRIXHLO_VBMI
  const __m512i wide = _mm512_broadcast_i32x4(__builtin_bit_cast(__m128i, table));
  return __builtin_bit_cast(B, _mm512_permutexvar_epi8(__builtin_bit_cast(__m512i, codes), wide));
#elif STRIXHLO_AVX512
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

#if STRIXHLO_VBMI
// 64 codes of 4 runs of a stream: of each run the first or the second half, IN_PAIRS the even or the odd ones. 8 codes
// are BITS bytes, and 8 bytes are enough for 8 codes or, of up to 4 bits, every other one of 16.
template <int BITS, bool IN_PAIRS>
INLINE B half_codes(__m512i bytes, __m512i more, int half) {
  static_assert(!IN_PAIRS || BITS <= 4);
  constexpr int SPAN = IN_PAIRS ? 2 * BITS : BITS;
  B from, shift;
  UNROLL
  for (int i = 0; i < 64; i++)
    from[i] = i / 16 * 4 * BITS + (IN_PAIRS ? 0 : 2 * half * BITS) + i / 8 % 2 * SPAN + i % 8 % SPAN;
  UNROLL
  for (int i = 0; i < 64; i++) shift[i] = IN_PAIRS ? (i % 8 * 2 + half) * BITS : i % 8 * BITS;
  const __m512i index = __builtin_bit_cast(__m512i, from);
  const __m512i eights = BITS > 4 ? _mm512_permutex2var_epi8(bytes, index, more) : _mm512_permutexvar_epi8(index, bytes);
  const __m512i moved = _mm512_multishift_epi64_epi8(__builtin_bit_cast(__m512i, shift), eights);
  return __builtin_bit_cast(B, moved) & B((1 << BITS) - 1);
}
#elif STRIXHLO_AVX512
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
template <int BITS, bool FULL, bool IN_PAIRS>
INLINE Codes load_stream(const uint8_t* p, int64_t runs) {
#if STRIXHLO_AVX512
  const int words = BITS * int(FULL ? RUNS : runs);  // of 32 bits; nothing after them is read
  const int first = words < 16 ? words : 16;
  const __m512i bytes = _mm512_maskz_loadu_epi32(__mmask16((1u << first) - 1), p);
  __m512i more = bytes;
  if constexpr (BITS > 4) more = _mm512_maskz_loadu_epi32(__mmask16((1u << (words - first)) - 1), p + 64);
#if STRIXHLO_VBMI
  return {half_codes<BITS, IN_PAIRS>(bytes, more, 0), half_codes<BITS, IN_PAIRS>(bytes, more, 1)};
#else
  return {unpacked<BITS>(half_runs<BITS>(bytes, more, 0)), unpacked<BITS>(half_runs<BITS>(bytes, more, 1))};
#endif
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

// Whether weights are used in the order of the even ones of a run, then the odd ones: low nibbles are the even ones, and
// where VBMI takes codes in any order, groups of 16 come to lie in different lanes.
template <class Fmt>
constexpr bool ALTERNATING = Fmt::LAYOUT == FP4 || (Fmt::LAYOUT == STREAM && Fmt::BITS == 4)
#if STRIXHLO_VBMI
                             || (Fmt::LAYOUT == STREAM && Fmt::GROUPS == 2)
#endif
    ;

// As `split_halves`, but the even elements of each run, and the odd ones.
INLINE Codes split_pairs(B a, B b) {
#if STRIXHLO_PLAIN
  return {__builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
          __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)};
#else
  B pick;  // of 16 bytes the even ones, then the odd ones
  UNROLL
  for (int i = 0; i < 4 * W; i++) pick[i] = i % 8 * 2 + i % 16 / 8;
#if STRIXHLO_AVX512
  const __m512i x = _mm512_shuffle_epi8(__builtin_bit_cast(__m512i, a), __builtin_bit_cast(__m512i, pick));
  const __m512i y = _mm512_shuffle_epi8(__builtin_bit_cast(__m512i, b), __builtin_bit_cast(__m512i, pick));
  const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), odd = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
  return {__builtin_bit_cast(B, _mm512_permutex2var_epi64(x, even, y)),
          __builtin_bit_cast(B, _mm512_permutex2var_epi64(x, odd, y))};
#else
  const __m256i x = _mm256_permute4x64_epi64(
      _mm256_shuffle_epi8(__builtin_bit_cast(__m256i, a), __builtin_bit_cast(__m256i, pick)), 0xd8);
  const __m256i y = _mm256_permute4x64_epi64(
      _mm256_shuffle_epi8(__builtin_bit_cast(__m256i, b), __builtin_bit_cast(__m256i, pick)), 0xd8);
  return split_halves(__builtin_bit_cast(B, x), __builtin_bit_cast(B, y));
#endif
#endif
}

// Formats whose codes are nibbles and nothing else; and those of bytes of them, as IN_PAIRS below.
template <class Fmt>
constexpr bool NIBBLES = Fmt::LAYOUT == FP4 || (Fmt::BITS == 4 && Fmt::PLANES == 0);
template <class Fmt>
INLINE Codes codes_of_nibbles(B packed) {
  if constexpr (Fmt::LAYOUT == FP4) {
#if STRIXHLO_VBMI
    const auto words = __builtin_bit_cast(__m512i, packed);
    return {doubled_e2m1(packed), doubled_e2m1(__builtin_bit_cast(B, _mm512_srli_epi16(words, 4)))};
#endif
    return {doubled_e2m1(packed & B(15)), doubled_e2m1(packed >> B(4))};
  }
  return {packed & B(15), packed >> B(4)};
}

// Codes of `runs` runs at the start of `row`: unsigned, 0 .. 2^BITS - 1; signed bytes for 8 bits (of a stream: less
// 128).
// IN_PAIRS: of ALTERNATING formats the even weights and the odd ones, in place of the first and the second half.
template <class Fmt, bool FULL, bool IN_PAIRS = false>
INLINE Codes load_codes(const Parts& row, int64_t runs) {
  if constexpr (Fmt::BITS == 8) {
    const Codes codes = load_bytes<FULL>(row.codes, runs);
    if constexpr (Fmt::LAYOUT == STREAM) return {codes.low ^ B(128), codes.high ^ B(128)};
    return codes;
  } else if constexpr (Fmt::LAYOUT == STREAM && Fmt::BITS != 4) {
    return load_stream<Fmt::BITS, FULL, IN_PAIRS && ALTERNATING<Fmt>>(row.codes, runs);
  } else {
    const B packed = FULL ? load<B>(row.codes) : load_lanes(row.codes, runs);
    if constexpr (NIBBLES<Fmt> && (IN_PAIRS || !ALTERNATING<Fmt>)) {
      return codes_of_nibbles<Fmt>(packed);
    } else if constexpr (Fmt::LAYOUT != PLANAR) {
      const Codes codes = split_nibbles(packed);
      if constexpr (Fmt::LAYOUT == FP4) return {doubled_e2m1(codes.low), doubled_e2m1(codes.high)};
      return codes;
    } else {
      return add_planes<Fmt::PLANES, FULL>({packed & B(15), packed >> B(4)}, row.high, runs);
    }
  }
}
