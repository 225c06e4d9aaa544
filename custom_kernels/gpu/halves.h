// Codes of weight formats as pairs of float16 numbers, each exact times a power of two, two to six instructions a pair.
//
// A block is 32 columns of a weight row, WORDS words of codes for each lane of a quad. `halves(block, t)` gives lane t's
// eight codes as four pairs, of which the first two and the last two are each multiplied by 16 columns (SPLIT: which have
// their own scale). Which columns these are says `ORDER`: LINEAR, lane t has columns 4 t to 4 t + 3 in the first two
// pairs and those 16 further on in the last two, as (0, 2), (1, 3); NEIGHBOURS, lane t has columns 8 t to 8 t + 7 as (0, 4),
// (1, 5), (2, 6), (3, 7). A code is its number times 2^-EXPONENT, in pairs that `sixteenfold` names 16 times as much.
#pragma once

#include "streams.h"

enum Order { LINEAR, NEIGHBOURS };

#if defined(__NVPTX__)
// a * b + c as one instruction of the multipliers, since decoding has too many for the other units: so b must not look
// like the constant that it is. Grids are one-dimensional: %ctaid.z is 0.
DEVICE u32 multiply_integers(u32 a, u32 b, u32 c) {
  u32 result, zero;
  asm("mov.u32 %0, %%ctaid.z;" : "=r"(zero));
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b + zero), "r"(c));
  return result;
}
// (a >> DOWN) + c, likewise.
template <u32 DOWN>
DEVICE u32 shift_and_add(u32 a, u32 c) {
  u32 result, zero;
  asm("mov.u32 %0, %%ctaid.z;" : "=r"(zero));
  asm("mad.hi.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"((1u << (32 - DOWN)) + zero), "r"(c));
  return result;
}
// Bytes 0 and 1 of a word in bytes 0 and 2, with zeros between.
DEVICE u32 bytes_apart(u32 word) { return (u32)__nvvm_prmt((i32)word, 0, 0x4140); }
#else
DEVICE u32 multiply_integers(u32 a, u32 b, u32 c) { return a * b + c; }
template <u32 DOWN>
DEVICE u32 shift_and_add(u32 a, u32 c) { return (a >> DOWN) + c; }
DEVICE u32 bytes_apart(u32 word) { return (word & 255u) | (word >> 8 & 255u) << 16; }
#endif

// A 16-bit float16 pattern is a number of 11 bits times 2^-24, as long as only the lowest bit of its exponent is set.
DEVICE u32 less(u32 pair, u32 zero) {
  return __builtin_bit_cast(u32, (f16x2)(__builtin_bit_cast(f16x2, pair) - __builtin_bit_cast(f16x2, zero * 0x00010001u)));
}

// Nibbles j and j + 4 of a word as (0, 4), (1, 5), (2, 6), (3, 7), less `ZERO`; each odd pair is 16 times as much.
template <u32 ZERO>
DEVICE void halves_of_nibbles(u32 word, u32 (&pair)[4]) {
  const u32 later = word >> 8;
  pair[0] = word & 0x000f000fu;
  pair[1] = word & 0x00f000f0u;
  pair[2] = later & 0x000f000fu;
  pair[3] = later & 0x00f000f0u;
  if constexpr (ZERO) {
    UNROLL for (u32 j = 0; j < 4; j++) pair[j] = less(pair[j], j % 2 ? 16 * ZERO : ZERO);
  }
}

// E2M1 of which exponent and fraction are at bits 9 to 11 of both halves of a word and the sign at bit 12, to which
// 0x7000 has been added: that has carried the sign to bit 15. What is in lower bits goes.
DEVICE u32 carried(u32 word) { return word & 0x8e008e00u; }

// E4M3 in bytes 0 and 2, and 1 and 3, of a word.
DEVICE void halves_of_e4m3(u32 word, u32& even, u32& odd) {
  even = multiply_integers(word & 0x00ff00ffu, 128u, 0x40004000u) & 0xbf80bf80u;
  odd = ((word >> 1) & 0x3f803f80u) | (word & 0x80008000u);
}

// Scales and minima come in strips: of a weight row those of 128 columns, BYTES bytes from a multiple of ALIGN on, which
// are copied by words of which the first may begin before them.
struct Strip {
  const GLOBAL u8* base;
  u64 start, end;  // in bytes from `base`; nothing from `end` on may be read
};
template <u32 BYTES, u32 ALIGN>
constexpr u32 words_of_strip() {
  constexpr u32 needed = ALIGN >= 4 ? BYTES / 4 : (BYTES + 4 - ALIGN + 3) / 4;
  return needed <= 2 ? needed : needed <= 4 ? 4 : 8;
}
// Elements from number `start` on of rows of `stride` elements, the last of which is row `end` - 1.
template <class T>
DEVICE Strip strip_of(const GLOBAL void* base, u64 start, u64 end) {
  return {(const GLOBAL u8*)base, start * sizeof(T), end * sizeof(T)};
}
template <class T>
DEVICE f32 number_at(const LOCAL u8* strip, u32 i) {
  const T element = ((const LOCAL T*)strip)[i];
  if constexpr (sizeof(T) == 1) {
    return (f32)element;
  } else {
    return widen(element);
  }
}

// Halves<W>: STRIPS of a row, WORDS of each (0: there is none), FOUR bytes on after four pieces; strip<S>(w, row, end, piece): strip S of row `row`, which
// is below `end`; scales(at, block, scale, minimum): from where the strips are in local memory the scales and the minimum
// of block 0 to 3. A result is multiplied by `whole` in the end.
template <class W>
struct Halves;

template <u32 GROUP, bool HAS_MINIMUM, u32 SUPER_GROUP>
struct ScalesOfQuantized {
  using Scale = If<SUPER_GROUP != 0, i8, f16>;
  static_assert(GROUP == 32);
  static constexpr u32 STRIPS = 4, PIECES = SUPER_GROUP ? SUPER_GROUP / 128 : 1;
  // 256 columns a row: strips of bytes begin at a multiple of 4.
  static constexpr u32 OF_SCALES = SUPER_GROUP ? words_of_strip<4, 4>() : words_of_strip<8, 2>();
  static constexpr u32 OF_SUPERS = SUPER_GROUP ? words_of_strip<2, 2>() : 0;
  static constexpr u32 WORDS[4] = {OF_SCALES, HAS_MINIMUM ? OF_SCALES : 0, OF_SUPERS, HAS_MINIMUM ? OF_SUPERS : 0};
  static constexpr u32 FOUR[4] = {16 * sizeof(Scale), 16 * sizeof(Scale), 8 / PIECES, 8 / PIECES};
  template <u32 S, class W>
  DEVICE Strip strip(const W& w, u32 row, u32 end, u32 piece) {
    if constexpr (S < 2) {
      return strip_of<Scale>(S ? w.parts.minimum : w.parts.scale, (u64)row * w.runs + 4 * piece, (u64)end * w.runs);
    } else {
      const u32 supers = w.runs / (4 * PIECES);
      return strip_of<f16>(S == 2 ? w.parts.super_scale : w.parts.super_minimum, (u64)row * supers + piece / PIECES,
                           (u64)end * supers);
    }
  }
  DEVICE void scales(const LOCAL u8* const (&at)[4], u32 block, f32 (&scale)[1], f32& minimum) {
    scale[0] = number_at<Scale>(at[0], block);
    if constexpr (HAS_MINIMUM) minimum = number_at<Scale>(at[1], block);
    if constexpr (SUPER_GROUP) {
      scale[0] *= number_at<f16>(at[2], 0);
      if constexpr (HAS_MINIMUM) minimum *= number_at<f16>(at[3], 0);
    }
  }
  template <class W>
  DEVICE f32 whole(const W&) { return 1.0f; }
};

template <u32 GROUP, class S, class B>
struct ScalesOfAffine {
  static constexpr u32 STRIPS = 2, SHARERS = GROUP / 32, COUNT = 4 / SHARERS;
  static constexpr u32 WORDS[2] = {words_of_strip<COUNT * sizeof(S), sizeof(S)>(),
                                   words_of_strip<COUNT * sizeof(B), sizeof(B)>()};
  static constexpr u32 FOUR[2] = {4 * COUNT * sizeof(S), 4 * COUNT * sizeof(B)};
  template <u32 STRIP, class W>
  DEVICE Strip strip(const W& w, u32 row, u32 end, u32 piece) {
    const u64 groups = w.runs / SHARERS, start = row * groups + COUNT * piece;
    if constexpr (STRIP) return strip_of<B>(w.parts.minimum, start, end * groups);
    return strip_of<S>(w.parts.scale, start, end * groups);
  }
  DEVICE void scales(const LOCAL u8* const (&at)[2], u32 block, f32 (&scale)[1], f32& minimum) {
    scale[0] = number_at<S>(at[0], block / SHARERS);
    minimum = number_at<B>(at[1], block / SHARERS);
  }
  template <class W>
  DEVICE f32 whole(const W&) { return 1.0f; }
};

// E8M0, or two of E4M3, for each block.
template <bool NVIDIA>
struct ScalesInBytes {
  using Scale = If<NVIDIA, u16, u8>;
  static constexpr u32 STRIPS = 1, WORDS[1] = {words_of_strip<4 * sizeof(Scale), sizeof(Scale)>()};
  static constexpr u32 FOUR[1] = {16 * sizeof(Scale)};
  template <u32, class W>
  DEVICE Strip strip(const W& w, u32 row, u32 end, u32 piece) {
    return strip_of<Scale>(w.parts.scale, (u64)row * w.runs + 4 * piece, (u64)end * w.runs);
  }
  DEVICE void scales(const LOCAL u8* const (&at)[1], u32 block, f32 (&scale)[1 + NVIDIA], f32&) {
    const u32 bits = ((const LOCAL Scale*)at[0])[block];
    if constexpr (NVIDIA) {
      scale[0] = float_of_e4m3(bits & 255u);
      scale[1] = float_of_e4m3(bits >> 8);
    } else {
      scale[0] = float_of_e8m0(bits);
    }
  }
  template <class W>
  DEVICE f32 whole(const W& w) {
    if constexpr (NVIDIA) return *w.parts.global_scale;
    return 1.0f;
  }
};

// One float32 for all four blocks.
template <Scaling SCALING>
struct ScaleOfPiece {
  static constexpr u32 STRIPS = 1, WORDS[1] = {1}, FOUR[1] = {SCALING == BLOCKS_OF_128 ? 16 : 0};
  template <u32, class W>
  DEVICE Strip strip(const W& w, u32 row, u32 end, u32 piece) {
    if constexpr (SCALING == TENSOR) return strip_of<f32>(w.parts.scale, 0, 1);
    if constexpr (SCALING == CHANNEL) return strip_of<f32>(w.parts.scale, row, end);
    const u64 blocks = ceil_div(w.runs, 4);
    return strip_of<f32>(w.parts.scale, row / 128 * blocks + piece, ((end - 1) / 128 + 1) * blocks);
  }
  DEVICE void scales(const LOCAL u8* const (&at)[1], u32, f32 (&scale)[1], f32&) { scale[0] = number_at<f32>(at[0], 0); }
  template <class W>
  DEVICE f32 whole(const W&) { return 1.0f; }
};

template <u32 GROUP, u32 ZERO, bool HAS_MINIMUM, u32 SUPER_GROUP>
struct Halves<Quantized<4, GROUP, ZERO, HAS_MINIMUM, SUPER_GROUP>> : ScalesOfQuantized<GROUP, HAS_MINIMUM, SUPER_GROUP> {
  static constexpr u32 BITS = 4, EXPONENT = 24;
  static constexpr bool SPLIT = false, MARKED = false;
  static constexpr Order ORDER = LINEAR;
  static constexpr bool sixteenfold(u32 pair) { return pair >= 2; }
  DEVICE void halves(const LOCAL u32* block, u32 t, u32 (&pair)[4]) {
    u32 found[4];  // low nibbles are of the first 16 columns, high ones of the others
    halves_of_nibbles<ZERO>(block[t], found);
    UNROLL for (u32 j = 0; j < 4; j++) pair[j] = found[j % 2 * 2 + j / 2];
  }
};

template <u32 GROUP, u32 SUPER_GROUP>
struct Halves<Quantized<8, GROUP, 0, false, SUPER_GROUP>> : ScalesOfQuantized<GROUP, false, SUPER_GROUP> {
  static constexpr u32 BITS = 8, EXPONENT = 24;
  static constexpr bool SPLIT = false, MARKED = false;
  static constexpr Order ORDER = LINEAR;
  static constexpr bool sixteenfold(u32) { return false; }
  DEVICE void halves(const LOCAL u32* block, u32 t, u32 (&pair)[4]) {
    UNROLL for (u32 i = 0; i < 2; i++) {
      const u32 word = block[4 * i + t];
      pair[2 * i] = less((word & 0x00ff00ffu) ^ 0x00800080u, 128);
      pair[2 * i + 1] = less(((word >> 8) & 0x00ff00ffu) ^ 0x00800080u, 128);
    }
  }
};

template <u32 GROUP, class S, class B>
struct Halves<Affine<4, GROUP, S, B>> : ScalesOfAffine<GROUP, S, B> {
  static constexpr u32 BITS = 4, EXPONENT = 24;
  static constexpr bool SPLIT = false, MARKED = false;
  static constexpr Order ORDER = NEIGHBOURS;
  static constexpr bool sixteenfold(u32 pair) { return pair % 2; }
  DEVICE void halves(const LOCAL u32* block, u32 t, u32 (&pair)[4]) { halves_of_nibbles<0>(block[t], pair); }
};

template <u32 GROUP, class S, class B>
struct Halves<Affine<8, GROUP, S, B>> : ScalesOfAffine<GROUP, S, B> {
  static constexpr u32 BITS = 8, EXPONENT = 24;
  static constexpr bool SPLIT = false, MARKED = false;
  static constexpr Order ORDER = LINEAR;
  static constexpr bool sixteenfold(u32) { return false; }
  DEVICE void halves(const LOCAL u32* block, u32 t, u32 (&pair)[4]) {
    UNROLL for (u32 i = 0; i < 2; i++) {
      const u32 word = block[4 * i + t];
      pair[2 * i] = word & 0x00ff00ffu;
      pair[2 * i + 1] = (word >> 8) & 0x00ff00ffu;
    }
  }
};

template <>
struct Halves<Mxfp4> : ScalesInBytes<false> {
  static constexpr u32 BITS = 4, EXPONENT = 14;
  static constexpr bool SPLIT = false, MARKED = false;
  static constexpr Order ORDER = NEIGHBOURS;
  static constexpr bool sixteenfold(u32) { return false; }
  DEVICE void halves(const LOCAL u32* block, u32 t, u32 (&pair)[4]) {
    constexpr u32 SEVENS = 0x70007000u;
    const u32 even = block[t] & 0x0f0f0f0fu, odd = block[t] & 0xf0f0f0f0u;
    pair[0] = carried(multiply_integers(even, 512, SEVENS));
    pair[1] = carried(multiply_integers(odd, 32, SEVENS));
    pair[2] = carried(multiply_integers(even, 2, SEVENS));
    pair[3] = carried(shift_and_add<3>(odd, SEVENS));
  }
};

template <>
struct Halves<Nvfp4> : ScalesInBytes<true> {
  static constexpr u32 BITS = 4, EXPONENT = 14;
  static constexpr bool SPLIT = true, MARKED = false;
  static constexpr Order ORDER = LINEAR;
  static constexpr bool sixteenfold(u32) { return false; }
  DEVICE void halves(const LOCAL u32* block, u32 t, u32 (&pair)[4]) {
    UNROLL for (u32 i = 0; i < 2; i++) {
      const u32 four = ((const LOCAL u16*)block)[4 * i + t];
      const u32 apart = bytes_apart(four);
      pair[2 * i] = carried(multiply_integers(apart & 0x000f000fu, 512, 0x70007000u));
      pair[2 * i + 1] = carried(multiply_integers(apart, 32, 0x70007000u));
    }
  }
};

template <Scaling SCALING>
struct Halves<Fp8<SCALING>> : If<SCALING == BLOCKS_OF_32, ScalesInBytes<false>, ScaleOfPiece<SCALING>> {
  static constexpr u32 BITS = 8, EXPONENT = 8;
  static constexpr bool SPLIT = false, MARKED = true;
  static constexpr Order ORDER = LINEAR;
  static constexpr bool sixteenfold(u32) { return false; }
  DEVICE void halves(const LOCAL u32* block, u32 t, u32 (&pair)[4]) {
    UNROLL for (u32 i = 0; i < 2; i++) halves_of_e4m3(block[4 * i + t], pair[2 * i], pair[2 * i + 1]);
  }
  // Not zero where lane t has a code that is NaN.
  DEVICE u32 marks(const LOCAL u32* block, u32 t) { return nan_of_e4m3(block[t]) | nan_of_e4m3(block[4 + t]); }
};
