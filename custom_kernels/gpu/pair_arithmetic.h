// Arithmetic on pairs of 16-bit numbers that mma.h has not.
#pragma once

#include "mma.h"

// The larger of two pairs of bfloat16 numbers that are not negative.
DEVICE u32 larger_pair(u32 a, u32 b) {
#if defined(__NVPTX__)
  u32 result;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  const u32 low = a << 16 > b << 16 ? a : b, high = a >> 16 > b >> 16 ? a : b;
  return (low & 0xffffu) | (high & 0xffff0000u);
#endif
}
// A number that bfloat16 holds, twice.
constexpr u32 two_of_bf16(f32 value) { return __builtin_bit_cast(u32, value) / 65536 * 65537; }
// Both float16 numbers of a pair plus `value`.
DEVICE u32 half_add(u32 pair, f32 value) {
  const f16x2 sum = __builtin_bit_cast(f16x2, pair) + (f16x2){(f16)value, (f16)value};
  return __builtin_bit_cast(u32, sum);
}
// Halves `a` and `b` (0 or 1) of two words.
DEVICE u32 halves_of(u32 first, u32 second, u32 a, u32 b) {
#if defined(__NVPTX__)
  return (u32)__nvvm_prmt((i32)first, (i32)second, (i32)(0x5410u + 0x22u * a + 0x2200u * b));
#else
  return (first >> (16 * a) & 0xffffu) | (second >> (16 * b) << 16);
#endif
}
