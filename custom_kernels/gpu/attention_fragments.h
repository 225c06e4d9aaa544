// Attention on the matrix units: which lane of a wave holds what of 16 keys, their scores and their values.
//
// Scores are products over dimensions, mixes are products over keys, and a sum does not mind the order in which both its
// factors have what is summed. So dimensions and keys are permuted such that a lane's part of a factor is what it loads in
// one piece: PIECE neighbouring dimensions of a key, and that the scores of a lane become its part of the next factor.
#pragma once

#include "cache.h"
#include "fragments.h"

#if defined(__NVPTX__) && __CUDA_ARCH__ >= 890
#define CONVERTS_E4M3  // in one instruction
#endif

// The type in which elements T of a pool are multiplied; fp8 may go in as float16 numbers of 2^-8 of the value.
template <class T>
struct Multiplied {
  using Type = T;
  static constexpr f32 UNIT = 1.0f;
};
template <>
struct Multiplied<fp8> {
  using Type = f16;
#if defined(CONVERTS_E4M3)
  static constexpr f32 UNIT = 1.0f;
#else
  static constexpr f32 UNIT = 256.0f;
#endif
};

// Two numbers rounded, the first in the low half.
template <class M>
DEVICE u32 pair_of(f32 a, f32 b) {
  if constexpr (__is_same(M, f16)) {
    const f16x2 pair = {(f16)a, (f16)b};
    return __builtin_bit_cast(u32, pair);
  } else {
    return bf16_bits(a) | (u32)bf16_bits(b) << 16;
  }
}
template <class M>
DEVICE u16 bits_of(f32 v) {
  if constexpr (__is_same(M, f16)) return __builtin_bit_cast(u16, (f16)v);
  else return bf16_bits(v);
}
template <class M>
DEVICE f32 number_of(u16 bits) {
  if constexpr (__is_same(M, f16)) return (f32)__builtin_bit_cast(f16, bits);
  else return __builtin_bit_cast(f32, (u32)bits << 16);
}

// The low, or the high, halves of a and b beside each other.
DEVICE u32 low_halves(u32 a, u32 b) {
#if defined(__AMDGCN__)
  return __builtin_amdgcn_perm(b, a, 0x05040100u);
#elif defined(__NVPTX__)
  return (u32)__nvvm_prmt((i32)a, (i32)b, 0x5410);
#else
  return (a & 0xffffu) | b << 16;
#endif
}
DEVICE u32 high_halves(u32 a, u32 b) {
#if defined(__AMDGCN__)
  return __builtin_amdgcn_perm(b, a, 0x07060302u);
#elif defined(__NVPTX__)
  return (u32)__nvvm_prmt((i32)a, (i32)b, 0x7632);
#else
  return a >> 16 | (b & 0xffff0000u);
#endif
}
// Bytes 0 and 1 (2 and 3) of a word as the high bytes of two halves.
DEVICE u32 spread_bytes(u32 word, bool last) {
#if defined(__AMDGCN__)
  return __builtin_amdgcn_perm(word, word, last ? 0x030c020cu : 0x010c000cu);
#elif defined(__NVPTX__)
  return (u32)__nvvm_prmt((i32)word, 0, last ? 0x3424 : 0x1404);
#else
  return last ? (word >> 8 & 0xff00u) | (word & 0xff000000u) : (word << 8 & 0xff00u) | (word << 16 & 0xff000000u);
#endif
}

// COUNT (4 or 8) neighbouring elements of a pool as they are stored, and as 16-bit factors.
template <class T, u32 COUNT>
struct CachePiece {
  static constexpr u32 WORDS = COUNT * sizeof(T) / 4;
  u32 of[WORDS];

  DEVICE CachePiece load(const GLOBAL T* p) {
    CachePiece piece;
    if constexpr (WORDS == 1) {
      piece.of[0] = *(const GLOBAL u32*)p;
    } else if constexpr (WORDS == 2) {
      const u32x2 v = *(const GLOBAL u32x2*)p;
      UNROLL for (u32 i = 0; i < 2; i++) piece.of[i] = v[i];
    } else {
      const u32x4 v = *(const GLOBAL u32x4*)p;
      UNROLL for (u32 i = 0; i < 4; i++) piece.of[i] = v[i];
    }
    return piece;
  }
  __attribute__((always_inline)) void clear_unless(bool kept) {
    UNROLL for (u32 i = 0; i < WORDS; i++) of[i] = kept ? of[i] : 0;
  }
};
template <u32 COUNT>
struct CacheHalves {
  u32 of[COUNT / 2];
};
template <class T, u32 COUNT>
DEVICE CacheHalves<COUNT> cache_halves(const CachePiece<T, COUNT>& piece) {
  CacheHalves<COUNT> h;
  if constexpr (sizeof(T) == 2) {
    UNROLL for (u32 i = 0; i < COUNT / 2; i++) h.of[i] = piece.of[i];
  } else {
#if defined(CONVERTS_E4M3)
    UNROLL for (u32 w = 0; w < COUNT / 4; w++) {
      asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b;}"
          : "=r"(h.of[2 * w]), "=r"(h.of[2 * w + 1])
          : "r"(piece.of[w]));
    }
#else
    u32 nan = 0;
    UNROLL for (u32 w = 0; w < COUNT / 4; w++) {
      nan |= (piece.of[w] & 0x7f7f7f7fu) + 0x01010101u;
      UNROLL for (u32 i = 0; i < 2; i++) {
        const u32 high = spread_bytes(piece.of[w], i);
        h.of[2 * w + i] = (high >> 1 & 0x3f803f80u) | (high & 0x80008000u);
      }
    }
    if (nan & 0x80808080u) {
      UNROLL for (u32 i = 0; i < COUNT / 2; i++) {
        h.of[i] |= ((((h.of[i] & 0x3f803f80u) + 0x00800080u) & 0x40004000u) >> 4) * 31;
      }
    }
#endif
  }
  return h;
}

// Queries, in local memory, have dimension d of each 32 at `place_of(d)`.
//
// An `Operand` of queries has 16 rows: 16 queries of one term, or 8 of two, the second terms after the first. Of the scores a
// lane has COUNT: n of the query `query(r)` for r = local(n), and of key `first_key() + further(n)`.
#if !defined(__AMDGCN__)
#include "cache_factors.h"
#else

// Of 16 keys and 32 dimensions a lane loads KEY_PIECES pieces of 8 of key `lane % 16`: piece p from dimension
// `dimension_of_piece(p)` on. `key_factor` makes the factor of half h of the dimensions.
//
// Of 16 keys and GROUP dimensions of values a lane loads the pieces of VALUE_KEYS keys; `value_factor` makes that of tile t
// of TILES. What is mixed of it lies in lanes as the scores do, in chunks of PIECE neighbouring dimensions.
#if defined(__GFX12__)
inline constexpr u32 KEY_PIECES = 2, VALUE_KEYS = 8;
#else
inline constexpr u32 KEY_PIECES = 4, VALUE_KEYS = 16;
#endif
template <class T>
DEVICE u32 place_of(u32 d) { return d; }
using Operand = Factor;
DEVICE Operand load_rows(const LOCAL u16* rows, u32 stride) { return load_factor(rows, stride); }
template <class M>
DEVICE void score(const Operand& queries, const Operand& keys, Tile& scores) { multiply<M>(keys, queries, scores); }
template <class M>
DEVICE void mix(const Operand& weights, const Operand& values, Tile& mixed) { multiply<M>(values, weights, mixed); }

// What lane l ^ 8, and lane l ^ 16, has.
DEVICE u32 bits_of_eighth(u32 v) {
  return (u32)__builtin_amdgcn_update_dpp(0, (i32)v, 0x128, 15, 15, true);  // row_ror:8
}
DEVICE u32 bits_of_sixteenth(u32 v) {
  return (u32)__builtin_amdgcn_permlanex16((i32)v, (i32)v, 0x76543210, (i32)0xfedcba98, true, false);
}
DEVICE f32 of_eighth(f32 v) { return __builtin_bit_cast(f32, bits_of_eighth(__builtin_bit_cast(u32, v))); }
DEVICE f32 of_sixteenth(f32 v) { return __builtin_bit_cast(f32, bits_of_sixteenth(__builtin_bit_cast(u32, v))); }
DEVICE f32 higher_of(f32 a, f32 b) { return larger(a, b); }
DEVICE f32 largest_of_keys(f32 v) { return larger(v, of_sixteenth(v)); }
DEVICE f32 sum_of_keys(f32 v) { return v + of_sixteenth(v); }

#if defined(__GFX12__)
DEVICE u32 dimension_of_piece(u32 p) { return 16 * p + lane_id() / 16 * 8; }
DEVICE Factor key_factor(const CacheHalves<8> (&x)[KEY_PIECES], u32 h) { return {__builtin_bit_cast(s16x8, x[h])}; }
DEVICE u32 key_of_row(u32 i) { return i + lane_id() / 16 * 8; }
inline constexpr u32 KEY_STEP = 1;  // between rows
DEVICE u32 key_of_value(u32 k) { return k + lane_id() / 16 * 8; }
DEVICE u32 row_of_value(u32 row, u32 k) { return shuffle_bits(row, key_of_value(k)); }
inline constexpr u32 PAIRS = 4;
DEVICE u32 first_of_pair(u32 j) { return 2 * j; }
DEVICE u32 second_of_pair(u32 j) { return 2 * j + 1; }
DEVICE Factor factor_of(const u32 (&own)[4]) { return {__builtin_bit_cast(s16x8, u32x4{own[0], own[1], own[2], own[3]})}; }
DEVICE Factor weights_of(const u32 (&own)[4]) { return factor_of(own); }
#else
DEVICE u32 dimension_of_piece(u32 p) { return 8 * p; }
DEVICE u32 key_of_row(u32 i) { return 2 * i + lane_id() / 16; }
inline constexpr u32 KEY_STEP = 2;  // between rows
DEVICE u32 key_of_value(u32 k) { return k; }
DEVICE u32 row_of_value(u32 row, u32 k) { return broadcast_bits(row, k); }
// A factor has the even keys first, which lanes below 16 have scores of.
inline constexpr u32 PAIRS = 8;
DEVICE u32 first_of_pair(u32 j) { return 4 * (j % 4) + j / 4; }
DEVICE u32 second_of_pair(u32 j) { return 4 * (j % 4) + 2 + j / 4; }
DEVICE Factor factor_of(const u32 (&words)[8]) {
  typedef u32 u32x8 __attribute__((ext_vector_type(8)));
  u32x8 all;
  UNROLL for (u32 i = 0; i < 8; i++) all[i] = words[i];
  return {__builtin_bit_cast(s16x16, all)};
}
DEVICE Factor weights_of(const u32 (&own)[4]) {
  const bool second = lane_id() >= 16;
  u32 words[8];
  UNROLL for (u32 i = 0; i < 4; i++) {
    const u32 other = bits_of_sixteenth(own[i]);
    words[i] = second ? other : own[i];
    words[4 + i] = second ? own[i] : other;
  }
  return factor_of(words);
}
DEVICE Factor key_factor(const CacheHalves<8> (&x)[KEY_PIECES], u32 h) {
  u32 words[8];
  UNROLL for (u32 i = 0; i < 8; i++) words[i] = x[2 * h + i / 4].of[i % 4];
  return factor_of(words);
}
#endif

template <u32 TERMS>
struct InLane {
  static constexpr u32 COUNT = 8, QUERIES = 1;
  DEVICE u32 local(u32) { return 0; }
  DEVICE u32 query(u32) { return lane_id() % (16 / TERMS); }
  DEVICE u32 first_key() { return key_of_row(0); }
  DEVICE u32 further(u32 n) { return KEY_STEP * n; }
  DEVICE f32 score(const Tile& t, u32 n) { return TERMS == 2 ? t.of[n] + of_eighth(t.of[n]) : t.of[n]; }
  DEVICE f32 mixed(const Tile& t, u32 n) { return t.of[n]; }
  DEVICE f32 whole(f32 mixed) { return TERMS == 2 ? mixed + of_eighth(mixed) : mixed; }
  DEVICE bool writes() { return TERMS == 1 || lane_id() % 16 < 8; }  // of two lanes with the same
  template <class M>
  DEVICE Factor weights(const f32 (&p)[COUNT]) {
    const bool second = TERMS == 2 && lane_id() % 16 >= 8;
    u32 own[4];
    UNROLL for (u32 i = 0; i < 4; i++) {
      own[i] = pair_of<M>(p[2 * i], p[2 * i + 1]);
      if constexpr (TERMS == 2) {
        const f32 a = p[2 * i] - number_of<M>((u16)own[i]), b = p[2 * i + 1] - number_of<M>((u16)(own[i] >> 16));
        const u32 rest = pair_of<M>(a, b);
        own[i] = second ? rest : own[i];
      }
    }
    return weights_of(own);
  }
};

template <u32 DIMENSIONS>
struct ValueGroup {
  static constexpr u32 PIECE = DIMENSIONS % 128 ? 4 : 8, GROUP = 16 * PIECE, TILES = PIECE;
  DEVICE u32 key(u32 k) { return key_of_value(k); }
  DEVICE u32 row(u32 row, u32 k) { return row_of_value(row, k); }
  DEVICE u32 dimension() { return lane_id() % 16 * PIECE; }
  DEVICE Factor factor(const CacheHalves<PIECE> (&x)[VALUE_KEYS], u32 t) {
    u32 words[PAIRS];
    UNROLL for (u32 j = 0; j < PAIRS; j++) {
      const u32 a = x[first_of_pair(j)].of[t / 2], b = x[second_of_pair(j)].of[t / 2];
      words[j] = t % 2 ? high_halves(a, b) : low_halves(a, b);
    }
    return factor_of(words);
  }
  template <u32 COUNT, class F>
  DEVICE void chunks(const f32 (&mixed)[TILES][COUNT], F f) {
    UNROLL for (u32 c = 0; c < COUNT; c++) {
      f32 values[PIECE];
      UNROLL for (u32 i = 0; i < PIECE; i++) values[i] = mixed[i][c];
      f(0, PIECE * key_of_row(c), values);
    }
  }
};

#endif
