// Weight formats as kernels read them: see custom_kernels/ops/formats.py for what the parts hold.
// A format loads one run of a weight row into registers (`load`), then gives its codes four at a time (`codes`): part i is
// what float4 number `place(i)` of the run in x is multiplied by, and belongs to group `group(i)` of the run. A weight is
// code * UNIT * scale[group] + minimum[group], without what the format has not (SCALED, MINIMUM).
// `load` in steps, so that nothing waits for what was asked for too early: `ask` for what the run alone has, `ask_shared`
// for what SHARERS neighbouring runs have in common, and, when it is there, `Run(Stored)`.
#pragma once

#include "elements.h"

#define MEMBER __attribute__((always_inline))

template <bool CONDITION, class A, class B>
struct IfElse {
  using Type = A;
};
template <class A, class B>
struct IfElse<false, A, B> {
  using Type = B;
};
template <bool CONDITION, class A, class B>
using If = IfElse<CONDITION, A, B>::Type;

struct Parts {
  const GLOBAL u32* codes = nullptr;
  const GLOBAL u32* high = nullptr;
  const GLOBAL void* scale = nullptr;
  const GLOBAL f16* super_scale = nullptr;
  const GLOBAL void* minimum = nullptr;
  const GLOBAL f16* super_minimum = nullptr;
  const GLOBAL f32* global_scale = nullptr;
};

// Parts that are one buffer, codes first, and where in it each other one begins, in bytes: few registers until a kernel
// asks for the parts.
struct WholeParts {
  const GLOBAL u8* begin;
  u32 high = 0, scale = 0, super_scale = 0, minimum = 0, super_minimum = 0, global_scale = 0;

  MEMBER Parts parts() const {
    return {(const GLOBAL u32*)begin,
            (const GLOBAL u32*)(begin + high),
            begin + scale,
            (const GLOBAL f16*)(begin + super_scale),
            begin + minimum,
            (const GLOBAL f16*)(begin + super_minimum),
            (const GLOBAL f32*)(begin + global_scale)};
  }
};
DEVICE Parts parts_of(const Parts& parts) { return parts; }
DEVICE Parts parts_of(const WholeParts& whole) { return whole.parts(); }

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

template <class W>
DEVICE typename W::Run load_run(const W& weight, u32 row, u32 column_run) {
  typename W::Stored stored;
  weight.ask(stored, row, column_run);
  weight.ask_shared(stored, row, column_run);
  return W::run(stored);
}

// Run `run` of each of R rows, where neighbouring lanes ask for neighbouring runs. On AMD's GPUs the first of SHARERS
// lanes asks for them all.
template <u32 R, class W>
DEVICE void ask_for_runs(const W& weight, const u32 (&rows)[R], u32 run, typename W::Stored (&stored)[R]) {
  UNROLL for (u32 r = 0; r < R; r++) weight.ask(stored[r], rows[r], run);
  if (!FIRST_LANE_ASKS || lane_id() % W::SHARERS == 0) {
    UNROLL for (u32 r = 0; r < R; r++) weight.ask_shared(stored[r], rows[r], run);
  }
}
template <class W>
DEVICE typename W::Run run_of(typename W::Stored stored) {
  if constexpr (FIRST_LANE_ASKS && W::SHARERS > 1) W::share(stored);
  return W::run(stored);
}

template <u32 BITS, u32 GROUP, u32 ZERO, bool HAS_MINIMUM, u32 SUPER_GROUP>
struct Quantized {
  static constexpr u32 SHARERS = SUPER_GROUP ? 4 : 1;  // of 8; four lanes are always of one row
  using Scale = If<SUPER_GROUP != 0, i8, f16>;
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

  struct Stored {
    u32x4 codes[BITS == 8 ? 2 : 1];
    u32 planes[PLANES ? PLANES : 1];
    Scale scale[GROUPS], minimum[GROUPS];
    f16 super_scale, super_minimum;
  };

  MEMBER void ask(Stored& s, u32 row, u32 column_run) const {
    const u64 run = (u64)row * runs + column_run;
    const GLOBAL u32x4* codes = (const GLOBAL u32x4*)parts.codes;
    if constexpr (BITS == 8) {
      s.codes[0] = codes[2 * run];
      s.codes[1] = codes[2 * run + 1];
    } else {
      s.codes[0] = codes[run];
    }
    UNROLL for (u32 i = 0; i < PLANES; i++) s.planes[i] = parts.high[run * PLANES + i];
    UNROLL for (u32 i = 0; i < GROUPS; i++) {
      s.scale[i] = ((const GLOBAL Scale*)parts.scale)[run * GROUPS + i];
      if constexpr (MINIMUM) s.minimum[i] = ((const GLOBAL Scale*)parts.minimum)[run * GROUPS + i];
    }
  }
  MEMBER void ask_shared(Stored& s, u32 row, u32 column_run) const {
    if constexpr (SUPER_GROUP) {
      const u64 block = ((u64)row * runs + column_run) / (SUPER_GROUP / 32);
      s.super_scale = parts.super_scale[block];
      if constexpr (MINIMUM) s.super_minimum = parts.super_minimum[block];
    }
  }
  DEVICE void share(Stored& s) {
    s.super_scale = of_first<SHARERS>(s.super_scale);
    if constexpr (MINIMUM) s.super_minimum = of_first<SHARERS>(s.super_minimum);
  }
  DEVICE Run run(const Stored& s) {
    Run r;
    UNROLL for (u32 i = 0; i < (BITS == 8 ? 2 : 1); i++) r.codes[i] = s.codes[i];
    UNROLL for (u32 i = 0; i < PLANES; i++) r.planes[i] = s.planes[i];
    UNROLL for (u32 i = 0; i < GROUPS; i++) {
      r.scale[i] = SUPER_GROUP ? (f32)s.scale[i] * (f32)s.super_scale : (f32)s.scale[i];
      if constexpr (MINIMUM) r.minimum[i] = SUPER_GROUP ? (f32)s.minimum[i] * (f32)s.super_minimum : (f32)s.minimum[i];
    }
    return r;
  }
  MEMBER Run load(u32 row, u32 column_run) const { return load_run(*this, row, column_run); }

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

template <class T>
struct Dense {
  static constexpr u32 SHARERS = 1;
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

  using Stored = Run;
  MEMBER void ask(Stored& s, u32 row, u32 column_run) const {
    const GLOBAL u32x4* words = (const GLOBAL u32x4*)parts.codes + ((u64)row * runs + column_run) * WORDS;
    UNROLL for (u32 i = 0; i < WORDS; i++) s.words[i] = words[i];
  }
  MEMBER void ask_shared(Stored&, u32, u32) const {}
  DEVICE Run run(const Stored& s) { return s; }
  MEMBER Run load(u32 row, u32 column_run) const { return load_run(*this, row, column_run); }

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
