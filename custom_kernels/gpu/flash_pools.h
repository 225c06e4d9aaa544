// Attention on the matrix units with keys and values straight from the pools into the factors of a wave: AMD's GPUs.
#pragma once

#include "flash_sums.h"

template <class X, class T, u32 D, u32 DV, u32 MOST_BLOCKS, u32 MOST_PART, bool SPLIT, class Y>
struct FlashPools : FlashSums<X, T, D, DV, MOST_BLOCKS, MOST_PART, SPLIT, Y, 1> {
  using Sums = FlashSums<X, T, D, DV, MOST_BLOCKS, MOST_PART, SPLIT, Y, 1>;
  using typename Sums::M;
  using typename Sums::Own;
  using typename Sums::Shape;
  using typename Sums::Tiles;
  using typename Sums::Values;
  static constexpr u32 BLOCKS = Shape::BLOCKS, SLICES = D / 32, AT_ONCE = part_of(SLICES, 2);

  // AT_ONCE slices of 32 dimensions of 16 keys.
  __attribute__((always_inline)) void score_keys(Tile (&scores)[1][BLOCKS], const LOCAL u16* tile, const GLOBAL T* pool,
                                                 u32 row, const AttentionShape& s, u32 slice) {
    const u32 width = s.kv_heads * s.head_dim;
    CachePiece<T, 8> keys[AT_ONCE][KEY_PIECES];
    UNROLL for (u32 p = 0; p < KEY_PIECES; p++) {
      const GLOBAL T* key = pool + (u64)row * width;
      UNROLL for (u32 j = 0; j < AT_ONCE; j++) {
        keys[j][p] = CachePiece<T, 8>::load(key + smaller(32 * (slice + j) + dimension_of_piece(p), s.head_dim - 8));
      }
    }
    UNROLL for (u32 j = 0; j < AT_ONCE; j++) {
      CacheHalves<8> x[KEY_PIECES];
      UNROLL for (u32 p = 0; p < KEY_PIECES; p++) x[p] = cache_halves(keys[j][p]);
      UNROLL for (u32 h = 0; h < 2; h++) {
        UNROLL for (u32 b = 0; b < BLOCKS; b++) {
          const u32 step = 32 * (slice + j) + 16 * h;
          score<M>(load_rows(tile + 16 * b * Shape::STRIDE + step, Shape::STRIDE), key_factor(x, h), scores[0][b]);
        }
      }
    }
  }

  // A tile of 16 keys, whose values are asked for here.
  template <bool MASKED>
  __attribute__((always_inline)) void take(const Tile (&scores)[1][BLOCKS], i32 tile, const GLOBAL T* pool, u32 row,
                                           const AttentionShape& s, u32 part) {
    Operand weights[1][BLOCKS];
    f32 kept[BLOCKS][Own::QUERIES];
    const u32 seen = this->template weigh_all<MASKED>(scores, tile, s, weights, kept);
    const u32 width = s.kv_heads * s.head_dim;
    UNROLL for (u32 g = 0; g < Shape::GROUPS; g++) {
      const u32 d = smaller(part * Shape::PART + g * Values::GROUP + Values::dimension(), s.value_dim - Values::PIECE);
      CachePiece<T, Values::PIECE> values[VALUE_KEYS];
      UNROLL for (u32 k = 0; k < VALUE_KEYS; k++) {
        values[k] = CachePiece<T, Values::PIECE>::load(pool + (u64)Values::row(row, k) * width + d);
      }
      CacheHalves<Values::PIECE> x[VALUE_KEYS];
      UNROLL for (u32 k = 0; k < VALUE_KEYS; k++) {
        // What nobody sees may hold anything, and 0 * NaN is NaN.
        if constexpr (MASKED) values[k].clear_unless(seen >> Values::key(k) & 1);
        x[k] = cache_halves(values[k]);
      }
      UNROLL for (u32 t = 0; t < Values::TILES; t++) {
        Tile sums[BLOCKS] = {};
        const Operand value = Values::factor(x, t);
        UNROLL for (u32 b = 0; b < BLOCKS; b++) mix<M>(weights[0][b], value, sums[b]);
        this->add(g, t, sums, kept);
      }
    }
  }

  __attribute__((always_inline)) void go_over(const GLOBAL T* key_pool, const GLOBAL T* value_pool, const PagedRows paged,
                                              i32 begin, const SeenPositions& seen, u32 key_wave, u32 row_wave, u32 part,
                                              const AttentionShape& s) {
    constexpr i32 STEP = 16 * Shape::KEY_WAVES;
    i32 tile = begin + (i32)key_wave * 16;
    if (tile > paged.end) return;
    const i32 in_tile = (i32)(lane_id() % 16);
    const LOCAL u16* queries = (const LOCAL u16*)Tiles::q + row_wave * BLOCKS * 16 * Shape::STRIDE;
    // Of this step and the next one: a table is read long before what it says is used.
    u32 row = paged.of(tile + in_tile), next = paged.of(tile + STEP + in_tile);
    for (; tile <= paged.end; tile += STEP) {
      const u32 after = paged.of(tile + 2 * STEP + in_tile);
      Tile scores[1][BLOCKS] = {};
      _Pragma("unroll 1") for (u32 slice = 0; slice < SLICES; slice += AT_ONCE) {
        score_keys(scores, queries, key_pool, row, s, slice);
      }
      if (tile < seen.highest || tile + 15 > smaller(seen.lowest, paged.end)) {
        take<true>(scores, tile, value_pool, row, s, part);
      } else {
        take<false>(scores, tile, value_pool, row, s, part);
      }
      row = next;
      next = after;
    }
  }

  __attribute__((always_inline)) void run(const GLOBAL X* q, const GLOBAL T* k_pool, const GLOBAL T* v_pool,
                                          const GLOBAL i32* block_table, const GLOBAL i32* positions,
                                          const GLOBAL f32* sinks, GLOBAL Y* out, GLOBAL f32* peaks,
                                          const AttentionShape s) {
    const FlashRows rows = FlashRows::of<Shape::ROWS>(s);
    using Queries = LoadedQueries<X, Shape, D>;
    const Queries queries = Queries::of(q, s, rows, wave_id() * Queries::OF_WAVE);
    rows.template seen<Shape::ROWS, Tiles>(positions, s);
    prepare_queries<X, T, Shape, Tiles, D>(q, s, rows, queries);
    barrier();
    const u32 wave = wave_id(), part = wave % Shape::PARTS;
    const u32 key_wave = Shape::FEW ? wave / Shape::PARTS : 0, row_wave = Shape::FEW ? 0 : wave / Shape::PARTS;
    const SeenPositions seen = this->start(row_wave);
    const SplitPositions split = SplitPositions::of<SPLIT>(seen, rows.split, s.splits);
    if (split.any()) {
      const PagedRows paged = PagedRows::of(block_table, rows, s, split.end);
      const u64 at = pool_offset(rows, s);
      go_over(k_pool + at, v_pool + at, paged, split.begin, seen, key_wave, row_wave, part, s);
    }
    this->end(sinks, out, peaks, rows, s, key_wave, row_wave, part, split.any());
  }
};
