// Arithmetic on pairs of 16-bit numbers that mma.h has not.
#pragma once

#include "mma.h"

// The larger magnitudes of two pairs of bfloat16 numbers, with any signs; a NaN is not chosen if the other is none.
DEVICE u32 larger_magnitudes(u32 a, u32 b) {
#if defined(__NVPTX__) && __CUDA_ARCH__ >= 860
  u32 result;
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#elif defined(__NVPTX__)
  u32 result;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a & 0x7fff7fffu), "r"(b & 0x7fff7fffu));
  return result;
#else
  const u32 x = a & 0x7fff7fffu, y = b & 0x7fff7fffu;
  const u32 low = x << 16 > y << 16 ? x : y, high = x >> 16 > y >> 16 ? x : y;
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
// Both float16 numbers of a pair times `value`, or times those of another pair.
DEVICE u32 half_multiply(u32 a, u32 b) {
  return __builtin_bit_cast(u32, __builtin_bit_cast(f16x2, a) * __builtin_bit_cast(f16x2, b));
}
DEVICE u32 half_multiply(u32 pair, f32 value) {
  return half_multiply(pair, __builtin_bit_cast(u32, (f16x2){(f16)value, (f16)value}));
}
// Halves `a` and `b` (0 or 1) of two words.
DEVICE u32 halves_of(u32 first, u32 second, u32 a, u32 b) {
#if defined(__NVPTX__)
  return (u32)__nvvm_prmt((i32)first, (i32)second, (i32)(0x5410u + 0x22u * a + 0x2200u * b));
#else
  return (first >> (16 * a) & 0xffffu) | (second >> (16 * b) << 16);
#endif
}
