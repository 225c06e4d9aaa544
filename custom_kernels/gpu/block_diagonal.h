// Few rows of x on NVIDIA's matrix units (mma.m16n8k16, bfloat16): 16 weight rows of 32 columns for each of four lanes.
//
// Lane 4 g + t holds 32 columns ("a chunk") of weight rows g and g + 8, another chunk for each t. Eight instructions take
// four columns of each lane's rows; the other factor is block diagonal: its columns 2 t and 2 t + 1 hold the two bfloat16
// terms of x for the columns of lanes t, and zero for all others. So a lane gets back the products of its own rows with
// its own columns, ready to be scaled, and what was read of the weight never moves between lanes.
// x is kept in local memory as two terms (16 bits of the fraction), in the order in which a format decodes its codes.
#pragma once

#include "mma.h"
#include "streams.h"

#if !defined(__AMDGCN__)

inline constexpr u32 CHUNK = 32, STEP_CHUNKS = 4, CHUNK_WORDS = 32;  // the words of a chunk: two terms of 32 columns

#if defined(__NVPTX__)
// (word & mask) | bits in one instruction.
template <u32 MASK, u32 BITS>
DEVICE u32 masked_or(u32 word) {
  u32 result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "n"(MASK), "n"(BITS));
  return result;
}
template <u32 MASK>
DEVICE u32 masked_or(u32 word, u32 bits) {
  u32 result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "n"(MASK), "r"(bits));
  return result;
}
#else
template <u32 MASK, u32 BITS>
DEVICE u32 masked_or(u32 word) { return (word & MASK) | BITS; }
template <u32 MASK>
DEVICE u32 masked_or(u32 word, u32 bits) { return (word & MASK) | bits; }
#endif

// Weights that are bfloat16 numbers, 32 columns at a time; a row has whole runs.
struct Bf16Runs {
  static constexpr u32 RUN = 32, GROUPS = 1;
  static constexpr bool MINIMUM = false;
  static constexpr f32 UNIT = 1.0f;
  static constexpr u32 group(u32) { return 0; }
  struct Stored {
    u32x4 words[4];
  };
  struct Run {
    u32x4 words[4];
    static constexpr f32 scale[1] = {1.0f};
  };
  Parts parts;
  u32 runs = 0;
  constexpr explicit Bf16Runs(Parts p) : parts(p) {}

  MEMBER void ask(Stored& s, u32 row, u32 column_run) const {
    const GLOBAL u32x4* words = (const GLOBAL u32x4*)parts.codes + ((u64)row * runs + column_run) * 4;
    UNROLL for (u32 i = 0; i < 4; i++) s.words[i] = words[i];
  }
  MEMBER void ask_shared(Stored&, u32, u32) const {}
  DEVICE Run run(const Stored& s) { return {{s.words[0], s.words[1], s.words[2], s.words[3]}}; }
};

// How a format's run becomes the first factor. pairs(run, m, ...): the columns of instruction m, two in each word, as
// bfloat16, plus OFFSET; times X_UNIT * RESULT_UNIT they are code * UNIT of weights.h, x having been multiplied by X_UNIT.
// The columns are those of float4 number quad(m), or, INTERLEAVED, of instructions 2 i and 2 i + 1 the first, and the
// second, halves of quads 2 i and 2 i + 1 in turn.
template <class W>
struct Pairs {
  static constexpr f32 OFFSET = 0.0f, X_UNIT = 1.0f, RESULT_UNIT = W::UNIT;
  static constexpr bool INTERLEAVED = false;
  static constexpr u32 quad(u32 m) { return W::place(m); }
  DEVICE void pairs(const typename W::Run& run, u32 m, u32& first, u32& second) {
    f32 c[4];  // bfloat16 holds every code exactly
    W::codes(run, m, c);
    const auto pair = [](f32 a, f32 b) __attribute__((always_inline)) {
      return __builtin_bit_cast(u32, a) >> 16 | (__builtin_bit_cast(u32, b) & 0xffff0000u);
    };
    first = pair(c[0], c[1]);
    second = pair(c[2], c[3]);
  }
};
// Nibbles j and j + 4 of a word lie 16 bits apart.
struct NibblePairs {
  static constexpr bool INTERLEAVED = true;
  static constexpr u32 quad(u32 m) { return m; }
};
// 16 + code: the code from bit 3 on in the fraction of a bfloat16.
template <u32 GROUP, class S, class B>
struct Pairs<Affine<4, GROUP, S, B>> : NibblePairs {
  static constexpr f32 OFFSET = 16.0f, X_UNIT = 1.0f, RESULT_UNIT = 1.0f;
  DEVICE void pairs(const typename Affine<4, GROUP, S, B>::Run& run, u32 m, u32& first, u32& second) {
    const u32 word = m % 2 ? run.words[m / 2] >> 8 : run.words[m / 2];  // shifts to the left are cheaper
    first = masked_or<0x00780078u, 0x41804180u>(word << 3);
    second = masked_or<0x00780078u, 0x41804180u>(word >> 1);
  }
};
// E2M1 in the lowest exponents of a bfloat16, which makes it smaller by 2^126; x is larger by 2^64.
template <class W>
struct SmallFloatPairs : NibblePairs {
  static constexpr f32 OFFSET = 0.0f, X_UNIT = 0x1p64f, RESULT_UNIT = 0x1p62f;
  DEVICE void pairs(const typename W::Run& run, u32 m, u32& first, u32& second) {
    const u32 word = run.words[m / 2], low = m % 2 ? word >> 8 : word;  // shifts to the left are cheaper
    first = masked_or<0x80008000u>(m % 2 ? word << 4 : word << 12, (low << 6) & 0x01c001c0u);
    second = masked_or<0x80008000u>(m % 2 ? word : word << 8, (low << 2) & 0x01c001c0u);
  }
};
template <>
struct Pairs<Mxfp4> : SmallFloatPairs<Mxfp4> {};
template <>
struct Pairs<Nvfp4> : SmallFloatPairs<Nvfp4> {};

template <>
struct Pairs<Bf16Runs> {
  static constexpr f32 OFFSET = 0.0f, X_UNIT = 1.0f, RESULT_UNIT = 1.0f;
  static constexpr bool INTERLEAVED = false;
  static constexpr u32 quad(u32 m) { return m; }
  DEVICE void pairs(const Bf16Runs::Run& run, u32 m, u32& first, u32& second) {
    first = run.words[m / 2][m % 2 * 2];
    second = run.words[m / 2][m % 2 * 2 + 1];
  }
};

template <class W>
inline constexpr bool NEEDS_SUMS = W::MINIMUM || Pairs<W>::OFFSET != 0.0f;  // of x over a chunk

// Word (of four) `part` of term `term` of a chunk: neighbouring chunks put it into other banks.
DEVICE u32 term_place(u32 chunk, u32 term, u32 part) { return chunk * CHUNK_WORDS + term * 16 + (part ^ (chunk % 4)) * 4; }

DEVICE f32 first_of(u32 pair) { return __builtin_bit_cast(f32, pair << 16); }
DEVICE f32 second_of(u32 pair) { return __builtin_bit_cast(f32, pair & 0xffff0000u); }

// Four columns, those that instruction m of a chunk takes, into their places. Returns the sum of what is stored.
template <class W>
DEVICE f32 stage_terms(LOCAL u32* words, u32 chunk, u32 m, const f32 (&x)[4]) {
  u32x2 high, low;
  f32 sum = 0.0f;
  UNROLL for (u32 i = 0; i < 2; i++) {
    const f32 a = x[2 * i] * Pairs<W>::X_UNIT, b = x[2 * i + 1] * Pairs<W>::X_UNIT;
    high[i] = rounded_pair(a, b);
    low[i] = rounded_pair(a - first_of(high[i]), b - second_of(high[i]));
    if constexpr (NEEDS_SUMS<W>) {
      sum += (first_of(high[i]) + first_of(low[i])) + (second_of(high[i]) + second_of(low[i]));
    }
  }
  *(LOCAL u32x2*)(words + term_place(chunk, 0, m / 2) + m % 2 * 2) = high;
  *(LOCAL u32x2*)(words + term_place(chunk, 1, m / 2) + m % 2 * 2) = low;
  return sum;
}

// Where a lane has its part of the second factor: the words of its chunk of x, of its term.
struct DiagonalBlock {
  const LOCAL u32* part[4];
  bool mine;  // of the block diagonal's lanes

  DEVICE DiagonalBlock at(const LOCAL u32* words, u32 chunk) {
    const u32 lane = lane_id();
    DiagonalBlock block;
    UNROLL for (u32 i = 0; i < 4; i++) block.part[i] = words + term_place(chunk, lane / 4 % 2, i);
    block.mine = lane % 4 == lane / 8;
    return block;
  }
};

// sum[i][r] += x row i times weight row r, of this lane's chunk, where it is `inside`. further: how many chunks beyond
// its block that is; stride: chunks between rows of x; of_x: where the chunk's sums are.
template <u32 M, class W>
DEVICE void add_step(const typename W::Run (&run)[2], const DiagonalBlock& block, u32 further, u32 stride,
                     const LOCAL f32* of_x, bool inside, f32 (&sum)[M][2]) {
  using P = Pairs<W>;
  Products c[M][2] = {};  // of the first and of the second half of the instructions
  UNROLL for (u32 part = 0; part < 4; part++) {
    u32 a[2][4];
    UNROLL for (u32 half = 0; half < 2; half++) {
      P::pairs(run[0], 2 * part + half, a[half][0], a[half][2]);
      P::pairs(run[1], 2 * part + half, a[half][1], a[half][3]);
    }
    UNROLL for (u32 i = 0; i < M; i++) {
      u32x4 b = {};
      if (block.mine) b = *(const LOCAL u32x4*)(block.part[part] + (further + i * stride) * CHUNK_WORDS);
      UNROLL for (u32 half = 0; half < 2; half++) {
        constexpr bool GROUPED = W::GROUPS == 2;
        const u32 chain = GROUPED ? W::group(2 * part + half) : half;
        multiply_16x8<BF16>(a[half], b[2 * half], b[2 * half + 1], c[i][chain]);
      }
    }
  }
  UNROLL for (u32 i = 0; i < M; i++) {
    UNROLL for (u32 r = 0; r < 2; r++) {
      f32 dot[2], next = sum[i][r];
      UNROLL for (u32 g = 0; g < 2; g++) dot[g] = c[i][g].of[2 * r] + c[i][g].of[2 * r + 1];
      if constexpr (W::GROUPS == 1) dot[0] += dot[1];
      if constexpr (NEEDS_SUMS<W>) {
        static_assert(W::GROUPS == 1);
        const f32 x = of_x[further + i * stride];
        dot[0] = multiply_add(x, -P::OFFSET, dot[0]);
        if constexpr (W::MINIMUM) next = multiply_add(x, run[r].minimum[0], next);
      }
      UNROLL for (u32 g = 0; g < W::GROUPS; g++) next = multiply_add(dot[g] * P::RESULT_UNIT, run[r].scale[g], next);
      sum[i][r] = inside ? next : sum[i][r];
    }
  }
}

#endif
