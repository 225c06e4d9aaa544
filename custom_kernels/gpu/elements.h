// The elements of activations: f32, f16 and BF16. Kernels compute in float32; a result is rounded once, to nearest even, and
// NaN stays NaN.
#pragma once

#include "device.h"

struct BF16 {
  u16 bits;
};

DEVICE f32 widen(f32 v) { return v; }
DEVICE f32 widen(f16 v) { return (f32)v; }
DEVICE f32 widen(BF16 v) { return __builtin_bit_cast(f32, (u32)v.bits << 16); }

DEVICE u16 bf16_bits(f32 v) {
#if defined(__NVPTX__)
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  return bits;
#else
  const u32 bits = __builtin_bit_cast(u32, v);
  return (u16)((v != v ? bits | 0x00400000u : bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
}

template <class X>
struct Element;
template <>
struct Element<f32> {
  using Four = f32x4;
  static constexpr u32 BITS = 24;  // of the significand
  DEVICE f32 of(f32 v) { return v; }
};
template <>
struct Element<f16> {
  using Four = f16x4;
  static constexpr u32 BITS = 11;
  DEVICE f16 of(f32 v) { return (f16)v; }
};
template <>
struct Element<BF16> {
  using Four = u32x2;
  static constexpr u32 BITS = 8;
  DEVICE BF16 of(f32 v) { return {bf16_bits(v)}; }
};

// Elements 4 i to 4 i + 3 as they are stored, for loads that are to be under way for a while, and as numbers.
template <class X>
using Four = typename Element<X>::Four;
template <class X>
DEVICE Four<X> ask4(const GLOBAL X* x, u64 i) { return ((const GLOBAL Four<X>*)x)[i]; }
DEVICE f32x4 widen4(f32x4 v) { return v; }
DEVICE f32x4 widen4(f16x4 v) { return __builtin_convertvector(v, f32x4); }
DEVICE f32x4 widen4(u32x2 v) {
  const u32x4 bits = {v[0] << 16, v[0] & 0xffff0000u, v[1] << 16, v[1] & 0xffff0000u};
  return __builtin_bit_cast(f32x4, bits);
}
template <class X>
DEVICE f32x4 load4(const GLOBAL X* x, u64 i) { return widen4(ask4(x, i)); }

// What numbers are after they have been stored.
template <class X>
DEVICE f32x4 rounded4(f32x4 v) {
  UNROLL for (u32 c = 0; c < 4; c++) v[c] = widen(Element<X>::of(v[c]));
  return v;
}

template <class X>
DEVICE void store(GLOBAL X* y, u64 at, f32 v) { y[at] = Element<X>::of(v); }
DEVICE void store4(GLOBAL f32* y, u64 i, f32x4 v) { ((GLOBAL f32x4*)y)[i] = v; }
DEVICE void store4(GLOBAL f16* y, u64 i, f32x4 v) { ((GLOBAL f16x4*)y)[i] = __builtin_convertvector(v, f16x4); }
DEVICE void store4(GLOBAL BF16* y, u64 i, f32x4 v) {
  const u32x2 pairs = {bf16_bits(v[0]) | (u32)bf16_bits(v[1]) << 16, bf16_bits(v[2]) | (u32)bf16_bits(v[3]) << 16};
  ((GLOBAL u32x2*)y)[i] = pairs;
}
DEVICE void store2(GLOBAL f32* y, u64 i, f32 a, f32 b) { ((GLOBAL f32x2*)y)[i] = f32x2{a, b}; }
DEVICE void store2(GLOBAL f16* y, u64 i, f32 a, f32 b) { ((GLOBAL f16x2*)y)[i] = f16x2{(f16)a, (f16)b}; }
DEVICE void store2(GLOBAL BF16* y, u64 i, f32 a, f32 b) { ((GLOBAL u32*)y)[i] = bf16_bits(a) | (u32)bf16_bits(b) << 16; }
