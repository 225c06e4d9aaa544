// Codes of weight formats as pairs of U (BF16 or f16) for register_gemm.h, exactly and without their scales.
//
// A block is 32 columns of a weight row; a step of the matrix units takes 16 of them. Lanes 4 g + t have of rows g and g + 8
// eight codes of each block as four pairs, two a step. NEIGHBOURS: columns 8 t to 8 t + 7 as (0, 4), (1, 5) and (2, 6), (3, 7).
// LINEAR: 4 t to 4 t + 3 as (0, 2), (1, 3), then those 16 further on; ADJACENT: the same as (0, 1), (2, 3).
//
// CodePairs<W, U>: a number of a pair is its code plus OFFSET, times 1 / UNIT. CHUNKS: 16 bytes each that 128 columns of a row
// take in local memory, FIRST of them of the codes, the others of their high bits.
#pragma once

#include "stripe_codes.h"

// (a & mask) | set
DEVICE u32 masked_or(u32 a, u32 mask, u32 set) {
#if defined(__NVPTX__)
  u32 result;  // one instruction, which ptxas does not find
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(a), "r"(mask), "r"(set));
  return result;
#else
  return (a & mask) | set;
#endif
}

// 2^7 or 2^10 twice, whose last bits are a small number's place, and its bytes that are not zero.
template <class U>
struct Magic {
  static constexpr u32 BITS = Element<U>::BITS == 8 ? 0x43004300u : 0x64006400u, BYTES = BITS | BITS >> 8;
  static constexpr f32 VALUE = Element<U>::BITS == 8 ? 128.0f : 1024.0f;
  // Bytes 2 h and 2 h + 1 of a word as numbers plus VALUE.
  DEVICE u32 pair(u32 bytes, u32 h) {
#if defined(__NVPTX__)
    return (u32)__nvvm_prmt((i32)bytes, (i32)BYTES, h ? 0x4342 : 0x4140);
#else
    return (bytes >> (16 * h) & 255u) | (bytes >> (16 * h + 8) & 255u) << 16 | BITS;
#endif
  }
};

template <u32 CHUNKS_, u32 FIRST_ = CHUNKS_>
struct CodeRows {
  static constexpr u32 CHUNKS = CHUNKS_, FIRST = FIRST_, STRIDE = (CHUNKS | 1) * 16;  // bytes of a row: banks differ
};

template <class W, class U>
struct CodePairs;

template <class U, u32 ZERO, Order ORDER_>
struct PairsOfNibbles : CodeRows<4> {
  static constexpr Order ORDER = ORDER_;
  static constexpr f32 OFFSET = Magic<U>::VALUE + ZERO, UNIT = 1.0f;
  struct Piece {
    u32 words[4][2];
  };
  DEVICE void load(const LOCAL u8* rows, Piece& piece) {
    load_piece<4, CodeRows<4>::STRIDE>({rows, nullptr, 0, 2, 0, 0, 0}, piece.words);
  }
  DEVICE void factor(const Piece& piece, u32 b, u32 (&a)[2][4]) {
    UNROLL for (u32 r = 0; r < 2; r++) {
      UNROLL for (u32 i = 0; i < 4; i++) {
        const u32 pair = masked_or(piece.words[b][r] >> (4 * i), 0x000f000fu, Magic<U>::BITS);
        if constexpr (ORDER == NEIGHBOURS) {
          a[i / 2][i % 2 * 2 + r] = pair;
        } else {
          a[i % 2][i / 2 * 2 + r] = pair;
        }
      }
    }
  }
};

// Bytes: of columns 4 t to 4 t + 3, and of those 16 further on.
template <class U>
DEVICE void pairs_of_bytes(u32 bytes, u32 half, u32 r, u32 (&a)[2][4]) {
  UNROLL for (u32 h = 0; h < 2; h++) a[half][2 * h + r] = Magic<U>::pair(bytes, h);
}

template <class U, bool SIGNED>
struct PairsOfBytes : CodeRows<8> {
  static constexpr Order ORDER = ADJACENT;
  static constexpr f32 OFFSET = Magic<U>::VALUE + (SIGNED ? 128.0f : 0.0f), UNIT = 1.0f;
  struct Piece {
    u32 words[4][4];
  };
  DEVICE void load(const LOCAL u8* rows, Piece& piece) {
    load_piece<8, CodeRows<8>::STRIDE>({rows, nullptr, 0, 2, 0, 0, 0}, piece.words);
  }
  DEVICE void factor(const Piece& piece, u32 b, u32 (&a)[2][4]) {
    UNROLL for (u32 i = 0; i < 4; i++) {
      const u32 word = piece.words[b][i];
      pairs_of_bytes<U>(SIGNED ? word ^ 0x80808080u : word, i / 2, i % 2, a);
    }
  }
};

// Nibbles, and a bit or two more of each.
template <class U, u32 BITS, u32 ZERO>
struct PairsOfPlanes : CodeRows<BITS, 4> {
  static constexpr u32 PLANES = BITS - 4;
  static constexpr Order ORDER = ADJACENT;
  static constexpr f32 OFFSET = Magic<U>::VALUE + ZERO, UNIT = 1.0f;
  using Rows = CodeRows<BITS, 4>;
  struct Piece {
    u32 words[4][2];
    const LOCAL u8* planes[2];
  };
  DEVICE void load(const LOCAL u8* rows, Piece& piece) {
    load_piece<4, Rows::STRIDE>({rows, nullptr, 0, 2, 0, 0, 0}, piece.words);
    UNROLL for (u32 r = 0; r < 2; r++) piece.planes[r] = rows + (lane_id() / 4 + 8 * r) * Rows::STRIDE + 64;
  }
  DEVICE void factor(const Piece& piece, u32 b, u32 (&a)[2][4]) {
    const u32 t = lane_id() % 4;
    UNROLL for (u32 r = 0; r < 2; r++) {
      const u32 word = piece.words[b][r];
      u32 low = word & 0x0f0f0f0fu, high = word >> 4 & 0x0f0f0f0fu;
      UNROLL for (u32 p = 0; p < PLANES; p++) {
        const u32 bits = ((const LOCAL u32*)piece.planes[r])[b * PLANES + p] >> (4 * t);
        low |= spread(bits) << (4 + p);
        high |= spread(bits >> 16) << (4 + p);
      }
      pairs_of_bytes<U>(low, 0, r, a);
      pairs_of_bytes<U>(high, 1, r, a);
    }
  }
};

// A stream of codes of 2, 3, 5 or 6 bits.
template <class U, u32 BITS, u32 ZERO>
struct PairsOfStream : CodeRows<BITS> {
  static constexpr Order ORDER = ADJACENT;
  static constexpr f32 OFFSET = Magic<U>::VALUE + ZERO, UNIT = 1.0f;
  struct Piece {
    const LOCAL u32* rows[2];
  };
  DEVICE void load(const LOCAL u8* rows, Piece& piece) {
    UNROLL for (u32 r = 0; r < 2; r++) {
      piece.rows[r] = (const LOCAL u32*)(rows + (lane_id() / 4 + 8 * r) * CodeRows<BITS>::STRIDE);
    }
  }
  DEVICE void factor(const Piece& piece, u32 b, u32 (&a)[2][4]) {
    constexpr u32 APART = 8 - BITS, MASK = (1u << BITS) - 1;
    UNROLL for (u32 half = 0; half < 2; half++) {
      const u32 at = 4 * BITS * (lane_id() % 4) + 16 * BITS * half;
      UNROLL for (u32 r = 0; r < 2; r++) {
        const LOCAL u32* block = piece.rows[r] + b * BITS + at / 32;
        const u32 bits = bits_from(block[0], block[1], at % 32);
        u32 bytes = 0;
        UNROLL for (u32 j = 0; j < 4; j++) bytes |= (bits << (j * APART)) & (MASK << (8 * j));
        pairs_of_bytes<U>(bytes, half, r, a);
      }
    }
  }
};

template <class U, u32 GROUP, u32 ZERO, bool HAS_MINIMUM, u32 SUPER_GROUP>
struct CodePairs<Quantized<4, GROUP, ZERO, HAS_MINIMUM, SUPER_GROUP>, U> : PairsOfNibbles<U, ZERO, LINEAR> {};
template <class U, u32 GROUP, u32 ZERO, bool HAS_MINIMUM, u32 SUPER_GROUP>
struct CodePairs<Quantized<5, GROUP, ZERO, HAS_MINIMUM, SUPER_GROUP>, U> : PairsOfPlanes<U, 5, ZERO> {};
template <class U, u32 GROUP, u32 ZERO, bool HAS_MINIMUM, u32 SUPER_GROUP>
struct CodePairs<Quantized<6, GROUP, ZERO, HAS_MINIMUM, SUPER_GROUP>, U> : PairsOfPlanes<U, 6, ZERO> {};
template <class U, u32 GROUP, u32 SUPER_GROUP>
struct CodePairs<Quantized<8, GROUP, 0, false, SUPER_GROUP>, U> : PairsOfBytes<U, true> {};
template <class U, u32 BITS, u32 GROUP, class S, class B>
struct CodePairs<Affine<BITS, GROUP, S, B>, U> : PairsOfStream<U, BITS, 0> {};
template <class U, u32 GROUP, class S, class B>
struct CodePairs<Affine<4, GROUP, S, B>, U> : PairsOfNibbles<U, 0, NEIGHBOURS> {};
template <class U, u32 GROUP, class S, class B>
struct CodePairs<Affine<8, GROUP, S, B>, U> : PairsOfBytes<U, false> {};
template <class U, u32 BITS, u32 ZERO, bool HAS_MINIMUM>
struct CodePairs<SmallK<BITS, ZERO, HAS_MINIMUM>, U> : PairsOfStream<U, BITS, ZERO> {};

// E2M1 with its fields where a float16 has them: too small by 2^14.
struct PairsOfE2m1 : CodeRows<4> {
  static constexpr Order ORDER = NEIGHBOURS;
  static constexpr f32 OFFSET = 0.0f;
  struct Piece {
    u32 words[4][2], zero;
  };
  DEVICE void load(const LOCAL u8* rows, Piece& piece) {
    load_piece<4, STRIDE>({rows, nullptr, 0, 2, 0, 0, 0}, piece.words);
    piece.zero = unknown_zero();
  }
  DEVICE void factor(const Piece& piece, u32 b, u32 (&a)[2][4]) {
    constexpr u32 SEVENS = 0x70007000u;
    UNROLL for (u32 r = 0; r < 2; r++) {
      const u32 even = piece.words[b][r] & 0x0f0f0f0fu, odd = piece.words[b][r] & 0xf0f0f0f0u;
      a[0][r] = carried(multiply_integers(even, 512 + piece.zero, SEVENS));
      a[0][2 + r] = carried(multiply_integers(odd, 32 + piece.zero, SEVENS));
      a[1][r] = carried(multiply_integers(even, 2 + piece.zero, SEVENS));
      a[1][2 + r] = carried(multiply_integers(odd >> 8, 32 + piece.zero, SEVENS));
    }
  }
};
template <>
struct CodePairs<Mxfp4, f16> : PairsOfE2m1 {
  static constexpr f32 UNIT = 16384.0f;
};
// Times its scale, which is exact: six significant bits, and multiples of 2^-19 below 8 (both times 2^9).
template <>
struct CodePairs<Nvfp4, f16> : PairsOfE2m1 {
  static constexpr f32 UNIT = 512.0f;
  // Of the lane's codes of block b, twice, times 2^5. scales: those of a piece of a row.
  DEVICE u32 scale(const u32 (&scales)[2], u32 b) {
    constexpr f32 FACTOR = 32.0f;
    const u32 at = b % 2 * 2 + lane_id() % 4 / 2;
#if defined(__NVPTX__) && __CUDA_ARCH__ >= 890
    u32 twice;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(twice) : "h"((u16)__nvvm_prmt((i32)scales[b / 2], 0, (i32)(at * 0x11u))));
    return half_multiply(twice, FACTOR);
#else
    const f32 one = float_of_e4m3(scales[b / 2] >> (8 * at) & 255u) * FACTOR;
    return half_pair(one, one);
#endif
  }
};
template <Scaling SCALING>
struct CodePairs<Fp8<SCALING>, f16> : CodeRows<8> {
  static constexpr Order ORDER = ADJACENT;
  static constexpr f32 OFFSET = 0.0f, UNIT = 1.0f;
  struct Piece {
    u32 words[4][4];
  };
  DEVICE void load(const LOCAL u8* rows, Piece& piece) {
    load_piece<8, CodeRows<8>::STRIDE>({rows, nullptr, 0, 2, 0, 0, 0}, piece.words);
  }
  DEVICE void factor(const Piece& piece, u32 b, u32 (&a)[2][4]) {
    UNROLL for (u32 i = 0; i < 4; i++) {
      u32(&to)[4] = a[i / 2];
      const u32 word = piece.words[b][i];
#if defined(__NVPTX__) && __CUDA_ARCH__ >= 890
      asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b;}"
          : "=r"(to[i % 2]), "=r"(to[2 + i % 2])
          : "r"(word));
#else
      UNROLL for (u32 h = 0; h < 2; h++) {
        const u32 two = word >> (16 * h);
        to[2 * h + i % 2] = half_pair(float_of_e4m3(two & 255u), float_of_e4m3(two >> 8 & 255u));
      }
#endif
    }
  }
};

// What weights of W become for x of type X: BF16 where its eight bits hold their codes and x is that too.
template <class W>
inline constexpr bool IN_BF16 = false;
template <u32 BITS, u32 GROUP, u32 ZERO, bool HAS_MINIMUM, u32 SUPER_GROUP>
inline constexpr bool IN_BF16<Quantized<BITS, GROUP, ZERO, HAS_MINIMUM, SUPER_GROUP>> = BITS < 8;
template <u32 BITS, u32 GROUP, class S, class B>
inline constexpr bool IN_BF16<Affine<BITS, GROUP, S, B>> = BITS < 8;
template <u32 BITS, u32 ZERO, bool HAS_MINIMUM>
inline constexpr bool IN_BF16<SmallK<BITS, ZERO, HAS_MINIMUM>> = true;

// Whether numbers of a pair are times their scales already.
template <class C>
inline constexpr bool SCALED_PAIRS = requires { &C::scale; };
// Whether a row has one scale, and that.
template <class W>
inline constexpr bool ROW_HAS_SCALE = false;
template <Scaling SCALING>
inline constexpr bool ROW_HAS_SCALE<Fp8<SCALING>> = SCALING == CHANNEL || SCALING == TENSOR;
template <Scaling SCALING>
DEVICE f32 scale_of_row(const Fp8<SCALING>& w, u32 row) {
  return ((const GLOBAL f32*)w.parts.scale)[SCALING == CHANNEL ? row : 0];
}
// Steps of 16 columns that share a scale, of the eight of a piece.
template <class W>
inline constexpr u32 STEPS_A_SCALE = W::GROUPS == 2 ? 1 : 2;
template <u32 BITS, u32 GROUP, class S, class B>
inline constexpr u32 STEPS_A_SCALE<Affine<BITS, GROUP, S, B>> = GROUP / 16;
template <Scaling SCALING>
inline constexpr u32 STEPS_A_SCALE<Fp8<SCALING>> = SCALING == BLOCKS_OF_32 ? 2 : 8;
