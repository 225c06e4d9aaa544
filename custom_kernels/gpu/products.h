// Products of 16 rows of 16 float16 numbers with 8 columns of 16, summed in float32: mma.m16n8k16. With g = lane / 4 and
// t = lane % 4 a lane holds four pairs of rows (row g; row g + 8; both again for the later 8 of the 16), the same two pairs
// of column g, and of the result rows g and g + 8 of columns 2 t and 2 t + 1. Subnormal numbers count.
#pragma once

#include "device.h"

struct Products {
  f32 of[4];
};

#if defined(__NVPTX__)
DEVICE void multiply(const u32 (&a)[4], u32 b0, u32 b1, Products& c) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c.of[0]), "+f"(c.of[1]), "+f"(c.of[2]), "+f"(c.of[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Two numbers, rounded: the first in the low half.
DEVICE u32 half_pair(f32 a, f32 b) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
  return pair;
}
#else
DEVICE void multiply(const u32 (&a)[4], u32 b0, u32 b1, Products& c) {
  const u32 g = lane_id() / 4, t = lane_id() % 4;
  for (u32 q = 0; q < 4; q++) {
    u32 rows[4], columns[2][2];
    for (u32 i = 0; i < 4; i++) rows[i] = shuffle_bits(a[i], 4 * g + q);
    for (u32 i = 0; i < 2; i++) {
      columns[i][0] = shuffle_bits(b0, 4 * (2 * t + i) + q);
      columns[i][1] = shuffle_bits(b1, 4 * (2 * t + i) + q);
    }
    for (u32 e = 0; e < 4; e++) {
      for (u32 later = 0; later < 2; later++) {
        const f16x2 of_row = __builtin_bit_cast(f16x2, rows[e / 2 + 2 * later]);
        const f16x2 of_column = __builtin_bit_cast(f16x2, columns[e % 2][later]);
        for (u32 i = 0; i < 2; i++) c.of[e] = multiply_add((f32)of_row[i], (f32)of_column[i], c.of[e]);
      }
    }
  }
}
DEVICE u32 half_pair(f32 a, f32 b) {
  const f16x2 pair = {(f16)a, (f16)b};
  return __builtin_bit_cast(u32, pair);
}
#endif
DEVICE f32 low_half(u32 pair) { return (f32)__builtin_bit_cast(f16x2, pair)[0]; }
DEVICE f32 high_half(u32 pair) { return (f32)__builtin_bit_cast(f16x2, pair)[1]; }
