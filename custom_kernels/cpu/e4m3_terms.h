// Few rows of float32 activations times E4M3 weights through the dot products of bfloat16: a weight is one bfloat16, an
// activation the sum of three. Rows of which a group of 32 is not finite, or below 2^-100, take plain float32.
#pragma once
#include "int8_gemv.h"
#include "quantize.h"

#if STRIXHLO_VBMI && defined(__AVX512VNNI__) && defined(__AVX512BF16__)
#define STRIXHLO_BF16_TERMS 1

// Numbers of 16 bits: of every 16 bytes that they stand for the first eight, and the others.
struct Words {
  __m512i first, second;
};

// One byte of the bfloat16 of each E4M3 number without its sign, 64 of them from `from` on. (AVX-512's bfloat16 takes
// subnormals for zero, so those of E4M3 must not become such.)
INLINE constexpr int bf16_of_e4m3(int code) {
  if (code == 0x7f) return 0x7fc0;
  if (code >= 8) return (code << 4) + (120 << 7);
  for (int bit = 2; bit >= 0; bit--)  // code * 2^-9
    if (code >> bit) return ((118 + bit) << 7) + ((code << (7 - bit)) & 0x7f);
  return 0;
}
INLINE __m512i byte_table(int from, int byte) {
  B table;
  UNROLL
  for (int i = 0; i < 64; i++) table[i] = bf16_of_e4m3(from + i) >> (8 * byte);
  return __builtin_bit_cast(__m512i, table);
}
INLINE Words words_of_e4m3(__m512i codes) {
  const __m512i low = _mm512_permutex2var_epi8(byte_table(0, 0), codes, byte_table(64, 0));
  const __m512i magnitude = _mm512_permutex2var_epi8(byte_table(0, 1), codes, byte_table(64, 1));
  const __m512i high = _mm512_ternarylogic_epi32(codes, _mm512_set1_epi8(-128), magnitude, 0xea);  // its sign as well
  return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

// M rows of activations, or a segment of them, as `few_rows` in digits.h wants its input.
template <class Fmt, int M>
struct __attribute__((may_alias)) TermRows {
  static constexpr int TERMS = 3;
  static constexpr int64_t CAPACITY = 128 / M;      // runs
  static constexpr bool SEGMENTS = true;            // preparing costs little
  static constexpr int OF_PAIR = TERMS * 4 * W * 2;  // bytes of two runs
  static constexpr int KIND = M | 1 << 30;
  static constexpr float UNIT = 1.0f;
  alignas(64) uint8_t terms[M][CAPACITY / 2 * OF_PAIR];  // the smallest term first
  bool plain[M];                                         // rows that are not held here

  // Runs [first, first + count) of row m.
  INLINE_MEMBER void fill(int m, const float* x, int64_t first, int64_t count) {
    if (first == 0) plain[m] = false;
    const float* from = x + first * RUN;
    I most[W];
    for (int64_t run = 0; run < count; run += 2) {
      F left[4];
      UNROLL
      for (int i = 0; i < 4; i++) left[i] = i < 2 || run + 1 < count ? load<F>(from + run * RUN + i * W) : F(0.0f);
      if (run % W == 0)
        for (I& of_run : most) of_run = 0;
      most[run % W] = largest_bits(left[0], left[1]);
      most[run % W + 1] = largest_bits(left[2], left[3]);
      if (run % W == W - 2 || run + 2 >= count) plain[m] |= !holds(of_each(most, Larger()));
      UNROLL
      for (int t = TERMS - 1; t >= 0; t--) {  // the largest one is what rounding gives first
        uint8_t* to = terms[m] + run / 2 * OF_PAIR + t * (8 * W);
        const B a = next_term(left[0], left[1]), b = next_term(left[2], left[3]);
        const Codes ordered = split_halves(a, b);
        store(to, ordered.low);
        store(to + 4 * W, ordered.high);
      }
    }
  }

  // Adds the products with one weight row, from where this segment starts.
  INLINE_MEMBER void add_row(Sums (&acc)[M], const Parts& row, int64_t runs) const {
    int64_t run = 0;
    for (; run + W <= runs; run += W) add_chunk<true>(acc, after<Fmt>(row, run), run, W);
    if (run < runs) add_chunk<false>(acc, after<Fmt>(row, run), run, runs - run);
  }

 private:
  INLINE_MEMBER static I largest_bits(F a, F b) {
    return __builtin_elementwise_max(bits_of(a) & 0x7fffffff, bits_of(b) & 0x7fffffff);
  }
  // Whether the largest of every run is zero, or a number whose smaller terms are normal floats.
  INLINE_MEMBER static bool holds(I largest) {
    const I held = (largest == 0) | ((largest >= (27 << 23)) & (largest < 0x7e800000));
    return _mm512_movepi32_mask(__builtin_bit_cast(__m512i, held)) == 0xffff;
  }
  // The nearest bfloat16 of 32 numbers, which is subtracted from them.
  INLINE_MEMBER static B next_term(F& a, F& b) {
    const auto rounded = __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(b, a));
    const auto value = [](__m256i half) __attribute__((always_inline)) {
      return __builtin_bit_cast(F, _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    };
    a -= value(_mm512_castsi512_si256(rounded));
    b -= value(_mm512_extracti64x4_epi64(rounded, 1));
    return __builtin_bit_cast(B, rounded);
  }
  template <bool FULL>
  INLINE_MEMBER void add_chunk(Sums (&acc)[M], const Parts& row, int64_t run, int64_t runs) const {
    const F scale = scales<Fmt, FULL>(row, runs).first;
    if constexpr (Fmt::SCALING != BLOCKS) prefetch(advance(row.scale, PREFETCH / 8));  // not of shared ones
    if constexpr (FULL) {
      add_pair<0, true>(acc, row, scale, run, 2);
      add_pair<1, true>(acc, row, scale, run + 2, 2);
      add_pair<2, true>(acc, row, scale, run + 4, 2);
      add_pair<3, true>(acc, row, scale, run + 6, 2);
      add_pair<4, true>(acc, row, scale, run + 8, 2);
      add_pair<5, true>(acc, row, scale, run + 10, 2);
      add_pair<6, true>(acc, row, scale, run + 12, 2);
      add_pair<7, true>(acc, row, scale, run + 14, 2);
    } else {
      F left = scale;
      for (int64_t done = 0; done < runs; done += 2) {
        Parts from = row;
        from.codes += done * RUN;
        add_pair<0, false>(acc, from, left, run + done, min(runs - done, 2));
        left = __builtin_shufflevector(left, left, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1);
      }
    }
  }
  // Two runs, the PAIR-th ones of a chunk, whose scales are in lanes 2 PAIR and on.
  template <int PAIR, bool FULL>
  INLINE_MEMBER void add_pair(Sums (&acc)[M], const Parts& row, F scales, int64_t run, int64_t runs) const {
    const uint8_t* codes = row.codes + PAIR * (2 * RUN);
    prefetch(codes + PREFETCH);
    const B bytes = FULL ? load<B>(codes) : load_lanes(codes, 2 * runs);
    const Words words = words_of_e4m3(__builtin_bit_cast(__m512i, bytes));
    constexpr int A = 2 * PAIR, Z = A + 1;
    const F scale = __builtin_shufflevector(scales, scales, A, A, A, A, A, A, A, A, Z, Z, Z, Z, Z, Z, Z, Z);
    UNROLL
    for (int m = 0; m < M; m++) {
      const uint8_t* at = terms[m] + run / 2 * OF_PAIR;
      __m512 sum = _mm512_setzero_ps();
      UNROLL
      for (int t = 0; t < TERMS; t++) {
        const auto x = [&](int half) { return __builtin_bit_cast(__m512bh, load<B>(at + t * (8 * W) + half * (4 * W))); };
        sum = _mm512_dpbf16_ps(sum, __builtin_bit_cast(__m512bh, words.first), x(0));
        sum = _mm512_dpbf16_ps(sum, __builtin_bit_cast(__m512bh, words.second), x(1));
      }
      F& to = acc[m].of[PAIR % 2];
      to = fma(F(sum), scale, to);
    }
  }
};
#endif
