// Formats whose codes are one stream of bits, the first code lowest: MLX's affine formats, GGUF's 2 and 3 bits, and
// codes that are small floating-point numbers. The same interface as weights.h; everything is decoded without branches.
#pragma once

#include "weights.h"

template <u32 ALIGN>
struct FourWords {
  typedef u32 Vector __attribute__((ext_vector_type(4)));
};
template <>
struct FourWords<8> {
  typedef u32 Vector __attribute__((ext_vector_type(4), aligned(8)));
};
template <>
struct FourWords<4> {
  typedef u32 Vector __attribute__((ext_vector_type(4), aligned(4)));
};
template <u32 ALIGN>
struct TwoWords {
  typedef u32 Vector __attribute__((ext_vector_type(2)));
};
template <>
struct TwoWords<4> {
  typedef u32 Vector __attribute__((ext_vector_type(2), aligned(4)));
};

// Run `run` of a stream: BITS words. Loads of 16 bytes where the run is as long; only words must be aligned.
template <u32 BITS>
DEVICE void load_words(const GLOBAL u32* codes, u64 run, u32 (&words)[BITS]) {
  using Four = FourWords<BITS % 4 == 0 ? 16 : BITS % 2 == 0 ? 8 : 4>::Vector;
  using Two = TwoWords<BITS % 2 == 0 ? 8 : 4>::Vector;
  const GLOBAL u32* p = codes + run * BITS;
  constexpr u32 FOURS = BITS / 4 * 4, TWOS = FOURS + BITS % 4 / 2 * 2;
  UNROLL for (u32 i = 0; i < FOURS; i += 4) {
    const u32x4 v = *(const GLOBAL Four*)(p + i);
    UNROLL for (u32 c = 0; c < 4; c++) words[i + c] = v[c];
  }
  if constexpr (TWOS > FOURS) {
    const u32x2 v = *(const GLOBAL Two*)(p + FOURS);
    words[FOURS] = v[0];
    words[FOURS + 1] = v[1];
  }
  if constexpr (BITS > TWOS) words[TWOS] = p[TWOS];
}

// Code `i` of a run.
template <u32 BITS>
DEVICE u32 code_of(const u32 (&words)[BITS], u32 i) {
  const u32 word = i * BITS / 32, shift = i * BITS % 32;
  u32 bits = words[word] >> shift;
  if (shift + BITS > 32) bits |= words[word + 1] << (32 - shift);
  return bits & ((1u << BITS) - 1);
}

// Codes 4 * i to 4 * i + 3 of a run, less `zero`.
template <u32 BITS>
DEVICE void four_codes(const u32 (&words)[BITS], u32 i, u32 zero, f32 (&c)[4]) {
  UNROLL for (u32 j = 0; j < 4; j++) {
    if constexpr (BITS == 4) {
      c[j] = float_of_nibble(words[i / 2], 4 * (i % 2) + j, zero);
    } else if constexpr (BITS == 8) {
      c[j] = float_of_byte(words[i], j, zero);
    } else {
      c[j] = float_of_bits(code_of(words, 4 * i + j)) - (f32)zero;
    }
  }
}

DEVICE f32 quiet_nan() { return __builtin_bit_cast(f32, 0x7fc00000u); }

// 2^(bits - 127); 255 is NaN. The smallest is subnormal: it and NaN have the top bit of the fraction set.
DEVICE f32 float_of_e8m0(u32 bits) {
  return __builtin_bit_cast(f32, bits << 23 | (((bits + 1) & 255u) < 2 ? 0x00400000u : 0u));
}

// Half i of a word as a number. Small floats whose fields are put where a float16 has them are too small by a power of
// two, the format's UNIT: even subnormal ones are exact.
DEVICE f32 half_of(u32 bits, u32 i) { return (f32)__builtin_bit_cast(f16x2, bits)[i]; }
// Bytes 0 and 2 of a word, E4M3, as float16 / 256; NaN is not told apart (it gives 480 / 256).
DEVICE u32 fields_of_e4m3(u32 bytes) { return (bytes & 0x007f007fu) << 7 | (bytes & 0x00800080u) << 8; }
// Not zero when a byte of the word is an E4M3 NaN.
DEVICE u32 nan_of_e4m3(u32 bytes) { return ((bytes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u; }
DEVICE f32 float_of_e4m3(u32 byte) { return (byte & 127u) == 127u ? quiet_nan() : 256.0f * half_of(fields_of_e4m3(byte), 0); }

// code * scale + bias, a scale and a bias for each GROUP (32, 64, 128) columns.
template <u32 BITS, u32 GROUP, class S, class B>
struct Affine {
  static constexpr u32 RUN = 32, GROUPS = 1, SHARERS = GROUP / 32;
  static constexpr bool SCALED = true, MINIMUM = true;
  static constexpr f32 UNIT = 1.0f;
  static constexpr u32 place(u32 i) { return i; }
  static constexpr u32 group(u32) { return 0; }
  struct Run {
    u32 words[BITS];
    f32 scale[1], minimum[1];
  };
  Parts parts;
  u32 runs = 0;
  constexpr explicit Affine(Parts p) : parts(p) {}

  struct Stored {
    u32 words[BITS];
    S scale;
    B minimum;
  };
  MEMBER void ask(Stored& s, u32 row, u32 column_run) const {
    load_words<BITS>(parts.codes, (u64)row * runs + column_run, s.words);
  }
  MEMBER void ask_shared(Stored& s, u32 row, u32 column_run) const {
    const u64 group = (u64)row * (runs / SHARERS) + column_run / SHARERS;
    s.scale = ((const GLOBAL S*)parts.scale)[group];
    s.minimum = ((const GLOBAL B*)parts.minimum)[group];
  }
  DEVICE void share(Stored& s) {
    s.scale = of_first<SHARERS>(s.scale);
    s.minimum = of_first<SHARERS>(s.minimum);
  }
  DEVICE Run run(const Stored& s) {
    Run r;
    UNROLL for (u32 i = 0; i < BITS; i++) r.words[i] = s.words[i];
    r.scale[0] = widen(s.scale);
    r.minimum[0] = widen(s.minimum);
    return r;
  }
  MEMBER Run load(u32 row, u32 column_run) const { return load_run(*this, row, column_run); }
  DEVICE void codes(const Run& r, u32 i, f32 (&w)[4]) { four_codes<BITS>(r.words, i, 0, w); }
};

// GGUF's K-quants of 2 and 3 bits: int8 scales (and minima) per 16 columns times float16 per 256.
template <u32 BITS, u32 ZERO, bool HAS_MINIMUM>
struct SmallK {
  static constexpr u32 RUN = 32, GROUPS = 2, SHARERS = 4;
  static constexpr bool SCALED = true, MINIMUM = HAS_MINIMUM;
  static constexpr f32 UNIT = 1.0f;
  static constexpr u32 place(u32 i) { return i; }
  static constexpr u32 group(u32 i) { return i / 4; }
  struct Run {
    u32 words[BITS];
    f32 scale[2], minimum[2];
  };
  Parts parts;
  u32 runs = 0;
  constexpr explicit SmallK(Parts p) : parts(p) {}

  struct Stored {
    u32 words[BITS];
    i8 scale[2], minimum[2];
    f16 super_scale, super_minimum;
  };
  MEMBER void ask(Stored& s, u32 row, u32 column_run) const {
    const u64 run = (u64)row * runs + column_run;
    load_words<BITS>(parts.codes, run, s.words);
    UNROLL for (u32 i = 0; i < 2; i++) {
      s.scale[i] = ((const GLOBAL i8*)parts.scale)[2 * run + i];
      if constexpr (MINIMUM) s.minimum[i] = ((const GLOBAL i8*)parts.minimum)[2 * run + i];
    }
  }
  MEMBER void ask_shared(Stored& s, u32 row, u32 column_run) const {
    const u64 block = ((u64)row * runs + column_run) / 8;
    s.super_scale = parts.super_scale[block];
    if constexpr (MINIMUM) s.super_minimum = parts.super_minimum[block];
  }
  DEVICE void share(Stored& s) {
    s.super_scale = of_first<SHARERS>(s.super_scale);
    if constexpr (MINIMUM) s.super_minimum = of_first<SHARERS>(s.super_minimum);
  }
  DEVICE Run run(const Stored& s) {
    Run r;
    UNROLL for (u32 i = 0; i < BITS; i++) r.words[i] = s.words[i];
    UNROLL for (u32 i = 0; i < 2; i++) {
      r.scale[i] = (f32)s.scale[i] * (f32)s.super_scale;
      if constexpr (MINIMUM) r.minimum[i] = (f32)s.minimum[i] * (f32)s.super_minimum;
    }
    return r;
  }
  MEMBER Run load(u32 row, u32 column_run) const { return load_run(*this, row, column_run); }
  DEVICE void codes(const Run& r, u32 i, f32 (&w)[4]) { four_codes<BITS>(r.words, i, ZERO, w); }
};

// E2M1 with E8M0 scales per 32 columns, or E4M3 per 16 times `global_scale`.
template <bool NVIDIA>
struct Fp4 {
  static constexpr u32 RUN = 32, GROUPS = NVIDIA ? 2 : 1, SHARERS = 1;
  static constexpr bool SCALED = true, MINIMUM = false;
  static constexpr f32 UNIT = 16384.0f;
  static constexpr u32 place(u32 i) { return i; }
  static constexpr u32 group(u32 i) { return NVIDIA ? i / 4 : 0; }
  struct Run {
    u32 words[4];
    f32 scale[NVIDIA ? 2 : 1];
  };
  Parts parts;
  u32 runs = 0;
  constexpr explicit Fp4(Parts p) : parts(p) {}

  struct Stored {
    u32 words[4];
    u8 scale[GROUPS];
    f32 global_scale;
  };
  MEMBER void ask(Stored& s, u32 row, u32 column_run) const {
    const u64 run = (u64)row * runs + column_run;
    load_words<4>(parts.codes, run, s.words);
    UNROLL for (u32 i = 0; i < GROUPS; i++) s.scale[i] = ((const GLOBAL u8*)parts.scale)[GROUPS * run + i];
    if constexpr (NVIDIA) s.global_scale = *parts.global_scale;
  }
  MEMBER void ask_shared(Stored&, u32, u32) const {}
  DEVICE Run run(const Stored& s) {
    Run r;
    UNROLL for (u32 i = 0; i < 4; i++) r.words[i] = s.words[i];
    if constexpr (NVIDIA) {
      UNROLL for (u32 i = 0; i < 2; i++) r.scale[i] = float_of_e4m3(s.scale[i]) * s.global_scale;
    } else {
      r.scale[0] = float_of_e8m0(s.scale[0]);
    }
    return r;
  }
  MEMBER Run load(u32 row, u32 column_run) const { return load_run(*this, row, column_run); }
  DEVICE void codes(const Run& r, u32 i, f32 (&w)[4]) {
    const u32 word = r.words[i / 2];
    UNROLL for (u32 c = 0; c < 4; c++) {  // codes c and c + 4 of the word; the compiler makes each pair once
      const u32 nibbles = (c % 2 ? word >> 4 : word) & 0x0f0f0f0fu;
      // A nibble in bits 9 to 12 of a half: 7 more from bit 12 on carry the sign to bit 15, and the mask drops the rest.
      w[c] = half_of(((nibbles << (c < 2 ? 9 : 1)) + 0x70007000u) & 0x8e008e00u, i % 2);
    }
  }
};

enum Scaling { BLOCKS_OF_32, TENSOR, CHANNEL, BLOCKS_OF_128 };  // E8M0, then three of float32

// E4M3. A code that is NaN makes its whole run NaN, since every product with the row is NaN anyway.
template <Scaling SCALING>
struct Fp8 {
  static constexpr u32 RUN = 32, GROUPS = 1, SHARERS = SCALING == CHANNEL || SCALING == BLOCKS_OF_128 ? 4 : 1;
  static constexpr bool SCALED = true, MINIMUM = false;
  static constexpr f32 UNIT = 256.0f;
  static constexpr u32 place(u32 i) { return i; }
  static constexpr u32 group(u32) { return 0; }
  struct Run {
    u32 words[8];
    f32 scale[1];
  };
  Parts parts;
  u32 runs = 0;
  constexpr explicit Fp8(Parts p) : parts(p) {}

  using Scale = If<SCALING == BLOCKS_OF_32, u8, f32>;
  struct Stored {
    u32 words[8];
    Scale scale;
  };
  MEMBER void ask(Stored& s, u32 row, u32 column_run) const {
    load_words<8>(parts.codes, (u64)row * runs + column_run, s.words);
    if constexpr (SHARERS == 1) s.scale = scale_of(row, column_run);
  }
  MEMBER void ask_shared(Stored& s, u32 row, u32 column_run) const {
    if constexpr (SHARERS > 1) s.scale = scale_of(row, column_run);
  }
  DEVICE void share(Stored& s) { s.scale = of_first<SHARERS>(s.scale); }
  MEMBER Scale scale_of(u32 row, u32 column_run) const {
    const GLOBAL Scale* scale = (const GLOBAL Scale*)parts.scale;
    if constexpr (SCALING == BLOCKS_OF_32) return scale[(u64)row * runs + column_run];
    if constexpr (SCALING == BLOCKS_OF_128) return scale[row / 128 * ceil_div(runs, 4) + column_run / 4];
    return scale[SCALING == CHANNEL ? row : 0];
  }
  DEVICE Run run(const Stored& s) {
    Run r;
    u32 nan = 0;
    UNROLL for (u32 j = 0; j < 8; j++) {
      r.words[j] = s.words[j];
      nan |= nan_of_e4m3(s.words[j]);
    }
    if constexpr (SCALING == BLOCKS_OF_32) {
      r.scale[0] = nan ? quiet_nan() : float_of_e8m0(s.scale);
    } else {
      r.scale[0] = nan ? quiet_nan() : s.scale;
    }
    return r;
  }
  MEMBER Run load(u32 row, u32 column_run) const { return load_run(*this, row, column_run); }
  DEVICE void codes(const Run& r, u32 i, f32 (&w)[4]) {
    const u32 word = r.words[i], even = fields_of_e4m3(word), odd = fields_of_e4m3(word >> 8);
    UNROLL for (u32 c = 0; c < 4; c++) w[c] = half_of(c % 2 ? odd : even, c / 2);
  }
};

using Q2_K = SmallK<2, 0, true>;
using Q3_K = SmallK<3, 4, false>;
using Mxfp4 = Fp4<false>;
using Nvfp4 = Fp4<true>;
using Mxfp8 = Fp8<BLOCKS_OF_32>;
using Fp8Tensor = Fp8<TENSOR>;
using Fp8Channel = Fp8<CHANNEL>;
using Fp8Block128 = Fp8<BLOCKS_OF_128>;
