// What a lane of fragment_gemm.h reads of a weight row at a time, and the weights of it as pairs of bfloat16 numbers.
//
// Piece<W>: COLUMNS of a row, a multiple of 16. `ask` for them, and, when they are there, `ready`. `pairs`: columns 4 p to
// 4 p + 3, neighbours in a pair, as sums of TERMS numbers; where EXACT one number is all of a weight. A row's result is
// multiplied by `whole` in the end.
#pragma once

#include "mma.h"
#include "streams.h"

// Bytes of two words, which a digit of `which` names each, the lowest byte first: 0 to 3 of `a`, 4 to 7 of `b`, 8 to 11:
// the sign of one of a, eight times.
DEVICE u32 bytes_of(u32 a, u32 b, u32 which) {
#if defined(__NVPTX__)
  return (u32)__nvvm_prmt((i32)a, (i32)b, (i32)which);
#else
  u32 result = 0;
  for (u32 i = 0; i < 4; i++) {
    const u32 from = which >> (4 * i) & 15u, byte = (from & 4u ? b : a) >> (from % 4 * 8) & 255u;
    result |= (from & 8u ? byte & 128u ? 255u : 0u : byte) << (8 * i);
  }
  return result;
#endif
}

template <class W>
struct WholePiece {
  static constexpr u32 COLUMNS = 32;
  using Stored = typename W::Stored;
  DEVICE void ask(const W& weight, Stored& s, u32 row, u32 piece) {
    weight.ask(s, row, piece);
    weight.ask_shared(s, row, piece);
  }
  DEVICE f32 whole(const W&, u32) { return 1.0f; }
};

template <u32 TERMS>
DEVICE void rounded_pairs(const f32 (&w)[4], u32 (&pair)[TERMS][2]) {
  UNROLL for (u32 i = 0; i < 2; i++) {
    if constexpr (TERMS == 1) {
      pair[0][i] = rounded_pair(w[2 * i], w[2 * i + 1]);
    } else {
      split_pair(w[2 * i], w[2 * i + 1], pair[0][i], pair[TERMS - 1][i]);
    }
  }
}

// In general: decoded in float32.
template <class W>
struct Piece : WholePiece<W> {
  static constexpr bool EXACT = false;
  using Stored = typename W::Stored;
  using Ready = typename W::Run;
  static constexpr u32 part_at(u32 p) {
    for (u32 i = 0; i < 8; i++) {
      if (W::place(i) == p) return i;
    }
    return 0;
  }
  DEVICE Ready ready(const Stored& s) { return W::run(s); }
  template <u32 TERMS>
  DEVICE void pairs(const Ready& r, u32 p, u32 (&pair)[TERMS][2]) {
    f32 w[4];
    decode<W>(r, part_at(p), w);
    rounded_pairs(w, pair);
  }
};

template <class T>
struct Piece<Dense<T>> {
  using W = Dense<T>;
  static constexpr u32 COLUMNS = 16;
  static constexpr bool EXACT = Element<T>::BITS <= 8;
  struct Stored {
    typename W::Run runs[2];
  };
  using Ready = Stored;
  DEVICE void ask(const W& weight, Stored& s, u32 row, u32 piece) {
    UNROLL for (u32 i = 0; i < 2; i++) {
      if (2 * piece + i < weight.runs) weight.ask(s.runs[i], row, 2 * piece + i);
    }
  }
  DEVICE Ready ready(const Stored& s) { return s; }
  DEVICE f32 whole(const W&, u32) { return 1.0f; }
  template <u32 TERMS>
  DEVICE void pairs(const Ready& r, u32 p, u32 (&pair)[TERMS][2]) {
    if constexpr (EXACT) {
      static_assert(TERMS == 1);
      UNROLL for (u32 i = 0; i < 2; i++) pair[0][i] = r.runs[p / 2].words[0][p % 2 * 2 + i];
    } else {
      f32 w[4];
      W::codes(r.runs[p / 2], p % 2, w);
      rounded_pairs(w, pair);
    }
  }
};

// Nibbles 2 i and 2 i + 1 of a word in the low and the high half: of its even ones, and of its odd ones, in bytes.
DEVICE u32 two_nibbles(u32 even, u32 odd, u32 i) { return bytes_of(even, odd, 0x8080u | i | (4 + i) << 8); }

// MLX's 4 bits with bfloat16 scales, for one term: code times scale, plus minimum, rounded once.
template <u32 GROUP>
struct Piece<Affine<4, GROUP, BF16, BF16>> : WholePiece<Affine<4, GROUP, BF16, BF16>> {
  static constexpr bool EXACT = false;
  using W = Affine<4, GROUP, BF16, BF16>;
  using Stored = typename W::Stored;
  struct Ready {
    typename W::Run run;
    u32 even[4], odd[4], scales, minima;
  };
  DEVICE Ready ready(const Stored& s) {
    Ready r;
    r.run = W::run(s);
    UNROLL for (u32 i = 0; i < 4; i++) {
      r.even[i] = s.words[i] & 0x0f0f0f0fu;
      r.odd[i] = s.words[i] >> 4 & 0x0f0f0f0fu;
    }
    r.scales = rounded_pair(r.run.scale[0] * 64.0f, r.run.scale[0] * 64.0f);
    r.minima = rounded_pair(r.run.minimum[0], r.run.minimum[0]);
    return r;
  }
  template <u32 TERMS>
  DEVICE void pairs(const Ready& r, u32 p, u32 (&pair)[TERMS][2]) {
    if constexpr (TERMS == 1) {
      UNROLL for (u32 i = 0; i < 2; i++) {  // a code is a subnormal number, which 2^127 makes 64 times too small
        const u32 two = two_nibbles(r.even[p / 2], r.odd[p / 2], p % 2 * 2 + i);
        pair[0][i] = bf16_multiply_add(bf16_multiply(two, bf16_power(127)), r.scales, r.minima);
      }
    } else {
      f32 w[4];
      decode<W>(r.run, p, w);
      rounded_pairs(w, pair);
    }
  }
};

// E2M1 and E4M3: a number's fields are put where a bfloat16 number has them, which is too small by a power of two.
// Scales that have few bits too are multiplied in exactly, others in the end.
template <bool NVIDIA>
struct Piece<Fp4<NVIDIA>> : WholePiece<Fp4<NVIDIA>> {
  static constexpr bool EXACT = true;
  using W = Fp4<NVIDIA>;
  using Stored = typename W::Stored;
  struct Ready {
    u32 even[4], odd[4], scales[W::GROUPS];  // nibbles of each word in its bytes
  };
  DEVICE Ready ready(const Stored& s) {
    Ready r;
    UNROLL for (u32 i = 0; i < 4; i++) {
      r.even[i] = s.words[i] & 0x0f0f0f0fu;
      r.odd[i] = s.words[i] >> 4 & 0x0f0f0f0fu;
    }
    UNROLL for (u32 g = 0; g < W::GROUPS; g++) {
      const f32 scale = NVIDIA ? float_of_e4m3(s.scale[g]) : float_of_e8m0(s.scale[g]);
      r.scales[g] = rounded_pair(scale, scale);
    }
    return r;
  }
  template <u32 TERMS>
  DEVICE void pairs(const Ready& r, u32 p, u32 (&pair)[TERMS][2]) {
    UNROLL for (u32 i = 0; i < 2; i++) {
      const u32 two = two_nibbles(r.even[p / 2], r.odd[p / 2], p % 2 * 2 + i);
      // Bits 0 to 3 of a half go to 6 to 9, and what is added carries the sign on to bit 15.
      const u32 fields = (two * 64u + 0x7e007e00u) & 0x81c081c0u;
      pair[0][i] = bf16_multiply(bf16_multiply(fields, bf16_power(126)), r.scales[NVIDIA ? p / 4 : 0]);
    }
  }
  DEVICE f32 whole(const W& weight, u32) {
    if constexpr (NVIDIA) return *weight.parts.global_scale;
    return 1.0f;
  }
};

template <Scaling SCALING>
  requires(SCALING != BLOCKS_OF_128)
struct Piece<Fp8<SCALING>> : WholePiece<Fp8<SCALING>> {
  static constexpr bool EXACT = true, BLOCKS = SCALING == BLOCKS_OF_32;
  using W = Fp8<SCALING>;
  struct Stored {
    u32 words[8];
    u8 scale;
  };
  struct Ready {
    u32 words[8], scales;  // 1, or NaN, where they come in the end
  };
  DEVICE void ask(const W& weight, Stored& s, u32 row, u32 piece) {
    load_words<8>(weight.parts.codes, (u64)row * weight.runs + piece, s.words);
    if constexpr (BLOCKS) s.scale = weight.scale_of(row, piece);
  }
  DEVICE Ready ready(const Stored& s) {
    Ready r;
    u32 nan = 0;
    UNROLL for (u32 i = 0; i < 8; i++) {
      r.words[i] = s.words[i];
      nan |= nan_of_e4m3(s.words[i]);
    }
    const f32 scale = nan ? quiet_nan() : BLOCKS ? float_of_e8m0(s.scale) : 1.0f;
    r.scales = rounded_pair(scale, scale);
    return r;
  }
  template <u32 TERMS>
  DEVICE void pairs(const Ready& r, u32 p, u32 (&pair)[TERMS][2]) {
    UNROLL for (u32 i = 0; i < 2; i++) {
      const u32 two = bytes_of(r.words[p], 0, 0x4040u | (2 * i) | (2 * i + 1) << 8);
      const u32 fields = (two * 16u + 0x78007800u) & 0x87f087f0u;
      pair[0][i] = bf16_multiply(bf16_multiply(fields, bf16_power(120)), r.scales);
    }
  }
  DEVICE f32 whole(const W& weight, u32 row) {
    if constexpr (BLOCKS) return 1.0f;
    return weight.scale_of(row, 0);
  }
};
