// Attention on NVIDIA's matrix units: which lane has what of the operands of mma.m16n8k16, and how keys and values come into
// it from local memory, where a row is a key as a pool stores it, and 8 neighbouring rows lie in different banks. On the
// CPU, for tests, the same lanes have the same.
#pragma once

#include "attention_fragments.h"
#include "mma.h"

// Four 8x8 matrices of 16-bit numbers: of a left operand its quarters (rows 0-7, rows 8-15, and both again for the second
// half of what is summed over), of a right one first the two of its rows 0-7.
struct Operand {
  u32 of[4];
};

// Rows in local memory of which 8 neighbours lie in different banks: TWISTED ones have 16-byte piece p of row r at p ^ r % 8 of
// each 128 bytes, others are followed by 16 bytes of nothing. Matrix `lane / 8` of an operand has row `lane % 8` of 8; PAIRS: the
// first two matrices have the same rows, else every other.
template <bool PAIRS>
DEVICE u32 matrix_row(u32 lane) { return PAIRS ? lane % 8 + lane / 16 * 8 : lane % 16; }
template <bool PAIRS>
DEVICE u32 matrix_half(u32 lane) { return PAIRS ? lane / 8 % 2 * 16 : lane / 16 * 16; }  // bytes from the first one on

template <bool PAIRS, bool TWISTED>
struct MatrixRows {
#if defined(__NVPTX__)
  const LOCAL u8* own;
  u32 turn;

  DEVICE MatrixRows of(const LOCAL u8* rows, u32 stride) {
    const u32 row = matrix_row<PAIRS>(lane_id()), half = matrix_half<PAIRS>(lane_id());
    if constexpr (TWISTED) return {rows + row * stride, half ^ row % 8 * 16};
    return {rows + row * stride + half, 0};
  }
  // What lies `offset` bytes, a multiple of 32, from the beginning of the rows on.
  __attribute__((always_inline)) const LOCAL u8* at(u32 offset) const {
    return TWISTED ? own + (offset & ~127u) + ((offset & 127u) ^ turn) : own + offset;
  }
#else
  const LOCAL u8* rows;
  u32 stride;

  DEVICE MatrixRows of(const LOCAL u8* rows, u32 stride) { return {rows, stride}; }
  const LOCAL u8* row(u32 lane, u32 offset) const {
    const u32 row = matrix_row<PAIRS>(lane), from = offset + matrix_half<PAIRS>(lane);
    return rows + row * stride + (TWISTED ? from ^ row % 8 * 16 : from);
  }
#endif
};
// TURNED: rows of the matrices are columns here.
template <bool TURNED, bool PAIRS, bool TWISTED>
DEVICE Operand load_matrices(const MatrixRows<PAIRS, TWISTED>& from, u32 offset) {
  Operand x;
#if defined(__NVPTX__)
  if constexpr (TURNED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.of[0]), "=r"(x.of[1]), "=r"(x.of[2]), "=r"(x.of[3])
                 : "r"((u32)(u64)from.at(offset))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.of[0]), "=r"(x.of[1]), "=r"(x.of[2]), "=r"(x.of[3])
                 : "r"((u32)(u64)from.at(offset))
                 : "memory");
  }
#else
  const u32 g = lane_id() / 4, t = lane_id() % 4;
  for (u32 m = 0; m < 4; m++) {
    if constexpr (TURNED) {
      const u16 a = ((const LOCAL u16*)from.row(8 * m + 2 * t, offset))[g];
      const u16 b = ((const LOCAL u16*)from.row(8 * m + 2 * t + 1, offset))[g];
      x.of[m] = a | (u32)b << 16;
    } else {
      x.of[m] = ((const LOCAL u32*)from.row(8 * m + g, offset))[t];
    }
  }
#endif
  return x;
}
// A left operand of 16 rows of 16 numbers.
DEVICE Operand load_rows(const LOCAL u16* rows, u32 stride) {
  return load_matrices<false>(MatrixRows<false, false>::of((const LOCAL u8*)rows, 2 * stride), 0);
}

// What a lane of key_factors (cache_factors.h) has of fp8 is 4 neighbouring dimensions.
template <class T>
DEVICE u32 place_of(u32 d) { return sizeof(T) == 1 ? d / 16 * 16 + d % 4 / 2 * 8 + d % 16 / 4 * 2 + d % 2 : d; }
template <class M>
DEVICE void multiply_pairs(const Operand& a, const Operand& pairs, Tile& c) {  // which one load of the matrices gives
  UNROLL for (u32 half = 0; half < 2; half++) {
    f32(&of)[8] = c.of;
    Products sums = {{of[4 * half], of[4 * half + 1], of[4 * half + 2], of[4 * half + 3]}};
    multiply_16x8<M>(a.of, pairs.of[2 * half], pairs.of[2 * half + 1], sums);
    UNROLL for (u32 i = 0; i < 4; i++) of[4 * half + i] = sums.of[i];
  }
}
template <class M>
DEVICE void score(const Operand& queries, const Operand& keys, Tile& scores) { multiply_pairs<M>(queries, keys, scores); }
template <class M>
DEVICE void mix(const Operand& weights, const Operand& values, Tile& mixed) { multiply_pairs<M>(weights, values, mixed); }

template <u32 TERMS>
struct InLane {
  static constexpr u32 COUNT = 8 / TERMS, QUERIES = 2 / TERMS;
  DEVICE u32 element(u32 n) { return TERMS == 2 ? n % 2 + n / 2 * 4 : n; }
  DEVICE u32 local(u32 n) { return TERMS == 2 ? 0 : n % 4 / 2; }
  DEVICE u32 query(u32 r) { return lane_id() / 4 + 8 * r; }
  DEVICE u32 first_key() { return lane_id() % 4 * 2; }
  DEVICE u32 further(u32 n) { return n % 2 + element(n) / 4 * 8; }
  DEVICE f32 score(const Tile& t, u32 n) { return TERMS == 2 ? t.of[element(n)] + t.of[element(n) + 2] : t.of[n]; }
  DEVICE f32 mixed(const Tile& t, u32 n) { return score(t, n); }
  DEVICE f32 whole(f32 mixed) { return mixed; }
  DEVICE bool writes() { return true; }
  template <class M>
  DEVICE Operand weights(const f32 (&p)[COUNT]) {
    if constexpr (TERMS == 1) {
      return {{pair_of<M>(p[0], p[1]), pair_of<M>(p[2], p[3]), pair_of<M>(p[4], p[5]), pair_of<M>(p[6], p[7])}};
    } else {
      const u32 a = pair_of<M>(p[0], p[1]), b = pair_of<M>(p[2], p[3]);
      return {{a, rest<M>(p[0], p[1], a), b, rest<M>(p[2], p[3], b)}};
    }
  }
  template <class M>
  DEVICE u32 rest(f32 a, f32 b, u32 pair) {
    return pair_of<M>(a - number_of<M>((u16)pair), b - number_of<M>((u16)(pair >> 16)));
  }
};
// Over the lanes that have other keys of the same queries.
#if defined(__NVPTX__)
DEVICE f32 of_other(f32 v, u32 mask) {  // what lane l ^ mask has
  return __builtin_bit_cast(f32, __nvvm_shfl_sync_bfly_i32(0xffffffffu, __builtin_bit_cast(i32, v), (i32)mask, 31));
}
DEVICE f32 higher_of(f32 a, f32 b) { return __nvvm_fmax_f(a, b); }
#else
DEVICE f32 of_other(f32 v, u32 mask) { return shuffle(v, lane_id() ^ mask); }
DEVICE f32 higher_of(f32 a, f32 b) { return larger(a, b); }
#endif
DEVICE f32 largest_of_keys(f32 v) {
  v = higher_of(v, of_other(v, 1));
  return higher_of(v, of_other(v, 2));
}
DEVICE f32 sum_of_keys(f32 v) {
  v += of_other(v, 2);
  return v + of_other(v, 1);
}

// Of 16 keys and 32 of their dimensions, 16 in each operand, in the order of `place_of`, from byte `offset` of the keys on.
template <class T, bool TWISTED>
DEVICE void key_operands(const MatrixRows<true, TWISTED>& keys, u32 offset, Operand (&x)[2]) {
  if constexpr (sizeof(T) == 2) {
    UNROLL for (u32 h = 0; h < 2; h++) x[h] = load_matrices<false>(keys, offset + 32 * h);
  } else {
    const Operand stored = load_matrices<false>(keys, offset);
    UNROLL for (u32 h = 0; h < 2; h++) {
      UNROLL for (u32 i = 0; i < 2; i++) {  // keys 0 to 7, and 8 to 15
        const CacheHalves<4> own = cache_halves(CachePiece<T, 4>{{stored.of[2 * i + h]}});
        x[h].of[2 * i] = own.of[0];
        x[h].of[2 * i + 1] = own.of[1];
      }
    }
  }
}
DEVICE u32 middle_bytes_swapped(u32 v) {
#if defined(__NVPTX__)
  return (u32)__nvvm_prmt((i32)v, 0, 0x3120);
#else
  return (v & 0xff0000ffu) | (v & 0xff00u) << 8 | (v >> 8 & 0xff00u);
#endif
}
// Of 16 keys and 32 dimensions of values, 16 in each operand. Where a number is a byte, an operand's first 8 rows are the
// even dimensions, for those are turned over in pairs.
template <class T, bool TWISTED>
DEVICE void value_operands(const MatrixRows<false, TWISTED>& values, u32 offset, Operand (&x)[2]) {
  if constexpr (sizeof(T) == 2) {
    UNROLL for (u32 h = 0; h < 2; h++) x[h] = load_matrices<true>(values, offset + 32 * h);
  } else {
    const Operand stored = load_matrices<true>(values, offset);
    UNROLL for (u32 h = 0; h < 2; h++) {
      UNROLL for (u32 k = 0; k < 2; k++) {  // keys 0 to 7, and 8 to 15
        const CacheHalves<4> own = cache_halves(CachePiece<T, 4>{{middle_bytes_swapped(stored.of[2 * h + k])}});
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
        const u32 r = c / 2, e = c % 2;
        if constexpr (sizeof(T) == 2) {
          const u32 n = e * HALF + 2 * r;
          f(r, 16 * tile + 8 * e + 2 * t, {mixed[tile][n], mixed[tile][n + 1]});
        } else {
          f(r, 16 * tile + 4 * t + 2 * e, {mixed[tile][c], mixed[tile][HALF + c]});
        }
      }
    }
  }
};
