// Codes of weight formats as the left factor of a matrix product, zero to two instructions a code: whole numbers as
// bytes (INTEGER), small floating-point numbers as float16.
//
// A block is 32 columns of a weight row. Lanes 4 g + t have of rows g and g + 8 eight codes each, of which the first
// four and the last four are of the columns that `ORDER` says. LINEAR: 4 t to 4 t + 3, and those 16 further on.
// NEIGHBOURS: 8 t to 8 t + 7. EVEN_ODD: 8 t, 8 t + 2, 8 t + 4, 8 t + 6, then the odd ones. SPLIT: the first and the
// last 16 columns have scales of their own. Of float16 the eight codes are four pairs: LINEAR (0, 2), (1, 3), (4, 6),
// (5, 7), NEIGHBOURS (0, 4), (1, 5), (2, 6), (3, 7); ADJACENT, the columns of LINEAR as (0, 1), (2, 3), (4, 5), (6, 7).
// A code is its number times 2^-EXPONENT (float16) or 2^EXPONENT (bytes).
//
// PAIRED: 256 columns go to one wave, in two pieces of four blocks, of which the first has blocks 0, 1, 4 and 5: so a
// lane needs one request for the scales of both.
#pragma once

#include "integer_mma.h"
#include "streams.h"

enum Order { LINEAR, ADJACENT, NEIGHBOURS, EVEN_ODD };

#if defined(__NVPTX__)
// Zero, which the compiler does not know: grids are one-dimensional.
DEVICE u32 unknown_zero() {
  u32 zero;
  asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(zero));
  return zero;
}
// a * b + c as one instruction of the multipliers, since decoding has too many for the other units: so b, with `zero`
// added, must not look like the constant that it is.
DEVICE u32 multiply_integers(u32 a, u32 b, u32 c) {
  u32 result;
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}
// word & 0xf0f0f0f0 ^ 0x80808080 as one instruction: so the mask, with `zero` added, must not look like the constant
// that it is.
DEVICE u32 centered_nibbles(u32 word, u32 zero) {
  u32 result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(word), "r"(0xf0f0f0f0u + zero), "n"(0x80808080u));
  return result;
}
// Bytes 0 and 1 of a word in bytes 0 and 2, with zeros between.
DEVICE u32 bytes_apart(u32 word) { return (u32)__nvvm_prmt((i32)word, 0, 0x4140); }
// 32 bits of two words from bit `shift` (below 32) of the first on.
DEVICE u32 bits_from(u32 low, u32 high, u32 shift) { return __builtin_elementwise_fshr(high, low, shift); }
#else
DEVICE u32 unknown_zero() { return 0; }
DEVICE u32 multiply_integers(u32 a, u32 b, u32 c) { return a * b + c; }
DEVICE u32 centered_nibbles(u32 word, u32) { return (word & 0xf0f0f0f0u) ^ 0x80808080u; }
DEVICE u32 bytes_apart(u32 word) { return (word & 255u) | (word >> 8 & 255u) << 16; }
DEVICE u32 bits_from(u32 low, u32 high, u32 shift) { return (u32)(((u64)high << 32 | low) >> shift); }
#endif

// E2M1 of which exponent and fraction are at bits 9 to 11 of both halves of a word and the sign at bit 12, to which
// 0x7000 has been added: that has carried the sign to bit 15. What is in lower bits goes.
DEVICE u32 carried(u32 word) { return word & 0x8e008e00u; }

// Where a wave has a piece: its rows of codes, STRIDE bytes apart, and of planes; where in the rows blocks 0 and 2 are,
// numbered from the first that the rows have.
struct PieceAt {
  const LOCAL u8* codes;
  const LOCAL u8* planes;
  u32 first, second, first_plane, second_plane;
  u32 zero;  // unknown_zero
};

// Words of codes as they are stored, of blocks 0 to 3: word t of 16 bytes of rows g and g + 8, in turn.
template <u32 BITS, u32 STRIDE>
DEVICE void load_piece(const PieceAt& at, u32 (&words)[4][BITS / 2]) {
  if constexpr (BITS == 4) {
    UNROLL for (u32 pair = 0; pair < 2; pair++) {
      u32 four[4];
      const u32 from = (pair ? at.second : at.first) * 16;
      load_words_of_rows(at.codes, STRIDE, from, from + 16, four);
      UNROLL for (u32 i = 0; i < 4; i++) words[2 * pair + i / 2][i % 2] = four[i];
    }
  } else {
    UNROLL for (u32 b = 0; b < 4; b++) load_words_of_rows(at.codes, STRIDE, b * 32, b * 32 + 16, words[b]);
  }
}

// Codes of BITS bits in the bytes of a word as they are multiplied: less ZERO, half their range, and then as large as a
// signed byte can be.
template <u32 BITS, u32 ZERO>
struct ByteCodes {
  static constexpr bool INTEGER = true, MARKED = false, SIGNED = ZERO != 0;
  static constexpr u32 UP = ZERO ? 8 - BITS : 0, EXPONENT = UP, PLANES = 0;
  // The sign of bytes whose lower UP bits are zero.
  DEVICE u32 centered(u32 bytes) { return ZERO ? bytes ^ 0x80808080u : bytes; }
};

// StripeCodes<W>: load(at, piece) what a lane needs of a piece; factor(piece, b, a): block b of it.
template <class W>
struct StripeCodes;

// Nibbles of a word: the low ones, then the high ones.
template <u32 ZERO>
DEVICE void bytes_of_nibbles(u32 word, u32& low, u32& high, u32 zero = 0) {
  if constexpr (ZERO) {
    low = centered_nibbles(word << 4, zero);
    high = centered_nibbles(word, zero);
  } else {
    low = word & 0x0f0f0f0fu;
    high = (word >> 4) & 0x0f0f0f0fu;
  }
}

template <u32 ZERO, Order ORDER_>
struct NibbleCodes : ByteCodes<4, ZERO> {
  static constexpr u32 BITS = 4;
  static constexpr bool PAIRED = true, SPLIT = false;
  static constexpr Order ORDER = ORDER_;
  struct Piece {
    u32 words[4][2], zero;
  };
  template <u32 STRIDE>
  DEVICE void load(const PieceAt& at, Piece& piece) {
    load_piece<4, STRIDE>(at, piece.words);
    piece.zero = at.zero;
  }
  DEVICE void factor(const Piece& piece, u32 b, u32 (&a)[4]) {
    UNROLL for (u32 r = 0; r < 2; r++) bytes_of_nibbles<ZERO>(piece.words[b][r], a[r], a[2 + r], piece.zero);
  }
};

// Bytes need no work.
template <bool SIGNED_>
struct WholeBytes {
  static constexpr bool INTEGER = true, MARKED = false, SIGNED = SIGNED_, PAIRED = false, SPLIT = false;
  static constexpr u32 BITS = 8, EXPONENT = 0, PLANES = 0;
  static constexpr Order ORDER = LINEAR;
  struct Piece {
    u32 words[4][4];
  };
  template <u32 STRIDE>
  DEVICE void load(const PieceAt& at, Piece& piece) { load_piece<8, STRIDE>(at, piece.words); }
  DEVICE void factor(const Piece& piece, u32 b, u32 (&a)[4]) {
    UNROLL for (u32 i = 0; i < 4; i++) a[i] = piece.words[b][i];
  }
};

// Nibbles and, in words of their own, a bit or two more of each.
template <u32 BITS_, u32 ZERO, bool SPLIT_>
struct PlaneCodes : ByteCodes<BITS_, ZERO> {
  using Base = ByteCodes<BITS_, ZERO>;
  static constexpr u32 BITS = 4, PLANES = BITS_ - 4;  // of the codes in words; of the others
  static constexpr bool PAIRED = true, SPLIT = SPLIT_;
  static constexpr Order ORDER = LINEAR;
  struct Piece {
    u32 words[4][2], planes[2][4][PLANES];
  };
  static constexpr u32 PLANE_STRIDE = 32 * PLANES + 16;  // bytes of 256 columns of a row
  template <u32 STRIDE>
  DEVICE void load(const PieceAt& at, Piece& piece) {
    load_piece<4, STRIDE>(at, piece.words);
    UNROLL for (u32 r = 0; r < 2; r++) {
      UNROLL for (u32 pair = 0; pair < 2; pair++) {
        const u32 block = pair ? at.second_plane : at.first_plane;
        const LOCAL u8* from = at.planes + (lane_id() / 4 + 8 * r) * PLANE_STRIDE + block * 4 * PLANES;
        if constexpr (PLANES == 1) {
          const u32x2 v = *(const LOCAL u32x2*)from;
          UNROLL for (u32 i = 0; i < 2; i++) piece.planes[r][2 * pair + i][0] = v[i];
        } else {
          const u32x4 v = *(const LOCAL u32x4*)from;
          UNROLL for (u32 i = 0; i < 4; i++) piece.planes[r][2 * pair + i / 2][i % 2] = v[i];
        }
      }
    }
  }
  DEVICE void factor(const Piece& piece, u32 b, u32 (&a)[4]) {
    constexpr u32 UP = Base::UP;
    const u32 t = lane_id() % 4;
    UNROLL for (u32 r = 0; r < 2; r++) {
      const u32 word = piece.words[b][r];
      u32 low = (word << UP) & (0x0f0f0f0fu << UP), high = (UP < 4 ? word >> (4 - UP) : word) & (0x0f0f0f0fu << UP);
      UNROLL for (u32 p = 0; p < PLANES; p++) {
        const u32 bits = piece.planes[r][b][p] >> (4 * t);
        low |= ((bits & 15u) * (0x00204081u << (4 + p + UP))) & (0x01010101u << (4 + p + UP));
        high |= ((bits >> 16 & 15u) * (0x00204081u << (4 + p + UP))) & (0x01010101u << (4 + p + UP));
      }
      a[r] = Base::centered(low);
      a[2 + r] = Base::centered(high);
    }
  }
};

// A stream of codes of 2, 3, 5 or 6 bits.
template <u32 BITS_, u32 ZERO, bool SPLIT_>
struct StreamCodes : ByteCodes<BITS_, ZERO> {
  using Base = ByteCodes<BITS_, ZERO>;
  static constexpr u32 BITS = BITS_;
  static constexpr bool PAIRED = false, SPLIT = SPLIT_;
  static constexpr Order ORDER = LINEAR;
  struct Piece {
    const LOCAL u32* rows[2];
  };
  template <u32 STRIDE>
  DEVICE void load(const PieceAt& at, Piece& piece) {
    UNROLL for (u32 r = 0; r < 2; r++) piece.rows[r] = (const LOCAL u32*)(at.codes + (lane_id() / 4 + 8 * r) * STRIDE);
  }
  DEVICE void factor(const Piece& piece, u32 b, u32 (&a)[4]) {
    constexpr u32 APART = 8 - BITS, UP = Base::UP, MASK = (1u << BITS) - 1;
    UNROLL for (u32 half = 0; half < 2; half++) {
      const u32 at = 4 * BITS * (lane_id() % 4) + 16 * BITS * half;
      UNROLL for (u32 r = 0; r < 2; r++) {
        const LOCAL u32* block = piece.rows[r] + b * BITS + at / 32;
        const u32 bits = bits_from(block[0], block[1], at % 32);
        u32 bytes = 0;
        UNROLL for (u32 j = 0; j < 4; j++) bytes |= (bits << (j * APART + UP)) & (MASK << (8 * j + UP));
        a[2 * half + r] = Base::centered(bytes);
      }
    }
  }
};

template <u32 GROUP, u32 ZERO, bool HAS_MINIMUM, u32 SUPER_GROUP>
struct StripeCodes<Quantized<4, GROUP, ZERO, HAS_MINIMUM, SUPER_GROUP>> : NibbleCodes<ZERO, LINEAR> {};
template <u32 GROUP, u32 ZERO, bool HAS_MINIMUM, u32 SUPER_GROUP>
struct StripeCodes<Quantized<5, GROUP, ZERO, HAS_MINIMUM, SUPER_GROUP>> : PlaneCodes<5, ZERO, GROUP == 16> {};
template <u32 GROUP, u32 ZERO, bool HAS_MINIMUM, u32 SUPER_GROUP>
struct StripeCodes<Quantized<6, GROUP, ZERO, HAS_MINIMUM, SUPER_GROUP>> : PlaneCodes<6, ZERO, GROUP == 16> {};
template <u32 GROUP, u32 SUPER_GROUP>
struct StripeCodes<Quantized<8, GROUP, 0, false, SUPER_GROUP>> : WholeBytes<true> {};
template <u32 BITS, u32 GROUP, class S, class B>
struct StripeCodes<Affine<BITS, GROUP, S, B>> : StreamCodes<BITS, 0, false> {};
template <u32 GROUP, class S, class B>
struct StripeCodes<Affine<4, GROUP, S, B>> : NibbleCodes<0, EVEN_ODD> {};
template <u32 GROUP, class S, class B>
struct StripeCodes<Affine<8, GROUP, S, B>> : WholeBytes<false> {};
template <u32 BITS, u32 ZERO, bool HAS_MINIMUM>
struct StripeCodes<SmallK<BITS, ZERO, HAS_MINIMUM>> : StreamCodes<BITS, ZERO, true> {};

template <>
struct StripeCodes<Mxfp4> {
  static constexpr u32 BITS = 4, EXPONENT = 14, PLANES = 0;
  static constexpr bool INTEGER = false, SPLIT = false, MARKED = false, PAIRED = true;
  static constexpr Order ORDER = NEIGHBOURS;
  struct Piece {
    u32 words[4][2], zero;
  };
  template <u32 STRIDE>
  DEVICE void load(const PieceAt& at, Piece& piece) {
    load_piece<4, STRIDE>(at, piece.words);
    piece.zero = at.zero;
  }
  DEVICE void factor(const Piece& piece, u32 b, u32 (&first)[4], u32 (&last)[4]) {
    constexpr u32 SEVENS = 0x70007000u;
    UNROLL for (u32 r = 0; r < 2; r++) {
      const u32 even = piece.words[b][r] & 0x0f0f0f0fu, odd = piece.words[b][r] & 0xf0f0f0f0u;
      first[r] = carried(multiply_integers(even, 512 + piece.zero, SEVENS));
      first[2 + r] = carried(multiply_integers(odd, 32 + piece.zero, SEVENS));
      last[r] = carried(multiply_integers(even, 2 + piece.zero, SEVENS));
      last[2 + r] = carried(multiply_integers(odd >> 8, 32 + piece.zero, SEVENS));
    }
  }
};

template <>
struct StripeCodes<Nvfp4> {
  static constexpr u32 BITS = 4, EXPONENT = 14, PLANES = 0;
  static constexpr bool INTEGER = false, SPLIT = true, MARKED = false, PAIRED = true;
  static constexpr Order ORDER = LINEAR;
  struct Piece {
    u32 fours[4][2][2], zero;  // of a block, row, half: four codes
  };
  template <u32 STRIDE>
  DEVICE void load(const PieceAt& at, Piece& piece) {
    piece.zero = at.zero;
    UNROLL for (u32 b = 0; b < 4; b++) {
      UNROLL for (u32 i = 0; i < 4; i++) {
        const u32 block = (b < 2 ? at.first : at.second) + b % 2;
        const LOCAL u8* row = at.codes + (lane_id() / 4 + i / 2 * 8) * STRIDE + block * 16;
        piece.fours[b][i / 2][i % 2] = ((const LOCAL u16*)row)[i % 2 * 4 + lane_id() % 4];
      }
    }
  }
  DEVICE void factor(const Piece& piece, u32 b, u32 (&first)[4], u32 (&last)[4]) {
    UNROLL for (u32 r = 0; r < 2; r++) {
      UNROLL for (u32 i = 0; i < 2; i++) {
        u32(&to)[4] = i ? last : first;
        const u32 apart = bytes_apart(piece.fours[b][r][i]);
        to[r] = carried(multiply_integers(apart & 0x000f000fu, 512 + piece.zero, 0x70007000u));
        to[2 + r] = carried(multiply_integers(apart, 32 + piece.zero, 0x70007000u));
      }
    }
  }
};

#if defined(__NVPTX__) && __CUDA_ARCH__ >= 890
inline constexpr bool HALVES_OF_E4M3 = true;
#else
inline constexpr bool HALVES_OF_E4M3 = false;
#endif

template <Scaling SCALING>
struct StripeCodes<Fp8<SCALING>> {
  static constexpr u32 BITS = 8, EXPONENT = HALVES_OF_E4M3 ? 0 : 8, PLANES = 0;
  static constexpr bool INTEGER = false, SPLIT = false, MARKED = !HALVES_OF_E4M3, PAIRED = false;
  static constexpr Order ORDER = HALVES_OF_E4M3 ? ADJACENT : LINEAR;
  struct Piece {
    u32 words[4][4], zero;
  };
  template <u32 STRIDE>
  DEVICE void load(const PieceAt& at, Piece& piece) {
    load_piece<8, STRIDE>(at, piece.words);
    piece.zero = at.zero;
  }
  DEVICE void factor(const Piece& piece, u32 b, u32 (&first)[4], u32 (&last)[4]) {
    UNROLL for (u32 r = 0; r < 2; r++) {
      UNROLL for (u32 i = 0; i < 2; i++) {
        u32(&to)[4] = i ? last : first;
        const u32 word = piece.words[b][2 * i + r];
#if defined(__NVPTX__) && __CUDA_ARCH__ >= 890
        asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b;}"
            : "=r"(to[r]), "=r"(to[2 + r])
            : "r"(word));
#else
        to[r] = multiply_integers(word & 0x00ff00ffu, 128u + piece.zero, 0x40004000u) & 0xbf80bf80u;
        to[2 + r] = ((word >> 1) & 0x3f803f80u) | (word & 0x80008000u);
#endif
      }
    }
  }
  // Not zero where row r has a code of the block that is NaN.
  DEVICE u32 marks(const Piece& piece, u32 b, u32 r) {
    return nan_of_e4m3(piece.words[b][r]) | nan_of_e4m3(piece.words[b][2 + r]);
  }
};
