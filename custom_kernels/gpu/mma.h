// NVIDIA's matrix units as one wave sees them: products of 16x16 and 16x8 numbers (U: BF16 or f16), summed in float32 (PTX
// ISA, "Matrix Fragments for mma.m16n8k16"), and pairs of numbers as they take them. On the CPU, for tests, the same by
// shuffles. AMD's GPUs have other fragments: fragments.h.
#pragma once

#include "elements.h"

// Lane 4 g + t holds of the left factor rows g and g + 8, of the right one column g, of both places 2 t, 2 t + 1, 2 t + 8 and
// 2 t + 9 along the dimension that is summed over; of the sums rows g and g + 8, columns 2 t and 2 t + 1. Subnormal numbers
// count.
struct Products {
  f32 of[4];
};

#if defined(__NVPTX__)

template <class U>
DEVICE void multiply_16x8(const u32 (&a)[4], u32 b0, u32 b1, Products& c) {
  if constexpr (Element<U>::BITS == 8) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.of[0]), "+f"(c.of[1]), "+f"(c.of[2]), "+f"(c.of[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.of[0]), "+f"(c.of[1]), "+f"(c.of[2]), "+f"(c.of[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
// To bfloat16, nearest even, `a` in the low half.
DEVICE u32 rounded_pair(f32 a, f32 b) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
  return pair;
}
// The same to float16.
DEVICE u32 half_pair(f32 a, f32 b) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
  return pair;
}

// Both numbers of a pair, rounded once; subnormal ones count.
DEVICE u32 bf16_multiply_add(u32 a, u32 b, u32 c) {
  u32 pair;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
  return pair;
}

#else

template <class U>
DEVICE f32 number_of_pair(u32 pair, u32 i) {
  if constexpr (Element<U>::BITS == 8) return __builtin_bit_cast(f32, i ? pair & 0xffff0000u : pair << 16);
  return (f32)__builtin_bit_cast(f16x2, pair)[i];
}
// Not inline: a kernel has hundreds of these.
template <class U>
static inline __attribute__((noinline)) void multiply_16x8(const u32 (&a)[4], u32 b0, u32 b1, Products& c) {
  const u32 g = lane_id() / 4, t = lane_id() % 4;
  for (u32 from = 0; from < 4; from++) {
    u32 left[4], right[2][2];
    for (u32 i = 0; i < 4; i++) left[i] = shuffle_bits(a[i], 4 * g + from);
    for (u32 e = 0; e < 2; e++) {
      right[e][0] = shuffle_bits(b0, 4 * (2 * t + e) + from);
      right[e][1] = shuffle_bits(b1, 4 * (2 * t + e) + from);
    }
    for (u32 e = 0; e < 4; e++) {
      for (u32 k = 0; k < 4; k++) {
        const f32 x = number_of_pair<U>(left[e / 2 + k / 2 * 2], k % 2);
        const f32 w = number_of_pair<U>(right[e % 2][k / 2], k % 2);
        c.of[e] = multiply_add(x, w, c.of[e]);
      }
    }
  }
}
DEVICE u32 rounded_pair(f32 a, f32 b) { return bf16_bits(a) | (u32)bf16_bits(b) << 16; }
DEVICE u32 bf16_multiply_add(u32 a, u32 b, u32 c) {
  f32 of[2];
  for (u32 i = 0; i < 2; i++) {
    of[i] = multiply_add(number_of_pair<BF16>(a, i), number_of_pair<BF16>(b, i), number_of_pair<BF16>(c, i));
  }
  return rounded_pair(of[0], of[1]);
}
DEVICE u32 half_pair(f32 a, f32 b) {
  const f16x2 pair = {(f16)a, (f16)b};
  return __builtin_bit_cast(u32, pair);
}

#endif

DEVICE u32 bf16_multiply(u32 a, u32 b) { return bf16_multiply_add(a, b, 0x80008000u); }
// 2^exponent twice.
constexpr u32 bf16_power(i32 exponent) { return (u32)(exponent + 127) * 0x00800080u; }

DEVICE f32 low_half(u32 pair) { return (f32)__builtin_bit_cast(f16x2, pair)[0]; }
DEVICE f32 high_half(u32 pair) { return (f32)__builtin_bit_cast(f16x2, pair)[1]; }

// Two numbers as sums of two bfloat16 numbers each, 16 bits of them; no low term for what is not finite, lest infinity
// become NaN.
DEVICE void split_pair(f32 a, f32 b, u32& high, u32& low) {
  high = rounded_pair(a, b);
  const f32 rest_a = a - __builtin_bit_cast(f32, high << 16), rest_b = b - __builtin_bit_cast(f32, high & 0xffff0000u);
  low = rounded_pair(rest_a == rest_a ? rest_a : 0.0f, rest_b == rest_b ? rest_b : 0.0f);
}
