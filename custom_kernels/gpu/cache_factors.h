// Attention on the matrix units: keys and values in local memory, as a pool stores them, to factors; NVIDIA's GPUs, and the
// CPU for tests. A row of local memory is a key; its bytes, and those of 8 neighbouring ones, lie in different banks.
#pragma once

#include "attention_fragments.h"

#if defined(__NVPTX__)

// Four 8x8 matrices of 16-bit numbers from `row` (a lane's own) on, a right factor as mma.m16n8k16 has it in pairs of registers.
template <bool TURNED>
DEVICE Factor load_pairs(const LOCAL u8* row) {
  Factor f;
  if constexpr (TURNED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.of[0]), "=r"(f.of[1]), "=r"(f.of[2]), "=r"(f.of[3])
                 : "r"((u32)(u64)row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.of[0]), "=r"(f.of[1]), "=r"(f.of[2]), "=r"(f.of[3])
                 : "r"((u32)(u64)row)
                 : "memory");
  }
  return f;
}

// Of 16 keys and 32 of their dimensions, 16 in each factor, in the order of `place_of`. `keys`: the lane's `key_row`.
DEVICE u32 key_row(u32 stride) { return (lane_id() % 8 + lane_id() / 16 * 8) * stride + lane_id() / 8 % 2 * 16; }
template <class T>
DEVICE void key_factors(const LOCAL u8* keys, u32, Factor (&x)[2]) {
  if constexpr (sizeof(T) == 2) {
    UNROLL for (u32 h = 0; h < 2; h++) x[h] = load_pairs<false>(keys + 32 * h);
  } else {
    const Factor stored = load_pairs<false>(keys);
    UNROLL for (u32 h = 0; h < 2; h++) {
      UNROLL for (u32 i = 0; i < 2; i++) {
        const CacheHalves<4> own = cache_halves(CachePiece<T, 4>{{stored.of[2 * i + h]}});
        x[h].of[2 * i] = own.of[0];
        x[h].of[2 * i + 1] = own.of[1];
      }
    }
  }
}
// Of 16 keys and 32 dimensions of values, 16 in each factor. Where a number is a byte, a factor's first 8 rows are the even
// dimensions, for those are turned over in pairs. `values`: the lane's `value_row`.
DEVICE u32 value_row(u32 stride) { return lane_id() % 16 * stride + lane_id() / 16 * 16; }
template <class T>
DEVICE void value_factors(const LOCAL u8* values, u32, Factor (&x)[2]) {
  if constexpr (sizeof(T) == 2) {
    UNROLL for (u32 h = 0; h < 2; h++) x[h] = load_pairs<true>(values + 32 * h);
  } else {
    const Factor stored = load_pairs<true>(values);
    UNROLL for (u32 h = 0; h < 2; h++) {
      UNROLL for (u32 k = 0; k < 2; k++) {  // keys 0 to 7, and 8 to 15
        const u32 pairs = (u32)__nvvm_prmt((i32)stored.of[2 * h + k], 0, 0x3120);
        const CacheHalves<4> own = cache_halves(CachePiece<T, 4>{{pairs}});
        x[h].of[k] = own.of[0];
        x[h].of[2 + k] = own.of[1];
      }
    }
  }
}

// What is mixed: 64 dimensions of values as 4 tiles.
template <class T>
struct RingValues {
  static constexpr u32 PIECE = 2, GROUP = 64, TILES = 4;
  // Calls f(local query, first dimension in the group, PIECE values) for what a lane has of the group.
  template <u32 COUNT, class F>
  DEVICE void chunks(const f32 (&mixed)[TILES][COUNT], F f) {
    constexpr u32 HALF = COUNT / 2;
    const u32 t = lane_id() % 4;
    UNROLL for (u32 tile = 0; tile < TILES; tile++) {
      UNROLL for (u32 c = 0; c < HALF; c++) {
        if constexpr (sizeof(T) == 2) {
          const u32 r = c % HALF / 2, half = c % 2, n = half * HALF + 2 * r;
          f(r, 16 * tile + 8 * half + 2 * t, {mixed[tile][n], mixed[tile][n + 1]});
        } else {
          f(c / 2, 16 * tile + 4 * t + 2 * (c % 2), {mixed[tile][c], mixed[tile][HALF + c]});
        }
      }
    }
  }
};

#else

DEVICE u32 key_row(u32) { return 0; }
template <class T>
DEVICE void key_factors(const LOCAL u8* keys, u32 stride, Factor (&x)[2]) {
  const Factor stored = load_factor((const LOCAL u16*)keys, stride / 2);
  if constexpr (sizeof(T) == 2) {
    x[0] = stored;
    x[1] = load_factor((const LOCAL u16*)keys + 16, stride / 2);
  } else {
    for (u32 i = 0; i < 8; i++) {
      const CacheHalves<4> own = cache_halves(CachePiece<T, 4>{{stored.of[i]}});
      x[i / 4].of[i % 4 * 2] = own.of[0];
      x[i / 4].of[i % 4 * 2 + 1] = own.of[1];
    }
  }
}
DEVICE u32 value_row(u32) { return 0; }
template <class T>
DEVICE void value_factors(const LOCAL u8* values, u32 stride, Factor (&x)[2]) {
  for (u32 h = 0; h < 2; h++) {
    const LOCAL u8* column = values + (16 * h + lane_id() % 16) * sizeof(T);
    for (u32 i = 0; i < 8; i++) {
      const LOCAL u8 *a = column + first_of_pair(i) * stride, *b = column + second_of_pair(i) * stride;
      if constexpr (sizeof(T) == 2) {
        x[h].of[i] = *(const LOCAL u16*)a | (u32) * (const LOCAL u16*)b << 16;
      } else {
        x[h].of[i] = cache_halves(CachePiece<T, 4>{{*a | (u32)*b << 8}}).of[0];
      }
    }
  }
}

template <class T>
struct RingValues {
  static constexpr u32 PIECE = 1, GROUP = 64, TILES = 4;
  template <u32 COUNT, class F>
  DEVICE void chunks(const f32 (&mixed)[TILES][COUNT], F f) {
    for (u32 tile = 0; tile < TILES; tile++) {
      for (u32 c = 0; c < COUNT; c++) f(0, 16 * tile + key_of_row(c), {mixed[tile][c]});
    }
  }
};

#endif
