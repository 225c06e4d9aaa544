// The elements of a KV pool: f32, f16, BF16 and fp8 (E4M3 "fn": bias 7, no infinity, 0x7f is NaN); see ops/cache_types.py.
#pragma once

#include "elements.h"

struct fp8 {
  u8 bits;
};

DEVICE f32 e4m3(u32 bits) {
  const u32 magnitude = bits & 0x7fu;
  // The same bits as a float16 are 2^-8 of the value, subnormals included.
  const f32 value = (f32)__builtin_bit_cast(f16, (u16)(magnitude << 7)) * 256.0f;
  return __builtin_copysignf(magnitude == 0x7fu ? __builtin_nanf("") : value, bits & 0x80u ? -1.0f : 1.0f);
}

// A float32 as an element of the pool, rounded to nearest even; what fp8 cannot hold becomes 448.
template <class T>
DEVICE T cache_element(f32 value) {
  if constexpr (sizeof(T) > 1) {
    return Element<T>::of(value);
  } else {
    const u32 all = __builtin_bit_cast(u32, value), magnitude = all & 0x7fffffffu;
    const u32 clipped = smaller(magnitude, 0x43e00000u);
    const u32 normal = (clipped - (120u << 23) + 0x7ffffu + ((clipped >> 20) & 1u)) >> 20;
    // Adding 2^14 leaves a multiple of 2^-9, the step of the subnormals.
    const u32 subnormal = __builtin_bit_cast(u32, __builtin_bit_cast(f32, clipped) + 16384.0f) - (141u << 23);
    const u32 finite = clipped < (121u << 23) ? subnormal : normal;
    return {(u8)((magnitude > 0x7f800000u ? 0x7fu : finite) | ((all >> 24) & 0x80u))};
  }
}

// COUNT neighbouring elements in float32; loads of 16 bytes where there are as many.
template <u32 COUNT, class T>
DEVICE void load(const GLOBAL T* p, f32 (&out)[COUNT]) {
  constexpr u32 MOST = 16 / sizeof(T), WIDTH = COUNT < MOST ? COUNT : MOST;
  typedef T Vector __attribute__((ext_vector_type(WIDTH)));
  UNROLL for (u32 first = 0; first < COUNT; first += WIDTH) {
    const Vector v = *(const GLOBAL Vector*)(p + first);
    UNROLL for (u32 i = 0; i < WIDTH; i++) out[first + i] = (f32)v[i];
  }
}
template <u32 COUNT>
DEVICE void load(const GLOBAL fp8* p, f32 (&out)[COUNT]) {
  typedef u8 Vector __attribute__((ext_vector_type(COUNT)));
  const Vector v = *(const GLOBAL Vector*)p;
  UNROLL for (u32 i = 0; i < COUNT; i++) out[i] = e4m3(v[i]);
}
