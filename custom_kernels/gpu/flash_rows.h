// The rows of a workgroup of flash_attention.h: query heads of tokens of one sequence, what of it is in local memory, which
// positions they see, and where in the pools those are.
#pragma once

#include "attention.h"
#include "attention_fragments.h"
#if !defined(__AMDGCN__)
#include "launch_local.h"
#endif

// Weights are up to two to the power of this, so that small ones are no subnormal float16 numbers.
template <class M>
inline constexpr f32 WEIGHT_SHIFT = __is_same(M, f16) ? 10.0f : 0.0f;
inline constexpr u32 LEAST_SHARE = 128;  // positions of a split

// The largest divisor of n that is not above `most`.
constexpr u32 part_of(u32 n, u32 most) { return n % most ? part_of(n, most - 1) : most; }

template <class X, class T, u32 D, u32 DV, u32 MOST_BLOCKS, u32 MOST_PART>
struct FlashShape {
  static constexpr bool FEW = MOST_BLOCKS == 0;
  static constexpr u32 TERMS = FEW || __is_same(X, f32) ? 2 : 1, QUERIES = 16 / TERMS, BLOCKS = FEW ? 1 : MOST_BLOCKS;
  // Waves that share wide values of few rows share tiles of keys too, which have room for more of them then.
  static constexpr u32 MOST = FEW && DV <= 256 && MOST_PART > 128 ? 128 : MOST_PART;
  static constexpr u32 PARTS = DV > 2 * MOST ? 4 : DV > MOST ? 2 : 1, PART = DV / PARTS;
  static constexpr u32 KEY_WAVES = FEW ? ATTENTION_WAVES / PARTS : 1, ROW_WAVES = FEW ? 1 : ATTENTION_WAVES / PARTS;
  static constexpr u32 ROWS_OF_WAVE = QUERIES * BLOCKS, ROWS = ROWS_OF_WAVE * ROW_WAVES;
  static constexpr u32 STRIDE = D + 8;  // rows in different banks, 16-byte aligned
#if defined(__AMDGCN__)
  using Values = ValueGroup<PART>;
#else
  using Values = RingValues<T>;
  // Bytes of local memory for keys and values; attention_kernels.py has the same.
  static constexpr u32 RING = (FEW ? D > 128 ? 76 : 64 : D > 128 ? 60 : 53) * 1024;
#endif
  static constexpr u32 GROUPS = (PART + Values::GROUP - 1) / Values::GROUP;
};

template <class X, class T, u32 D, u32 DV, u32 MOST_BLOCKS, u32 MOST_PART>
struct FlashTiles {
  using S = FlashShape<X, T, D, DV, MOST_BLOCKS, MOST_PART>;
  LOCAL_ARRAY static inline u32x4 q[16 * S::BLOCKS * S::ROW_WAVES * S::STRIDE / 8];
  LOCAL_ARRAY static inline f32 factor[S::ROWS];
  LOCAL_ARRAY static inline i32 first[S::ROWS], last[S::ROWS];
  LOCAL_ARRAY static inline f32 peak[S::KEY_WAVES][S::QUERIES], total[S::KEY_WAVES][S::QUERIES];
  // Where the mixes of waves with the same rows meet, some groups of dimensions at once.
#if defined(__AMDGCN__)
  static constexpr u32 GROUPS_MEETING = 1;
  LOCAL_ARRAY static inline f32x4 mixed[S::FEW ? ATTENTION_WAVES * S::QUERIES * S::Values::GROUP / 4 : 1];
  DEVICE LOCAL f32* meeting() { return (LOCAL f32*)mixed; }
#else
  static constexpr u32 GROUPS_MEETING = S::GROUPS;
  static_assert(!S::FEW || 4 * ATTENTION_WAVES * S::QUERIES * S::Values::GROUP * S::GROUPS <= S::RING);
  DEVICE LOCAL f32* meeting() { return (LOCAL f32*)launch_local<S::RING>(); }
#endif
};

DEVICE i32 shuffled(i32 v, u32 lane) { return (i32)shuffle_bits((u32)v, lane); }
DEVICE i32 largest_of_wave(i32 v) {
#if defined(__NVPTX__)
  asm volatile("redux.sync.max.s32 %0, %0, 0xffffffff;" : "+r"(v));
  return v;
#else
  UNROLL for (u32 mask = WAVE / 2; mask; mask /= 2) v = larger(v, shuffled(v, lane_id() ^ mask));
  return (i32)broadcast_bits((u32)v, 0);
#endif
}
DEVICE u32 any_of_wave(u32 v) {
#if defined(__NVPTX__)
  asm volatile("redux.sync.or.b32 %0, %0, 0xffffffff;" : "+r"(v));
  return v;
#else
  UNROLL for (u32 mask = WAVE / 2; mask; mask /= 2) v |= shuffle_bits(v, lane_id() ^ mask);
  return broadcast_bits(v, 0);
#endif
}
// Bits `from` to `to`, of those that there are.
DEVICE u32 bits_between(i32 from, i32 to) {
  const u32 above = to < 0 ? 0u : to >= 31 ? ~0u : (2u << to) - 1u;
  const u32 below = from <= 0 ? 0u : from >= 32 ? ~0u : (1u << from) - 1u;
  return above & ~below;
}

// Positions that rows see: from `begin` to `end` any of them, from `highest` to `lowest` all.
struct SeenPositions {
  i32 begin = 0x7fffffff, end = -1, highest = 0, lowest = 0x7fffffff;

  __attribute__((always_inline)) void add(i32 first, i32 last) {
    if (last < first) return;
    begin = smaller(begin, first);
    end = larger(end, last);
    highest = larger(highest, first);
    lowest = smaller(lowest, last);
  }
  // Of all lanes.
  __attribute__((always_inline)) void meet() {
    begin = -largest_of_wave(-begin);
    end = largest_of_wave(end);
    highest = largest_of_wave(highest);
    lowest = -largest_of_wave(-lowest);
  }
  __attribute__((always_inline)) bool may_have_holes(i32 window) const {
    return window < 0 ? end > lowest : window > 0 && end - lowest > window;
  }
};
DEVICE i32 last_seen(i32 position, const AttentionShape& s) { return smaller(position, (i32)(s.blocks * s.block_size) - 1); }
DEVICE i32 first_seen_of(i32 position, const AttentionShape& s) {
  return position < 0 ? (i32)(s.blocks * s.block_size) : first_seen(position, (i32)s.window);
}

// The rows of one workgroup: query head and token of each.
struct FlashRows {
  u32 split, first, kv_head, sequence, count, group;

  template <u32 ROWS>
  DEVICE FlashRows of(const AttentionShape& s) {
    FlashRows r;
    r.group = s.q_heads / s.kv_heads;
    r.count = s.tokens / s.sequences * r.group;
    const u32 tiles = ceil_div(r.count, ROWS);
    u32 id = workgroup_id();
    r.first = id % tiles * ROWS;
    id /= tiles;
    r.kv_head = id % s.kv_heads;
    id /= s.kv_heads;
    r.split = id % s.splits;
    r.sequence = id / s.splits;
    return r;
  }
  __attribute__((always_inline)) bool inside(u32 i) const { return first + i < count; }
  __attribute__((always_inline)) u32 head(u32 i) const { return kv_head * group + (first + i) % group; }
  __attribute__((always_inline)) u32 token(const AttentionShape& s, u32 i) const {
    return sequence * (s.tokens / s.sequences) + (first + i) / group;
  }
  __attribute__((always_inline)) u64 row(const AttentionShape& s, u32 i) const {
    return (u64)token(s, i) * s.q_heads + head(i);
  }
  // What ROWS of them see, each noted in Tiles by wave 0.
  template <u32 ROWS, class Tiles>
  __attribute__((always_inline)) SeenPositions seen(const GLOBAL i32* positions, const AttentionShape& s) const {
    SeenPositions all;
    UNROLL for (u32 i = 0; i < ROWS; i += WAVE) {
      const u32 own = i + lane_id();
      const i32 position = own < ROWS && inside(own) ? positions[token(s, own)] : -1;
      const i32 first = first_seen_of(position, s), last = last_seen(position, s);
      all.add(first, last);
      if (wave_id() == 0 && own < ROWS) {
        Tiles::first[own] = first;
        Tiles::last[own] = last;
      }
    }
    all.meet();
    return all;
  }
  // Whether one of ROWS of them sees a position.
  template <u32 ROWS>
  __attribute__((always_inline)) bool see(const GLOBAL i32* positions, i32 position, const AttentionShape& s) const {
    bool any = false;
    _Pragma("unroll 1") for (u32 i = 0; i < ROWS && inside(i); i++) {
      const i32 own = positions[token(s, i)];
      any = any || (position >= first_seen_of(own, s) && position <= last_seen(own, s));
    }
    return any;
  }
};

// Positions of a split, of `count` that are seen.
DEVICE i32 split_share(i32 count, u32 splits) {
  const u32 share = ceil_div((u32)count, splits);
  return (i32)(share < LEAST_SHARE ? LEAST_SHARE : ceil_div(share, 64) * 64);
}

// The positions of a split that rows see.
struct SplitPositions {
  i32 begin, end;

  template <bool SPLIT>
  DEVICE SplitPositions of(const SeenPositions& seen, u32 split, u32 splits) {
    SplitPositions p = {seen.begin, seen.end};
    if constexpr (SPLIT) {
      if (p.any()) {
        const i32 share = split_share(p.end - p.begin + 1, splits);
        p.begin += (i32)split * share;
        p.end = smaller(p.end, p.begin + share - 1);
      }
    }
    return p;
  }
  __attribute__((always_inline)) bool any() const { return end >= begin; }
};

// From positions to rows of a pool.
struct PagedRows {
  const GLOBAL i32* table;
  u32 block_size, shift, pool_rows;
  i32 end;  // the last position that may be asked for

  DEVICE PagedRows of(const GLOBAL i32* table, const FlashRows& rows, const AttentionShape& s, i32 end) {
    return {table + (u64)rows.sequence * s.blocks, s.block_size, 31u - (u32)__builtin_clz(s.block_size), s.pool_rows, end};
  }
  __attribute__((always_inline)) u32 of(i32 position) const { return row(position, entry(position)); }
  // What the table says of a position, and the row that this makes. The one is read long before the other is needed.
  __attribute__((always_inline)) i32 entry(i32 position) const { return table[block(position)]; }
  __attribute__((always_inline)) u32 row(i32 position, i32 entry) const {
    const u32 p = (u32)smaller(position, end);
    return smaller((u32)entry * block_size + (p - block(position) * block_size), pool_rows - 1);
  }
  __attribute__((always_inline)) u32 block(i32 position) const {
    const u32 p = (u32)smaller(position, end);
    const bool power = (block_size & (block_size - 1)) == 0;
    return power ? p >> shift : p / block_size;
  }
};

// Where a pool's keys of the layer and the head begin.
DEVICE u64 pool_offset(const FlashRows& rows, const AttentionShape& s) {
  return (u64)s.layer * s.pool_rows * (s.kv_heads * s.head_dim) + rows.kv_head * s.head_dim;
}

// Neighbouring results from `at` on.
template <class Y, u32 PIECE>
DEVICE void store_piece(GLOBAL Y* out, u64 at, const f32 (&v)[PIECE]) {
  if constexpr (PIECE % 4 == 0) {
    UNROLL for (u32 c = 0; c < PIECE; c += 4) store4(out, (at + c) / 4, f32x4{v[c], v[c + 1], v[c + 2], v[c + 3]});
  } else if constexpr (PIECE == 2) {
    store2(out, at / 2, v[0], v[1]);
  } else {
    UNROLL for (u32 c = 0; c < PIECE; c++) store(out, at + c, v[c]);
  }
}

// Some queries of a wave on their way into local memory; a lane has 4 dimensions of each 128 of a row.
template <class X, class Shape, u32 D>
struct LoadedQueries {
  static constexpr u32 OF_WAVE = Shape::ROWS / ATTENTION_WAVES, TOGETHER = OF_WAVE < 4 ? OF_WAVE : 4;
  static constexpr u32 CHUNKS = (D + 127) / 128;
  f32x4 v[TOGETHER][CHUNKS];

  DEVICE u32 dimension(u32 chunk) { return 128 * chunk + 4 * lane_id(); }
  // Rows `from` on. No branches: one load does not wait for another.
  DEVICE LoadedQueries of(const GLOBAL X* q, const AttentionShape& s, const FlashRows& rows, u32 from) {
    LoadedQueries loaded;
    UNROLL for (u32 r = 0; r < TOGETHER; r++) {
      const u64 at = rows.inside(from + r) ? rows.row(s, from + r) * s.head_dim : 0;
      UNROLL for (u32 c = 0; c < CHUNKS; c++) {
        loaded.v[r][c] = load4(q, (at + smaller(dimension(c), s.head_dim - 4)) / 4);
      }
    }
    UNROLL for (u32 r = 0; r < TOGETHER; r++) {
      UNROLL for (u32 c = 0; c < CHUNKS; c++) {
        const bool there = rows.inside(from + r) && dimension(c) < s.head_dim;
        loaded.v[r][c] = there ? loaded.v[r][c] : (f32x4)0.0f;
      }
    }
    return loaded;
  }
};
// Queries into local memory as factors of M, each row times a power of two that makes its largest about 1. first: those of
// the wave's first rows.
template <class X, class T, class Shape, class Tiles, u32 D>
DEVICE void prepare_queries(const GLOBAL X* q, const AttentionShape& s, const FlashRows& rows,
                            const LoadedQueries<X, Shape, D>& first) {
  using M = typename Multiplied<T>::Type;
  using Loaded = LoadedQueries<X, Shape, D>;
  const u32 lane = lane_id(), begin = wave_id() * Loaded::OF_WAVE;
  Loaded own = first;
  for (u32 from = begin;;) {
    UNROLL for (u32 r = 0; r < Loaded::TOGETHER; r++) {
      const u32 i = from + r;
      f32 most = 0.0f;
      UNROLL for (u32 c = 0; c < Loaded::CHUNKS; c++) {
        UNROLL for (u32 e = 0; e < 4; e++) most = larger(most, __builtin_fabsf(own.v[r][c][e]));
      }
      const u32 exponent = __builtin_bit_cast(u32, maximum_over_wave(most)) >> 23;
      const u32 clipped = exponent < 1 ? 1 : smaller(exponent, 253u);
      const f32 down = __builtin_bit_cast(f32, (254u - clipped) << 23), up = __builtin_bit_cast(f32, clipped << 23);
      LOCAL u32* to = (LOCAL u32*)Tiles::q + (i / Shape::QUERIES * 16 + i % Shape::QUERIES) * (Shape::STRIDE / 2);
      UNROLL for (u32 c = 0; c < Loaded::CHUNKS; c++) {
        const u32 d = Loaded::dimension(c);
        if (128 * c + 128 > D && d >= D) break;
        UNROLL for (u32 e = 0; e < 4; e += 2) {
          const f32 a = own.v[r][c][e] * down, b = own.v[r][c][e + 1] * down;
          const u32 pair = pair_of<M>(a, b), at = place_of<T>(d + e) / 2;
          to[at] = pair;
          if constexpr (Shape::TERMS == 2) {
            to[at + 8 * (Shape::STRIDE / 2)] =
                pair_of<M>(a - number_of<M>((u16)pair), b - number_of<M>((u16)(pair >> 16)));
          }
        }
      }
      if (lane == 0) Tiles::factor[i] = up * s.scale * Multiplied<T>::UNIT * (s.softcap == 0.0f ? LOG2_E : 1.0f);
    }
    from += Loaded::TOGETHER;
    if (from >= begin + Loaded::OF_WAVE) break;
    own = Loaded::of(q, s, rows, from);
  }
}
