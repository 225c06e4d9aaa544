// Attention on the matrix units with keys and values on their way through local memory: NVIDIA's GPUs, and the CPU for
// tests. A ring of stages, each a tile of keys and their values, is filled by asynchronous copies of 16 bytes, which need no
// registers; factors are read from it as the matrix units have them. With few rows a wave has tiles and a ring of its own,
// and waits for nobody; with many, or wide heads, all waves of a workgroup share each tile, so that it is read once.
#pragma once

#include "async_copy.h"
#include "flash_sums.h"

template <class X, class T, u32 D, u32 DV, u32 MOST_BLOCKS, u32 MOST_PART>
struct FlashStages {
  using Shape = FlashShape<X, T, D, DV, MOST_BLOCKS, MOST_PART>;
  static constexpr bool FEW = Shape::FEW, WIDE = D > 128, ALONE = FEW && Shape::PARTS == 1;
  static constexpr u32 TILES = (ALONE ? 32 * D * sizeof(T) <= 4096 : !FEW && !WIDE) ? 2 : 1;  // of 16 keys of a wave
  static constexpr u32 KEYS = FEW && !ALONE ? 16 * Shape::KEY_WAVES : 16 * TILES;             // of a tile
  static constexpr u32 TEAM = ALONE ? 1 : ATTENTION_WAVES;                                    // waves that share one
  // Rows in different banks: MatrixRows.
  static constexpr bool TWISTED = D * sizeof(T) % 128 == 0 && Shape::PART * sizeof(T) % 128 == 0;
  static constexpr u32 APART = TWISTED ? 0 : 16, KEY_STRIDE = D * sizeof(T) + APART, VALUE_STRIDE = DV * sizeof(T) + APART;

  // same: values are what keys begin with.
  static constexpr u32 bytes(bool same) { return KEYS * (KEY_STRIDE + (same ? 0 : VALUE_STRIDE)); }
  static constexpr u32 fitting(bool same) { return Shape::RING / (ATTENTION_WAVES / TEAM * bytes(same)); }
  static constexpr u32 stages(bool same) { return fitting(same) < 4 ? fitting(same) : 4; }
  static_assert(fitting(false) >= 1);
};

// Lanes that copy a row of so many pieces of 16 bytes, of `rows` of a wave.
constexpr u32 lanes_of_row(u32 pieces, u32 rows) {
  u32 lanes = 1;
  while (lanes < WAVE && (lanes < pieces || WAVE / lanes > rows)) lanes *= 2;
  return lanes;
}

template <class X, class T, u32 D, u32 DV, u32 MOST_BLOCKS, u32 MOST_PART, bool SPLIT, class Y>
struct FlashRing : FlashSums<X, T, D, DV, MOST_BLOCKS, MOST_PART, SPLIT, Y,
                             FlashStages<X, T, D, DV, MOST_BLOCKS, MOST_PART>::TILES> {
  using Stages = FlashStages<X, T, D, DV, MOST_BLOCKS, MOST_PART>;
  static constexpr u32 TILES = Stages::TILES, KEYS = Stages::KEYS;
  using Sums = FlashSums<X, T, D, DV, MOST_BLOCKS, MOST_PART, SPLIT, Y, TILES>;
  using typename Sums::M;
  using typename Sums::Own;
  using typename Sums::Shape;
  using typename Sums::Tiles;
  using typename Sums::Values;
  static constexpr u32 BLOCKS = Shape::BLOCKS;
  static constexpr bool KEEP = !Stages::WIDE && D * BLOCKS <= 128;  // queries in registers
  using Queries = LoadedQueries<X, Shape, D>;
  using KeyRows = MatrixRows<true, Stages::TWISTED>;
  using ValueRows = MatrixRows<false, Stages::TWISTED>;
  static constexpr bool TAKES_TURNS = Shape::FEW && !Stages::ALONE;  // the waves at the keys of a tile

  Operand kept_q[KEEP ? BLOCKS * D / 16 : 1];

  // Where a wave copies from, and which part of a workgroup's work it has.
  struct Place {
    const GLOBAL u8 *key_pool, *value_pool;
    PagedRows paged;
    FlashRows rows;
    const GLOBAL i32* positions;
    bool holes;  // whether there may be positions that no row sees among those of rows
    i32 begin;
    u32 key_wave, row_wave, part;
    LOCAL u8* ring;
  };

  DEVICE void meet_team() {
    if constexpr (Stages::TEAM == 1) wave_meets();
    else barrier();
  }
  // A position's row of the pools, whose `entry` of the table is known, with the top bit where nobody sees it: what is there may be anything, and 0 * NaN is NaN.
  DEVICE u32 flagged_row(const Place& place, i32 position, i32 entry, const AttentionShape& s) {
    bool seen = position <= place.paged.end;
    if (place.holes) seen = seen && place.rows.template see<Shape::ROWS>(place.positions, position, s);
    return place.paged.row(position, entry) | (seen ? 0u : 0x80000000u);
  }
  // Piece `column` of a row that has `bytes`; zero where nothing is, and unless `there`. key: of the tile.
  DEVICE void copy_piece(LOCAL u8* to, u32 key, const GLOBAL u8* row, u32 column, u32 bytes, bool there, bool aligned) {
    const GLOBAL u8* from = row + 16 * column;
    to += 16 * (Stages::TWISTED ? column ^ key % 8 : column);
    if (sizeof(T) > 1 || aligned) {
      copy_if_async((LOCAL u32x4*)to, (const GLOBAL u32x4*)from, there && 16 * column < bytes);
    } else {
      UNROLL for (u32 h = 0; h < 16; h += 8) {
        copy_if_async((LOCAL u32x2*)(to + h), (const GLOBAL u32x2*)(from + h), there && 16 * column + h < bytes);
      }
    }
  }
  // The wave's share of a tile; lane l has the `flagged_row` of key l % KEYS.
  template <bool SAME>
  DEVICE void ask(LOCAL u8* stage, const Place& place, u32 row, const AttentionShape& s) {
    constexpr u32 PIECES = D * sizeof(T) / 16, VALUE_PIECES = SAME ? 0 : DV * sizeof(T) / 16;
    constexpr u32 ROWS = KEYS / Stages::TEAM, LANES = lanes_of_row(PIECES, ROWS), AT_ONCE = WAVE / LANES;
    const u32 lane = lane_id(), from = Stages::TEAM == 1 ? 0 : wave_id() * ROWS, width = s.kv_heads * s.head_dim * sizeof(T);
    constexpr u32 COLUMNS = (PIECES + LANES - 1) / LANES;
    const bool aligned = s.head_dim % 16 == 0;
    LOCAL u8* values = stage + KEYS * Stages::KEY_STRIDE;
    UNROLL for (u32 i = 0; i < ROWS; i += AT_ONCE) {
      const u32 key = from + i + lane / LANES, flagged = shuffle_bits(row, key);
      const bool there = (i32)flagged >= 0;
      const u64 at = (u64)(flagged & 0x7fffffffu) * width;
      UNROLL for (u32 c = 0; c < COLUMNS; c++) {
        const u32 column = c * LANES + lane % LANES;
        if (c * LANES + LANES <= PIECES || column < PIECES) {
          copy_piece(stage + key * Stages::KEY_STRIDE, key, place.key_pool + at, column, s.head_dim * sizeof(T), there,
                     aligned);
        }
        if (c * LANES + LANES <= VALUE_PIECES || column < VALUE_PIECES) {
          copy_piece(values + key * Stages::VALUE_STRIDE, key, place.value_pool + at, column, s.value_dim * sizeof(T), there,
                     aligned);
        }
      }
    }
  }

  __attribute__((always_inline)) void score_slice(Tile (&scores)[TILES][BLOCKS], const LOCAL u16* queries,
                                                  const KeyRows& keys, u32 j) {
    Operand x[TILES][2];
    UNROLL for (u32 u = 0; u < TILES; u++) {
      key_operands<T>(keys, 16 * u * Stages::KEY_STRIDE + 32 * j * sizeof(T), x[u]);
    }
    UNROLL for (u32 h = 0; h < 2; h++) {
      UNROLL for (u32 b = 0; b < BLOCKS; b++) {
        const Operand query = KEEP ? kept_q[KEEP ? b * (D / 16) + 2 * j + h : 0]
                                  : load_rows(queries + 16 * b * Shape::STRIDE + 32 * j + 16 * h, Shape::STRIDE);
        UNROLL for (u32 u = 0; u < TILES; u++) score<M>(query, x[u][h], scores[u][b]);
      }
    }
  }

  __attribute__((always_inline)) void mix_values(const Operand (&weights)[TILES][BLOCKS],
                                                 const f32 (&kept)[BLOCKS][Own::QUERIES], const ValueRows& values,
                                                 u32 stride) {
    UNROLL for (u32 d = 0; d < Shape::PART; d += 32) {
      if (Stages::WIDE) wave_meets();  // keeps the compiler from loading all values first, and running out of registers
      Operand x[TILES][2];
      UNROLL for (u32 u = 0; u < TILES; u++) {
        value_operands<T>(values, 16 * u * stride + d * sizeof(T), x[u]);
      }
      UNROLL for (u32 h = 0; h < 2; h++) {
        Tile sums[BLOCKS] = {};
        UNROLL for (u32 u = 0; u < TILES; u++) {
          UNROLL for (u32 b = 0; b < BLOCKS; b++) mix<M>(weights[u][b], x[u][h], sums[b]);
        }
        this->add(d / Values::GROUP, d / 16 % Values::TILES + h, sums, kept);
      }
    }
  }

  // The keys of a tile that are this wave's.
  template <bool SAME>
  __attribute__((always_inline)) void compute(const LOCAL u8* stage, const Place& place, i32 tile,
                                              const SeenPositions& seen, const AttentionShape& s) {
    constexpr u32 STRIDE = SAME ? Stages::KEY_STRIDE : Stages::VALUE_STRIDE;
    const u32 from = TAKES_TURNS ? 16 * place.key_wave : 0;
    tile += (i32)from;
    const i32 last = tile + (i32)(16 * TILES) - 1;
    if (tile > smaller(seen.end, place.paged.end) || last < seen.begin) return;
    const LOCAL u16* queries = (const LOCAL u16*)Tiles::q + place.row_wave * BLOCKS * 16 * Shape::STRIDE;
    const KeyRows keys = KeyRows::of(stage + from * Stages::KEY_STRIDE, Stages::KEY_STRIDE);
    const LOCAL u8* first_values = stage + (SAME ? 0 : KEYS * Stages::KEY_STRIDE) + from * STRIDE;
    const ValueRows values = ValueRows::of(first_values + place.part * Shape::PART * sizeof(T), STRIDE);
    Tile scores[TILES][BLOCKS] = {};
    if constexpr (Stages::WIDE) {
      // Two sums, so that a product does not wait for the last one.
      Tile others[TILES][BLOCKS] = {};
      _Pragma("unroll 3") for (u32 j = 0; j < D / 32 / 2 * 2; j += 2) {
        score_slice(scores, queries, keys, j);
        score_slice(others, queries, keys, j + 1);
      }
      if constexpr (D / 32 % 2) score_slice(scores, queries, keys, D / 32 - 1);
      UNROLL for (u32 u = 0; u < TILES; u++) {
        UNROLL for (u32 b = 0; b < BLOCKS; b++) {
          UNROLL for (u32 i = 0; i < 8; i++) scores[u][b].of[i] += others[u][b].of[i];
        }
      }
    } else {
      UNROLL for (u32 j = 0; j < D / 32; j++) score_slice(scores, queries, keys, j);
    }
    Operand weights[TILES][BLOCKS];
    f32 kept[BLOCKS][Own::QUERIES];
    if (tile < seen.highest || last > smaller(seen.lowest, place.paged.end)) {
      this->template weigh_all<true>(scores, tile, s, weights, kept);
    } else {
      this->template weigh_all<false>(scores, tile, s, weights, kept);
    }
    mix_values(weights, kept, values, STRIDE);
  }

  template <bool SAME>
  __attribute__((always_inline)) void go_over(const GLOBAL X* q, const AttentionShape& s, const Place& place,
                                              const Queries& queries) {
    // A wave that meets nobody fills a stage when it is done with it, others the one before: that takes one meeting a tile.
    constexpr bool AT_ONCE = Stages::ALONE || Stages::stages(SAME) == 1;
    constexpr u32 STAGES = Stages::stages(SAME), STAGE = Stages::bytes(SAME), AHEAD = AT_ONCE ? STAGES : STAGES - 1;
    constexpr i32 STEP = (i32)(KEYS * (ATTENTION_WAVES / Stages::TEAM));
    const i32 in_tile = (i32)(lane_id() % KEYS), end = place.paged.end;
    i32 asked = place.begin;  // the tile to ask for next; a table is read long before what it says is used
    i32 entry[AHEAD + 1];
    UNROLL for (u32 i = 0; i <= AHEAD; i++) entry[i] = place.paged.entry(asked + (i32)i * STEP + in_tile);
    const auto fill = [&](u32 stage, i32 of_table) __attribute__((always_inline)) {
      if (asked <= end) ask<SAME>(place.ring + stage * STAGE, place, flagged_row(place, asked + in_tile, of_table, s), s);
      end_group();
      asked += STEP;
    };
    UNROLL for (u32 i = 0; i < AHEAD; i++) fill(i, entry[i]);
    i32 next = entry[AHEAD];
    u32 slot = 0, free = AHEAD % STAGES;
    prepare_queries<X, T, Shape, Tiles, D>(q, s, place.rows, queries);
    barrier();
    const SeenPositions seen = this->start(place.row_wave);
    keep_queries(place.row_wave);
    const auto refill = [&]() __attribute__((always_inline)) {
      fill(free, next);
      next = place.paged.entry(asked + in_tile);
      free = free + 1 == STAGES ? 0 : free + 1;
    };
    for (i32 tile = place.begin; tile <= end; tile += STEP) {
      wait_for_groups<AHEAD - 1>();
      meet_team();
      if constexpr (!AT_ONCE) refill();
      compute<SAME>(place.ring + slot * STAGE, place, tile, seen, s);
      if constexpr (AT_ONCE) {
        meet_team();
        refill();
      }
      slot = slot + 1 == STAGES ? 0 : slot + 1;
    }
  }
  __attribute__((always_inline)) void keep_queries(u32 row_wave) {
    if constexpr (KEEP) {
      const LOCAL u16* tile = (const LOCAL u16*)Tiles::q + row_wave * BLOCKS * 16 * Shape::STRIDE;
      UNROLL for (u32 b = 0; b < BLOCKS; b++) {
        UNROLL for (u32 j = 0; j < D / 16; j++) {
          kept_q[b * (D / 16) + j] = load_rows(tile + 16 * b * Shape::STRIDE + 16 * j, Shape::STRIDE);
        }
      }
    }
  }

  __attribute__((always_inline)) void run(const GLOBAL X* q, const GLOBAL T* k_pool, const GLOBAL T* v_pool,
                                          const GLOBAL i32* block_table, const GLOBAL i32* positions,
                                          const GLOBAL f32* sinks, GLOBAL Y* out, GLOBAL f32* peaks,
                                          const AttentionShape s) {
    const FlashRows rows = FlashRows::of<Shape::ROWS>(s);
    const u32 wave = wave_id();
    const Queries queries = Queries::of(q, s, rows, wave * Queries::OF_WAVE);  // on their way while positions are read
    const SeenPositions all = rows.template seen<Shape::ROWS, Tiles>(positions, s);
    const SplitPositions split = SplitPositions::of<SPLIT>(all, rows.split, s.splits);
    Place place;
    place.rows = rows;
    place.positions = positions;
    place.holes = all.may_have_holes((i32)s.window);
    place.part = wave % Shape::PARTS;
    place.key_wave = Shape::FEW ? wave / Shape::PARTS : 0;
    place.row_wave = Shape::FEW ? 0 : wave / Shape::PARTS;
    place.paged = PagedRows::of(block_table, rows, s, split.end);
    place.begin = split.begin + (Stages::ALONE ? (i32)(place.key_wave * KEYS) : 0);
    place.ring = (LOCAL u8*)launch_local<Shape::RING>();
    const u64 at = pool_offset(rows, s);
    place.key_pool = (const GLOBAL u8*)(k_pool + at);
    place.value_pool = (const GLOBAL u8*)(v_pool + at);
    constexpr u32 OF_TEAM = Stages::stages(false) * Stages::bytes(false);
    if constexpr (Stages::ALONE) place.ring += wave * OF_TEAM;
    if (!split.any()) {
      this->nothing();
    } else if (DV < D && k_pool == v_pool && !Stages::ALONE) {
      if constexpr (DV < D && !Stages::ALONE) go_over<true>(q, s, place, queries);
    } else {
      go_over<false>(q, s, place, queries);
    }
    this->end(sinks, out, peaks, rows, s, place.key_wave, place.row_wave, place.part, split.any());
  }
};
