// Weight formats as kernels read them: see custom_kernels/ops/formats.py for what the parts hold.
// A format loads one run of a weight row into registers (`load`), then gives its codes four at a time (`codes`): part i is
// what float4 number `place(i)` of the run in x is multiplied by, and belongs to group `group(i)` of the run. A weight is
// code * UNIT * scale[group] + minimum[group], without what the format has not (SCALED, MINIMUM).
#pragma once

#include "device.h"

struct Parts {
  const GLOBAL u32* codes = nullptr;
  const GLOBAL u32* high = nullptr;
  const GLOBAL void* scale = nullptr;
  const GLOBAL f16* super_scale = nullptr;
  const GLOBAL void* minimum = nullptr;
  const GLOBAL f16* super_minimum = nullptr;
  const GLOBAL f32* global_scale = nullptr;
};

// The low four bits of `bits`, each to bit 0 of one byte.
DEVICE u32 spread(u32 bits) { return ((bits & 15u) * 0x00204081u) & 0x01010101u; }

// Part i of a run as weights.
template <class W>
DEVICE void decode(const typename W::Run& run, u32 i, f32 (&w)[4]) {
  W::codes(run, i, w);
  if constexpr (W::SCALED) {
    const f32 scale = run.scale[W::group(i)];
    UNROLL for (u32 c = 0; c < 4; c++) {
      if constexpr (W::MINIMUM) {
        w[c] = multiply_add(w[c], scale, run.minimum[W::group(i)]);
      } else {
        w[c] = w[c] * W::UNIT * scale;
      }
    }
  }
}

template <u32 BITS, u32 GROUP, u32 ZERO, bool HAS_MINIMUM, u32 SUPER_GROUP>
struct Quantized {
  static constexpr u32 RUN = 32, PLANES = BITS == 8 ? 0 : BITS - 4, GROUPS = 32 / GROUP;
  static constexpr bool SCALED = true, MINIMUM = HAS_MINIMUM;
  static constexpr f32 UNIT = 1.0f;
  static constexpr u32 place(u32 i) { return i / 2 + i % 2 * 4; }  // both nibbles of a word, then the next word
  static constexpr u32 group(u32 i) { return i % 2 ? GROUPS - 1 : 0; }

  struct Run {
    u32x4 codes[BITS == 8 ? 2 : 1];
    u32 planes[PLANES ? PLANES : 1];
    f32 scale[GROUPS], minimum[GROUPS];
  };

  Parts parts;
  u32 runs = 0;  // of a row; set by the kernel
  constexpr explicit Quantized(Parts p) : parts(p) {}

  DEVICE f32 per_group(const GLOBAL void* values, const GLOBAL f16* super, u64 run, u32 i) {
    if constexpr (SUPER_GROUP) {
      const f32 value = (f32)((const GLOBAL i8*)values)[run * GROUPS + i];
      return value * (f32)super[run / (SUPER_GROUP / 32)];
    } else {
      return (f32)((const GLOBAL f16*)values)[run * GROUPS + i];
    }
  }

  __attribute__((always_inline)) Run load(u32 row, u32 column_run) const {
    const u64 run = (u64)row * runs + column_run;
    Run r;
    const GLOBAL u32x4* codes = (const GLOBAL u32x4*)parts.codes;
    if constexpr (BITS == 8) {
      r.codes[0] = codes[2 * run];
      r.codes[1] = codes[2 * run + 1];
    } else {
      r.codes[0] = codes[run];
    }
    UNROLL for (u32 i = 0; i < PLANES; i++) r.planes[i] = parts.high[run * PLANES + i];
    UNROLL for (u32 i = 0; i < GROUPS; i++) {
      r.scale[i] = per_group(parts.scale, parts.super_scale, run, i);
      if constexpr (MINIMUM) r.minimum[i] = per_group(parts.minimum, parts.super_minimum, run, i);
    }
    return r;
  }

  DEVICE void codes(const Run& r, u32 i, f32 (&c)[4]) {
    const u32 high = i % 2;
    if constexpr (BITS == 4) {
      UNROLL for (u32 j = 0; j < 4; j++) c[j] = float_of_nibble(r.codes[0][i / 2], 2 * j + high, ZERO);
    } else if constexpr (BITS == 8) {
      const u32 unsigned_codes = r.codes[high][i / 2] ^ 0x80808080u;
      UNROLL for (u32 j = 0; j < 4; j++) c[j] = float_of_byte(unsigned_codes, j, 128);
    } else {
      u32 bytes = (r.codes[0][i / 2] >> (4 * high)) & 0x0f0f0f0fu;
      UNROLL for (u32 p = 0; p < PLANES; p++) bytes |= spread(r.planes[p] >> (4 * place(i))) << (4 + p);
      UNROLL for (u32 j = 0; j < 4; j++) c[j] = float_of_byte(bytes, j, ZERO);
    }
  }
};

struct BF16 {
  u16 bits;
};
DEVICE f32 widen(f32 v) { return v; }
DEVICE f32 widen(f16 v) { return (f32)v; }
DEVICE f32 widen(BF16 v) { return __builtin_bit_cast(f32, (u32)v.bits << 16); }

template <class T>
struct Dense {
  static constexpr u32 RUN = 8, WORDS = sizeof(T) * RUN / 16, GROUPS = 1;
  static constexpr bool SCALED = false, MINIMUM = false;
  static constexpr f32 UNIT = 1.0f;
  static constexpr u32 place(u32 i) { return i; }
  static constexpr u32 group(u32) { return 0; }

  struct Run {
    u32x4 words[WORDS];
  };

  Parts parts;
  u32 runs = 0;
  constexpr explicit Dense(Parts p) : parts(p) {}

  __attribute__((always_inline)) Run load(u32 row, u32 column_run) const {
    const GLOBAL u32x4* words = (const GLOBAL u32x4*)parts.codes + ((u64)row * runs + column_run) * WORDS;
    Run r;
    UNROLL for (u32 i = 0; i < WORDS; i++) r.words[i] = words[i];
    return r;
  }

  DEVICE void codes(const Run& r, u32 i, f32 (&w)[4]) {
    UNROLL for (u32 c = 0; c < 4; c++) {
      // A copy: clang's bit_cast of an element of a vector takes the first element.
      const u32 word = sizeof(T) == 4 ? r.words[i % WORDS][c] : r.words[0][2 * i + c / 2] >> (16 * (c % 2));
      if constexpr (sizeof(T) == 4) {
        w[c] = __builtin_bit_cast(T, word);
      } else {
        w[c] = widen(__builtin_bit_cast(T, (u16)word));
      }
    }
  }
};

using Q4_0 = Quantized<4, 32, 8, false, 0>;
using Q4_1 = Quantized<4, 32, 0, true, 0>;
using Q5_0 = Quantized<5, 32, 16, false, 0>;
using Q5_1 = Quantized<5, 32, 0, true, 0>;
using Q8_0 = Quantized<8, 32, 0, false, 0>;
using Q4_K = Quantized<4, 32, 0, true, 256>;
using Q5_K = Quantized<5, 32, 0, true, 256>;
using Q6_K = Quantized<6, 16, 32, false, 256>;
