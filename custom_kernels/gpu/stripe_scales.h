// Scales and minima of stripes.h: a lane loads those of a span, 128 neighbouring columns of one weight row, in one
// request for each array, and takes what its blocks need.
#pragma once

#include "streams.h"

// Loads BYTES (1, 2 or 4 times the words) where they are `there`; else `words` stay. No branch, and asked for here.
#if defined(__NVPTX__)
template <u32 BYTES>
DEVICE void load_there(bool there, const GLOBAL void* from, u32 (&w)[1]) {
  if constexpr (BYTES == 1) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u8 %0, [%1];}"
                 : "+r"(w[0])
                 : "l"(from), "r"((u32)there));
  } else if constexpr (BYTES == 2) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u16 %0, [%1];}"
                 : "+r"(w[0])
                 : "l"(from), "r"((u32)there));
  } else {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u32 %0, [%1];}"
                 : "+r"(w[0])
                 : "l"(from), "r"((u32)there));
  }
}
template <u32 BYTES>
DEVICE void load_there(bool there, const GLOBAL void* from, u32 (&w)[2]) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p ld.global.nc.v2.u32 {%0, %1}, [%2];}"
               : "+r"(w[0]), "+r"(w[1])
               : "l"(from), "r"((u32)there));
}
template <u32 BYTES>
DEVICE void load_there(bool there, const GLOBAL void* from, u32 (&w)[4]) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];}"
               : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3])
               : "l"(from), "r"((u32)there));
}
#else
template <u32 BYTES, u32 WORDS>
DEVICE void load_there(bool there, const GLOBAL void* from, u32 (&words)[WORDS]) {
  if (there) __builtin_memcpy(words, from, BYTES);
}
#endif

// COUNT neighbouring elements of an array, as words.
template <class T, u32 COUNT>
struct Neighbours {
  static constexpr u32 BYTES = sizeof(T) * COUNT, WORDS = (BYTES + 3) / 4;
  u32 words[WORDS];

  // Word by word: copied as one number, several loads would be put together at once, and a wave would wait for them
  // there.
  MEMBER Neighbours() : words{} {}
  MEMBER Neighbours(const Neighbours& other) { *this = other; }
  MEMBER Neighbours& operator=(const Neighbours& other) {
    UNROLL for (u32 i = 0; i < WORDS; i++) words[i] = other.words[i];
    return *this;
  }

  // `there` of them; what is not there is zero. WHOLE: all or none are there, and `from` is aligned as they are wide.
  template <bool WHOLE>
  MEMBER void ask(const GLOBAL T* from, u32 there) {
    UNROLL for (u32 i = 0; i < WORDS; i++) words[i] = 0;
    if constexpr (WHOLE) {
      load_there<BYTES>(there, from, words);
    } else {
      using Part = If<sizeof(T) == 1, u8, If<sizeof(T) == 2, u16, u32>>;
      UNROLL for (u32 i = 0; i < COUNT; i++) {
        const u32 at = i * sizeof(T);
        if (i < there) words[at / 4] |= (u32)((const GLOBAL Part*)from)[i] << (at % 4 * 8);
      }
    }
  }
  // Element i, which may differ between lanes.
  MEMBER f32 at(u32 i) const {
    constexpr u32 OF_WORD = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
    u32 word = words[0];
    UNROLL for (u32 w = 1; w < WORDS; w++) word = i / OF_WORD == w ? words[w] : word;
    if constexpr (sizeof(T) == 4) return __builtin_bit_cast(f32, word);
    if constexpr (sizeof(T) == 2) return widen(__builtin_bit_cast(T, (u16)(word >> (i % 2 * 16))));
    if constexpr (sizeof(T) == 1) return (f32)(T)(u8)(word >> (i % 4 * 8));
  }
  MEMBER u32 byte(u32 i) const {
    static_assert(sizeof(T) == 1);
    u32 word = words[0];
    UNROLL for (u32 w = 1; w < WORDS; w++) word = i / 4 == w ? words[w] : word;
    return word >> (i % 4 * 8) & 255u;
  }
  // Bytes 2 i and 2 i + 1.
  MEMBER u32 pair(u32 i) const {
    u32 word = words[0];
    UNROLL for (u32 w = 1; w < WORDS; w++) word = i / 2 == w ? words[w] : word;
    return word >> (i % 2 * 16) & 0xffffu;
  }
};

// Elements of a span that begins with number `first` of `all`, `count` of them, that are there.
DEVICE u32 there_of(u32 first, u32 count, u32 all) { return first < all ? smaller(all - first, count) : 0u; }

// 2^(bits - 127), and NaN, as float_of_e8m0 has them: infinity times zero is NaN.
DEVICE f32 scale_of_e8m0(u32 bits) {
  u32 of_power = bits << 23;
#if defined(__NVPTX__)
  asm("max.u32 %0, %0, 0x00400000;" : "+r"(of_power));  // one instruction, which clang does not find
#else
  of_power = bits ? of_power : 0x00400000u;
#endif
  const f32 power = __builtin_bit_cast(f32, of_power);
  return multiply_add(power, 0.0f, power);
}

// Two E4M3 numbers of 16 bits.
DEVICE void two_of_e4m3(u32 bits, f32& first, f32& second) {
#if defined(__NVPTX__) && __CUDA_ARCH__ >= 890
  u32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)bits));
  first = half_of(halves, 0);
  second = half_of(halves, 1);
#else
  first = float_of_e4m3(bits & 255u);
  second = float_of_e4m3(bits >> 8);
#endif
}

// Of a span (places in arrays of scales are below 2^32): ask<WHOLE>(w, row, span) for number `span` of row `row`;
// scales(i, ...): of block i of the four, for each GROUP of the block, the scale and, if the format has them, the
// minimum. A result is multiplied by whole(w) in the end.
template <class W>
struct SpanScales;

template <u32 BITS, u32 GROUP, u32 ZERO, bool HAS_MINIMUM, u32 SUPER_GROUP>
struct SpanScales<Quantized<BITS, GROUP, ZERO, HAS_MINIMUM, SUPER_GROUP>> {
  using W = Quantized<BITS, GROUP, ZERO, HAS_MINIMUM, SUPER_GROUP>;
  static constexpr u32 GROUPS = W::GROUPS, COUNT = 4 * GROUPS;
  using T = W::Scale;
  Neighbours<T, COUNT> scale, minimum;
  Neighbours<f16, 1> super_scale, super_minimum;

  template <bool WHOLE>
  MEMBER void ask(const W& w, u32 row, u32 span) {
    const u32 at = (row * w.runs + 4 * span) * GROUPS;
    const u32 there = there_of(4 * span, 4, w.runs) * GROUPS;
    scale.template ask<WHOLE>((const GLOBAL T*)w.parts.scale + at, there);
    if constexpr (HAS_MINIMUM) minimum.template ask<WHOLE>((const GLOBAL T*)w.parts.minimum + at, there);
    if constexpr (SUPER_GROUP) {
      const u32 super = row * (w.runs / 8) + span / 2;
      super_scale.template ask<true>(w.parts.super_scale + super, there ? 1u : 0u);
      if constexpr (HAS_MINIMUM) super_minimum.template ask<true>(w.parts.super_minimum + super, there ? 1u : 0u);
    }
  }
  MEMBER void scales(u32 i, f32 (&of)[GROUPS], f32 (&least)[GROUPS]) const {
    UNROLL for (u32 s = 0; s < GROUPS; s++) {
      of[s] = scale.at(i * GROUPS + s);
      if constexpr (HAS_MINIMUM) least[s] = minimum.at(i * GROUPS + s);
      if constexpr (SUPER_GROUP) {
        of[s] *= super_scale.at(0);
        if constexpr (HAS_MINIMUM) least[s] *= super_minimum.at(0);
      }
    }
  }
  DEVICE f32 whole(const W&) { return 1.0f; }
};

template <u32 BITS, u32 ZERO, bool HAS_MINIMUM>
struct SpanScales<SmallK<BITS, ZERO, HAS_MINIMUM>> {
  using W = SmallK<BITS, ZERO, HAS_MINIMUM>;
  static constexpr u32 GROUPS = 2;
  Neighbours<i8, 8> scale, minimum;
  Neighbours<f16, 1> super_scale, super_minimum;

  template <bool WHOLE>
  MEMBER void ask(const W& w, u32 row, u32 span) {
    const u32 at = (row * w.runs + 4 * span) * 2, super = row * (w.runs / 8) + span / 2;
    const u32 there = there_of(4 * span, 4, w.runs) * 2, one = there ? 1u : 0u;
    scale.template ask<WHOLE>((const GLOBAL i8*)w.parts.scale + at, there);
    super_scale.template ask<true>(w.parts.super_scale + super, one);
    if constexpr (HAS_MINIMUM) {
      minimum.template ask<WHOLE>((const GLOBAL i8*)w.parts.minimum + at, there);
      super_minimum.template ask<true>(w.parts.super_minimum + super, one);
    }
  }
  MEMBER void scales(u32 i, f32 (&of)[2], f32 (&least)[2]) const {
    UNROLL for (u32 s = 0; s < 2; s++) {
      of[s] = scale.at(2 * i + s) * super_scale.at(0);
      if constexpr (HAS_MINIMUM) least[s] = minimum.at(2 * i + s) * super_minimum.at(0);
    }
  }
  DEVICE f32 whole(const W&) { return 1.0f; }
};

template <u32 BITS, u32 GROUP, class S, class B>
struct SpanScales<Affine<BITS, GROUP, S, B>> {
  using W = Affine<BITS, GROUP, S, B>;
  static constexpr u32 SHARERS = GROUP / 32, COUNT = 4 / SHARERS;
  Neighbours<S, COUNT> scale;
  Neighbours<B, COUNT> minimum;

  template <bool WHOLE>
  MEMBER void ask(const W& w, u32 row, u32 span) {
    const u32 groups = w.runs / SHARERS, there = there_of(COUNT * span, COUNT, groups);
    const u32 at = row * groups + COUNT * span;
    scale.template ask<WHOLE>((const GLOBAL S*)w.parts.scale + at, there);
    minimum.template ask<WHOLE>((const GLOBAL B*)w.parts.minimum + at, there);
  }
  MEMBER void scales(u32 i, f32 (&of)[1], f32 (&least)[1]) const {
    of[0] = scale.at(i / SHARERS);
    least[0] = minimum.at(i / SHARERS);
  }
  DEVICE f32 whole(const W&) { return 1.0f; }
};

template <bool NVIDIA>
struct SpanScales<Fp4<NVIDIA>> {
  using W = Fp4<NVIDIA>;
  static constexpr u32 GROUPS = W::GROUPS;
  Neighbours<u8, 4 * GROUPS> scale;

  template <bool WHOLE>
  MEMBER void ask(const W& w, u32 row, u32 span) {
    const u32 there = there_of(4 * span, 4, w.runs) * GROUPS;
    scale.template ask<WHOLE>((const GLOBAL u8*)w.parts.scale + (row * w.runs + 4 * span) * GROUPS, there);
  }
  MEMBER void scales(u32 i, f32 (&of)[GROUPS], f32 (&)[GROUPS]) const {
    if constexpr (NVIDIA) {
      two_of_e4m3(scale.pair(i), of[0], of[GROUPS - 1]);
    } else {
      of[0] = scale_of_e8m0(scale.byte(i));
    }
  }
  DEVICE f32 whole(const W& w) {
    if constexpr (NVIDIA) return *w.parts.global_scale;
    return 1.0f;
  }
};

template <Scaling SCALING>
struct SpanScales<Fp8<SCALING>> {
  using W = Fp8<SCALING>;
  static constexpr bool IN_BLOCKS = SCALING == BLOCKS_OF_32;
  Neighbours<If<IN_BLOCKS, u8, f32>, IN_BLOCKS ? 4 : 1> scale;

  template <bool WHOLE>
  MEMBER void ask(const W& w, u32 row, u32 span) {
    const u32 there = there_of(4 * span, 4, w.runs);
    if constexpr (IN_BLOCKS) {
      scale.template ask<WHOLE>((const GLOBAL u8*)w.parts.scale + row * w.runs + 4 * span, there);
    } else {
      const u32 at = SCALING == CHANNEL ? row : SCALING == TENSOR ? 0u : row / 128 * ceil_div(w.runs, 4) + span;
      scale.template ask<true>((const GLOBAL f32*)w.parts.scale + at, there ? 1u : 0u);
    }
  }
  MEMBER void scales(u32 i, f32 (&of)[1], f32 (&)[1]) const {
    if constexpr (IN_BLOCKS) {
      of[0] = scale_of_e8m0(scale.byte(i));
    } else {
      of[0] = scale.at(0);
    }
  }
  DEVICE f32 whole(const W&) { return 1.0f; }
};
