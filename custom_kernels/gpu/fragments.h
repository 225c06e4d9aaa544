// Matrix units: 16x16 tiles of products of bfloat16 or float16 numbers (U: BF16 or f16), summed in float32. A wave holds a `Factor` (16 rows of 16
// numbers, each row along the dimension that is summed over) and a `Tile` of results; which lane holds what differs
// between machines, so a result's place is asked for: `row_of(i)` and `column_of(i)` of element i of this lane.
#pragma once

#include "elements.h"

typedef short s16x8 __attribute__((ext_vector_type(8)));
typedef short s16x16 __attribute__((ext_vector_type(16)));
typedef f16 f16x16 __attribute__((ext_vector_type(16)));

struct Tile {
  f32 of[8];
};

// Two float32 numbers that bfloat16 holds exactly, as bits: the first in the low half.
DEVICE u32 bf16_pair(f32 a, f32 b) {
  return __builtin_bit_cast(u32, a) >> 16 | (__builtin_bit_cast(u32, b) & 0xffff0000u);
}
// The same of U.
template <class U>
DEVICE u32 exact_pair(f32 a, f32 b) {
  if constexpr (Element<U>::BITS == 8) {
    return bf16_pair(a, b);
  } else {
#if defined(__AMDGCN__)
    return __builtin_bit_cast(u32, __builtin_amdgcn_cvt_pkrtz(a, b));
#else
    const f16x2 pair = {(f16)a, (f16)b};
    return __builtin_bit_cast(u32, pair);
#endif
  }
}

#if defined(__AMDGCN__)

#if defined(__GFX12__)
// Lane l holds columns 8 * (l / 16) to + 7 of row l % 16.
struct Factor {
  s16x8 of;
};
DEVICE Factor load_factor(const LOCAL u16* rows, u32 stride) {
  return {*(const LOCAL s16x8*)(rows + lane_id() % 16 * stride + lane_id() / 16 * 8)};
}
template <class U = BF16>
DEVICE void multiply(const Factor& a, const Factor& b, Tile& c) {
  const f32x8 before = __builtin_bit_cast(f32x8, c);
  if constexpr (Element<U>::BITS == 8) {
    c = __builtin_bit_cast(Tile, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a.of, b.of, before));
  } else {
    const f16x8 left = __builtin_bit_cast(f16x8, a.of), right = __builtin_bit_cast(f16x8, b.of);
    c = __builtin_bit_cast(Tile, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(left, right, before));
  }
}
DEVICE u32 row_of(u32 i) { return i + lane_id() / 16 * 8; }
#else
// Lane l holds row l % 16, as lane l + 16 does.
struct Factor {
  s16x16 of;
};
DEVICE Factor load_factor(const LOCAL u16* rows, u32 stride) {
  const LOCAL s16x8* row = (const LOCAL s16x8*)(rows + lane_id() % 16 * stride);
  return {__builtin_shufflevector(row[0], row[1], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
template <class U = BF16>
DEVICE void multiply(const Factor& a, const Factor& b, Tile& c) {
  const f32x8 before = __builtin_bit_cast(f32x8, c);
  if constexpr (Element<U>::BITS == 8) {
    c = __builtin_bit_cast(Tile, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a.of, b.of, before));
  } else {
    const f16x16 left = __builtin_bit_cast(f16x16, a.of), right = __builtin_bit_cast(f16x16, b.of);
    c = __builtin_bit_cast(Tile, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(left, right, before));
  }
}
DEVICE u32 row_of(u32 i) { return 2 * i + lane_id() / 16; }
#endif
DEVICE u32 column_of(u32) { return lane_id() % 16; }

#elif defined(__NVPTX__)

// The four 8x8 quarters as mma.m16n8k16 has its A: rows 0-7, rows 8-15, and both again for columns 8-15.
struct Factor {
  u32 of[4];
};
DEVICE Factor load_factor(const LOCAL u16* rows, u32 stride) {
  const u32 lane = lane_id(), at = (u32)(u64)(rows + lane % 16 * stride + lane / 16 * 8);
  Factor f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.of[0]), "=r"(f.of[1]), "=r"(f.of[2]), "=r"(f.of[3])
               : "r"(at)
               : "memory");
  return f;
}
template <class U = BF16>
DEVICE void multiply(const Factor& a, const Factor& b, Tile& c) {
  UNROLL for (u32 half = 0; half < 2; half++) {
    f32(&of)[8] = c.of;
    const u32 h = 4 * half;
    if constexpr (Element<U>::BITS == 8) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(of[h]), "+f"(of[h + 1]), "+f"(of[h + 2]), "+f"(of[h + 3])
          : "r"(a.of[0]), "r"(a.of[1]), "r"(a.of[2]), "r"(a.of[3]), "r"(b.of[half]), "r"(b.of[2 + half]));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(of[h]), "+f"(of[h + 1]), "+f"(of[h + 2]), "+f"(of[h + 3])
          : "r"(a.of[0]), "r"(a.of[1]), "r"(a.of[2]), "r"(a.of[3]), "r"(b.of[half]), "r"(b.of[2 + half]));
    }
  }
}
DEVICE u32 row_of(u32 i) { return lane_id() / 4 + i % 4 / 2 * 8; }
DEVICE u32 column_of(u32 i) { return lane_id() % 4 * 2 + i % 2 + i / 4 * 8; }

#else

struct Factor {
  u32 of[8];
};
DEVICE Factor load_factor(const LOCAL u16* rows, u32 stride) {
  Factor f;
  for (u32 i = 0; i < 8; i++) f.of[i] = ((const LOCAL u32*)(rows + lane_id() % 16 * stride))[i];
  return f;
}
template <class U>
DEVICE f32 half_of_factor(u32 pair, u32 i) {
  if constexpr (Element<U>::BITS == 8) return __builtin_bit_cast(f32, i ? pair & 0xffff0000u : pair << 16);
  return (f32)__builtin_bit_cast(f16x2, pair)[i];
}
template <class U = BF16>
DEVICE void multiply(const Factor& a, const Factor& b, Tile& c) {
  for (u32 i = 0; i < 8; i++) {
    for (u32 k = 0; k < 8; k++) {
      const u32 pair = shuffle_bits(a.of[k], 2 * i + lane_id() / 16);
      for (u32 h = 0; h < 2; h++) {
        c.of[i] = multiply_add(half_of_factor<U>(pair, h), half_of_factor<U>(b.of[k], h), c.of[i]);
      }
    }
  }
}
DEVICE u32 row_of(u32 i) { return 2 * i + lane_id() / 16; }
DEVICE u32 column_of(u32) { return lane_id() % 16; }

#endif
