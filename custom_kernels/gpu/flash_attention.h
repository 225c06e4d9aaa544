// Attention of new tokens over the paged KV pools on the matrix units: see custom_kernels/ops/attention.py for what it
// computes, and attention_fragments.h for which lane holds what.
//
// The query heads of a KV head, of all tokens of a sequence, are rows of one matrix. A wave keeps BLOCKS factors of them and
// goes over the keys 16 at a time, straight from the pools: no score is stored. With few rows (FEW) the waves of a workgroup
// take turns at the keys and meet at the end; with many, each has rows of its own, and finds in the cache what the others
// ask for. Values wider than MOST_PART are dealt to two or four waves (PARTS). Of few rows, and of float32 ones, queries and weights go in as
// two terms of 16 bits (TERMS), so 22 bits of them with f16 and fp8 pools and 16 with bf16 ones. Softmax is online (Milakov and Gimelshein,
// arXiv:1805.02867) in powers of two; each tile's mix is a sum of its own, added in float32.
//
// `splits` workgroups share a sequence's positions: `split_share` each, so that what a row sums in which order depends on
// its positions alone. A workgroup past the end says so and is done; `attention_combine` joins the others.
#pragma once

#include "flash_rows.h"

template <class X, class T, u32 D, u32 DV, u32 MOST_BLOCKS, u32 MOST_PART, bool SPLIT, class Y>
struct FlashAttention {
  using Shape = FlashShape<X, D, DV, MOST_BLOCKS, MOST_PART>;
  using Tiles = FlashTiles<X, D, DV, MOST_BLOCKS, MOST_PART>;
  using M = typename Multiplied<T>::Type;
  using Own = InLane<Shape::TERMS>;
  using Values = typename Shape::Values;
  static constexpr u32 BLOCKS = Shape::BLOCKS, GROUPS = Shape::GROUPS, SLICES = D / 32, COUNT = Own::COUNT;
  static constexpr bool AHEAD = D <= LARGEST_AHEAD && DV <= LARGEST_AHEAD, TWO = AHEAD && sizeof(T) == 1;
  static constexpr bool EARLY = Shape::PART <= LARGEST_EARLY;  // values are asked for before the scores are computed
  static constexpr u32 AT_ONCE = AHEAD ? SLICES : part_of(SLICES, MOST_AT_ONCE);

  static constexpr bool KEEP = AHEAD && !TWO && D * BLOCKS <= LARGEST_KEPT;  // queries in registers
  static constexpr u32 TILES = TWO ? 2 : 1;                                  // of 16 keys at once

  Factor kept_q[KEEP ? BLOCKS * D / 16 : 1];

  using Keys = CachePiece<T, 8>[AT_ONCE][KEY_PIECES];
  using Mixed = CachePiece<T, Values::PIECE>[AHEAD ? GROUPS : 1][VALUE_KEYS];
  Keys keys[TILES];
  Mixed values[TILES];
  f32 mixed[BLOCKS][GROUPS][Values::TILES][COUNT];
  f32 peak[BLOCKS][Own::QUERIES], total[BLOCKS][Own::QUERIES], factor[BLOCKS][Own::QUERIES];
  i32 first[BLOCKS][Own::QUERIES], last[BLOCKS][Own::QUERIES];  // positions that a query sees; none when last < first

  // AT_ONCE slices of 32 dimensions of 16 keys.
  __attribute__((always_inline)) static void ask_keys(Keys& keys, const GLOBAL T* pool, u32 row, const AttentionShape& s,
                                                      u32 slice) {
    const u32 width = s.kv_heads * s.head_dim;
    UNROLL for (u32 p = 0; p < KEY_PIECES; p++) {
      const GLOBAL T* key = pool + (u64)row_of_piece(row, p) * width;
      UNROLL for (u32 j = 0; j < AT_ONCE; j++) {
        keys[j][p] = CachePiece<T, 8>::load(key + smaller(32 * (slice + j) + dimension_of_piece(p), s.head_dim - 8));
      }
    }
  }
  __attribute__((always_inline)) static void ask_values(Mixed& values, const GLOBAL T* pool, u32 row,
                                                        const AttentionShape& s, u32 g, u32 part) {
    const u32 width = s.kv_heads * s.head_dim;
    const u32 d = smaller(part * Shape::PART + g * Values::GROUP + Values::dimension(), s.value_dim - Values::PIECE);
    UNROLL for (u32 k = 0; k < VALUE_KEYS; k++) {
      values[AHEAD ? g : 0][k] = CachePiece<T, Values::PIECE>::load(pool + (u64)Values::row(row, k) * width + d);
    }
  }

  __attribute__((always_inline)) void score_keys(Tile (&scores)[TILES][BLOCKS], const LOCAL u16* tile, u32 slice) {
    UNROLL for (u32 j = 0; j < AT_ONCE; j++) {
      CacheHalves<8> x[TILES][KEY_PIECES];
      UNROLL for (u32 u = 0; u < TILES; u++) {
        UNROLL for (u32 p = 0; p < KEY_PIECES; p++) x[u][p] = cache_halves(keys[u][j][p]);
      }
      UNROLL for (u32 h = 0; h < 2; h++) {
        UNROLL for (u32 b = 0; b < BLOCKS; b++) {
          const u32 step = 32 * (slice + j) + 16 * h;
          const Factor query = KEEP ? kept_q[KEEP ? b * (D / 16) + 2 * j + h : 0]
                                    : load_factor(tile + 16 * b * Shape::STRIDE + step, Shape::STRIDE);
          UNROLL for (u32 u = 0; u < TILES; u++) score<M>(query, key_factor(x[u], h), scores[u][b]);
        }
      }
    }
  }

  // Scores to weights, and what the older sums must be multiplied with; returns which keys are seen, a bit each.
  template <bool MASKED>
  __attribute__((always_inline)) u32 weigh(const Tile (&scores)[TILES][BLOCKS], u32 b, i32 tile, const AttentionShape& s,
                                           Factor (&weights)[TILES][BLOCKS], f32 (&kept)[Own::QUERIES]) {
    f32 v[TILES][COUNT], most[Own::QUERIES];
    u32 seen = 0;
    UNROLL for (u32 r = 0; r < Own::QUERIES; r++) most[r] = NOTHING;
    UNROLL for (u32 u = 0; u < TILES; u++) {
      UNROLL for (u32 n = 0; n < COUNT; n++) {
        const u32 r = Own::local(n), key = 16 * u + Own::key(n);
        f32 score = Own::score(scores[u][b], n) * factor[b][r];
        if (s.softcap != 0.0f) score = capped(score, s.softcap) * LOG2_E;
        if constexpr (MASKED) {
          const bool visible = tile + (i32)key >= first[b][r] && tile + (i32)key <= last[b][r];
          score = visible ? score : NOTHING;
          seen |= visible ? 1u << key : 0u;
        }
        v[u][n] = score;
        most[r] = larger(most[r], score);
      }
    }
    f32 base[Own::QUERIES];
    UNROLL for (u32 r = 0; r < Own::QUERIES; r++) {
      const f32 higher = larger(peak[b][r], largest_of_keys(most[r]));
      kept[r] = exp2_fast(peak[b][r] - higher);
      peak[b][r] = higher;
      base[r] = higher - WEIGHT_SHIFT<typename Multiplied<T>::Type>;
      total[b][r] *= kept[r];
    }
    UNROLL for (u32 u = 0; u < TILES; u++) {
      UNROLL for (u32 n = 0; n < COUNT; n++) {
        const u32 r = Own::local(n);
        v[u][n] = MASKED && v[u][n] == NOTHING ? 0.0f : exp2_fast(v[u][n] - base[r]);
        total[b][r] += v[u][n];
      }
      weights[u][b] = Own::template weights<M>(v[u]);
    }
    return seen;
  }

  // Tiles of 16 keys, whose values are there or, where they are too wide for that, are asked for here.
  template <bool MASKED>
  __attribute__((always_inline)) void take(const Tile (&scores)[TILES][BLOCKS], i32 tile, const GLOBAL T* value_pool,
                                           u32 row, const AttentionShape& s, u32 part) {
    Factor weights[TILES][BLOCKS];
    f32 kept[BLOCKS][Own::QUERIES];
    u32 seen = 0;
    UNROLL for (u32 b = 0; b < BLOCKS; b++) seen |= weigh<MASKED>(scores, b, tile, s, weights, kept[b]);
    if constexpr (MASKED) seen = any_of_wave(seen);
    UNROLL for (u32 g = 0; g < GROUPS; g++) {
      if constexpr (!AHEAD) {
        if (g > 0 || !EARLY) ask_values(values[0], value_pool, row, s, g, part);
      }
      CacheHalves<Values::PIECE> x[TILES][VALUE_KEYS];
      UNROLL for (u32 u = 0; u < TILES; u++) {
        UNROLL for (u32 k = 0; k < VALUE_KEYS; k++) {
          auto& piece = values[u][AHEAD ? g : 0][k];
          // What nobody sees may hold anything, and 0 * NaN is NaN.
          if constexpr (MASKED) piece.clear_unless(seen >> (16 * u + Values::key(k)) & 1);
          x[u][k] = cache_halves(piece);
        }
      }
      UNROLL for (u32 t = 0; t < Values::TILES; t++) {
        Tile sums[BLOCKS] = {};
        UNROLL for (u32 u = 0; u < TILES; u++) {
          const Factor value = Values::factor(x[u], t);
          UNROLL for (u32 b = 0; b < BLOCKS; b++) mix<M>(weights[u][b], value, sums[b]);
        }
        UNROLL for (u32 b = 0; b < BLOCKS; b++) {
          UNROLL for (u32 n = 0; n < COUNT; n++) {
            f32& of = mixed[b][g][t][n];
            of = multiply_add(of, kept[b][Own::local(n)], Own::mixed(sums[b], n));
          }
        }
      }
    }
  }

  __attribute__((always_inline)) void run(const GLOBAL X* q, const GLOBAL T* k_pool, const GLOBAL T* v_pool,
                                          const GLOBAL i32* block_table, const GLOBAL i32* positions,
                                          const GLOBAL f32* sinks, GLOBAL Y* out, GLOBAL f32* peaks,
                                          const AttentionShape s) {
    const FlashRows rows = FlashRows::of<Shape::ROWS>(s);
    prepare_queries<X, T, Shape, Tiles, SLICES>(q, positions, s, rows);
    barrier();
    const u32 wave = wave_id(), part = wave % Shape::PARTS;
    const u32 key_wave = Shape::FEW ? wave / Shape::PARTS : 0, row_wave = Shape::FEW ? 0 : wave / Shape::PARTS;
    i32 end = -1, begin = -0x7fffffff, lowest = -0x7fffffff, highest = 0;  // begin and lowest are negated
    UNROLL for (u32 b = 0; b < BLOCKS; b++) {
      UNROLL for (u32 r = 0; r < Own::QUERIES; r++) {
        const u32 i = row_wave * Shape::ROWS_OF_WAVE + b * Shape::QUERIES + Own::query(r);
        first[b][r] = Tiles::first[i];
        last[b][r] = Tiles::last[i];
        factor[b][r] = Tiles::factor[i];
        peak[b][r] = NOTHING;
        total[b][r] = 0.0f;
        if (last[b][r] >= first[b][r]) {
          end = larger(end, last[b][r]);
          begin = larger(begin, -first[b][r]);
          lowest = larger(lowest, -last[b][r]);
          highest = larger(highest, first[b][r]);
        }
      }
      UNROLL for (u32 g = 0; g < GROUPS; g++) {
        UNROLL for (u32 t = 0; t < Values::TILES; t++) {
          UNROLL for (u32 n = 0; n < COUNT; n++) mixed[b][g][t][n] = 0.0f;
        }
      }
    }
    end = largest_of_wave(end);
    begin = -largest_of_wave(begin);
    lowest = -largest_of_wave(lowest);
    highest = largest_of_wave(highest);
    if constexpr (SPLIT) {
      if (end >= begin) {
        const i32 share = split_share(end - begin + 1, s.splits);
        begin += (i32)rows.split * share;
        end = smaller(end, begin + share - 1);
      }
    }
    if (end >= begin) {
      if constexpr (KEEP) {
        const LOCAL u16* tile = (const LOCAL u16*)Tiles::q + row_wave * BLOCKS * 16 * Shape::STRIDE;
        UNROLL for (u32 b = 0; b < BLOCKS; b++) {
          UNROLL for (u32 j = 0; j < D / 16; j++) {
            kept_q[b * (D / 16) + j] = load_factor(tile + 16 * b * Shape::STRIDE + 16 * j, Shape::STRIDE);
          }
        }
      }
      const PagedRows paged = {block_table + (u64)rows.sequence * s.blocks, s.block_size,
                               31u - (u32)__builtin_clz(s.block_size), s.pool_rows, end};
      const u64 at = (u64)s.layer * s.pool_rows * (s.kv_heads * s.head_dim) + rows.kv_head * s.head_dim;
      go_over(k_pool + at, v_pool + at, paged, begin, lowest, highest, key_wave, row_wave, part, s);
    }
    UNROLL for (u32 b = 0; b < BLOCKS; b++) {
      UNROLL for (u32 r = 0; r < Own::QUERIES; r++) {
        // A tile that all others see whole is not masked for a row of padding.
        const bool sees = last[b][r] >= first[b][r];
        const f32 sum = sum_of_keys(total[b][r]);
        total[b][r] = sees ? sum : 0.0f;
        peak[b][r] = sees ? peak[b][r] : NOTHING;
      }
    }
    if constexpr (Shape::FEW) {
      meet(sinks, out, peaks, rows, s, key_wave, part, end >= begin);
    } else {
      finish(sinks, out, peaks, rows, s, row_wave, part, end >= begin);
    }
  }

  __attribute__((always_inline)) void go_over(const GLOBAL T* key_pool, const GLOBAL T* value_pool, const PagedRows paged,
                                              i32 begin, i32 lowest, i32 highest, u32 key_wave, u32 row_wave, u32 part,
                                              const AttentionShape& s) {
    constexpr i32 KEYS = 16 * TILES, STEP = KEYS * Shape::KEY_WAVES;
    i32 tile = begin + (i32)key_wave * KEYS;
    if (tile > paged.end) return;
    const i32 in_tile = (i32)(lane_id() % 16);
    const LOCAL u16* queries = (const LOCAL u16*)Tiles::q + row_wave * BLOCKS * 16 * Shape::STRIDE;
    u32 row[TILES], next[TILES];  // of this step and the next one: a table is read long before what it says is used
    UNROLL for (u32 u = 0; u < TILES; u++) {
      row[u] = paged.of(tile + (i32)u * 16 + in_tile);
      next[u] = paged.of(tile + STEP + (i32)u * 16 + in_tile);
      if constexpr (AHEAD) {
        ask_keys(keys[u], key_pool, row[u], s, 0);
        UNROLL for (u32 g = 0; g < GROUPS; g++) ask_values(values[u], value_pool, row[u], s, g, part);
      }
    }
    for (; tile <= paged.end; tile += STEP) {
      if constexpr (EARLY && !AHEAD) ask_values(values[0], value_pool, row[0], s, 0, part);
      u32 after[TILES];
      UNROLL for (u32 u = 0; u < TILES; u++) after[u] = paged.of(tile + 2 * STEP + (i32)u * 16 + in_tile);
      Tile scores[TILES][BLOCKS] = {};
      if constexpr (AHEAD) {
        score_keys(scores, queries, 0);
        UNROLL for (u32 u = 0; u < TILES; u++) ask_keys(keys[u], key_pool, next[u], s, 0);
      } else {
        _Pragma("unroll 1") for (u32 slice = 0; slice < SLICES; slice += AT_ONCE) {
          ask_keys(keys[0], key_pool, row[0], s, slice);
          score_keys(scores, queries, slice);
        }
      }
      if (tile < highest || tile + KEYS - 1 > smaller(lowest, paged.end)) {
        take<true>(scores, tile, value_pool, row[0], s, part);
      } else {
        take<false>(scores, tile, value_pool, row[0], s, part);
      }
      UNROLL for (u32 u = 0; u < TILES; u++) {
        row[u] = next[u];
        next[u] = after[u];
        if constexpr (AHEAD) {
          UNROLL for (u32 g = 0; g < GROUPS; g++) ask_values(values[u], value_pool, row[u], s, g, part);
        }
      }
    }
  }

  // The waves' results of the same rows, joined in local memory.
  __attribute__((always_inline)) void meet(const GLOBAL f32* sinks, GLOBAL Y* out, GLOBAL f32* peaks,
                                           const FlashRows& rows, const AttentionShape& s, u32 key_wave, u32 part,
                                           bool any) {
    constexpr u32 WIDTH = Values::GROUP;
    if (part == 0) {
      UNROLL for (u32 r = 0; r < Own::QUERIES; r++) {
        Tiles::peak[key_wave][Own::query(r)] = peak[0][r];
        Tiles::total[key_wave][Own::query(r)] = total[0][r];
      }
    }
    barrier();
    const u32 thread = thread_id();
    if constexpr (SPLIT) {
      if (thread < Shape::QUERIES && rows.inside(thread)) {
        f32 highest, sum;
        joined(thread, highest, sum);
        put_peak(peaks, rows.row(s, thread) * s.splits + rows.split, highest, sum);
      }
      if (!any) return;
    }
    UNROLL for (u32 r = 0; r < Own::QUERIES; r++) {
      f32 highest, sum;
      joined(Own::query(r), highest, sum);
      factor[0][r] = exp2_fast(peak[0][r] - highest);  // of this wave
    }
    const u32 wave = wave_id();
    UNROLL for (u32 g = 0; g < GROUPS; g++) {
      Values::template chunks<COUNT>(mixed[0][g], [&](u32 r, u32 d, const f32 (&v)[Values::PIECE])
                                                      __attribute__((always_inline)) {
        UNROLL for (u32 i = 0; i < Values::PIECE; i++) {
          const f32 value = Own::whole(v[i]) * factor[0][r];
          Tiles::mixed[(wave * Shape::QUERIES + Own::query(r)) * WIDTH + d + i] = value;
        }
      });
      barrier();
      for (u32 item = thread; item < Shape::PARTS * Shape::QUERIES * WIDTH; item += ATTENTION_THREADS) {
        const u32 of_part = item / (Shape::QUERIES * WIDTH), i = item / WIDTH % Shape::QUERIES;
        const u32 d = of_part * Shape::PART + g * WIDTH + item % WIDTH;
        f32 value = 0.0f;
        UNROLL for (u32 w = 0; w < Shape::KEY_WAVES; w++) {
          value += Tiles::mixed[((w * Shape::PARTS + of_part) * Shape::QUERIES + i) * WIDTH + item % WIDTH];
        }
        const bool there = g * WIDTH + item % WIDTH < Shape::PART && d < s.value_dim && rows.inside(i);
        if (!there) continue;
        f32 highest, sum;
        joined(i, highest, sum);
        const u64 row = rows.row(s, i) * s.splits + rows.split;
        const f32 weight = last_factor(sinks, rows, s, i, highest, sum);
        store(out, row * s.value_dim + d, sum > 0.0f || sum != sum ? value * weight : 0.0f);
      }
      barrier();
    }
  }

  // Peak and sum of row i of all waves.
  DEVICE void joined(u32 i, f32& highest, f32& sum) {
    highest = NOTHING;
    sum = 0.0f;
    UNROLL for (u32 w = 0; w < Shape::KEY_WAVES; w++) highest = larger(highest, Tiles::peak[w][i]);
    UNROLL for (u32 w = 0; w < Shape::KEY_WAVES; w++) {
      sum = multiply_add(Tiles::total[w][i], exp2_fast(Tiles::peak[w][i] - highest), sum);
    }
  }
  // What a mix is multiplied with at last: of a split, nothing but the unit.
  DEVICE f32 last_factor(const GLOBAL f32* sinks, const FlashRows& rows, const AttentionShape& s, u32 i, f32 highest,
                         f32 sum) {
    if constexpr (SPLIT) return Multiplied<T>::UNIT;
    const f32 before = highest - WEIGHT_SHIFT<typename Multiplied<T>::Type>;
    f32 base = before;
    if (s.has_sinks) join_sink(sinks[rows.head(i)], base, sum);
    return exp2_fast(before - base) * Multiplied<T>::UNIT / sum;
  }
  DEVICE void put_peak(GLOBAL f32* peaks, u64 row, f32 highest, f32 sum) {
    peaks[2 * row] = highest - WEIGHT_SHIFT<typename Multiplied<T>::Type>;
    peaks[2 * row + 1] = sum;
  }

  // The results of a wave that has rows of its own.
  __attribute__((always_inline)) void finish(const GLOBAL f32* sinks, GLOBAL Y* out, GLOBAL f32* peaks,
                                             const FlashRows& rows, const AttentionShape& s, u32 row_wave, u32 part,
                                             bool any) {
    UNROLL for (u32 b = 0; b < BLOCKS; b++) {
      const u32 block = row_wave * Shape::ROWS_OF_WAVE + b * Shape::QUERIES;
      UNROLL for (u32 r = 0; r < Own::QUERIES; r++) {
        const u32 i = block + Own::query(r);
        const f32 sum = total[b][r];
        if constexpr (SPLIT) {
          if (rows.inside(i)) put_peak(peaks, rows.row(s, i) * s.splits + rows.split, peak[b][r], sum);
        }
        factor[b][r] = rows.inside(i) ? last_factor(sinks, rows, s, i, peak[b][r], sum) : 0.0f;
      }
      if (SPLIT && !any) continue;
      UNROLL for (u32 g = 0; g < GROUPS; g++) {
        Values::template chunks<COUNT>(mixed[b][g], [&](u32 r, u32 d, const f32 (&v)[Values::PIECE])
                                                        __attribute__((always_inline)) {
          f32 value[Values::PIECE];
          const bool sees = total[b][r] > 0.0f || total[b][r] != total[b][r];
          UNROLL for (u32 i = 0; i < Values::PIECE; i++) {
            const f32 whole = Own::whole(v[i]);
            value[i] = sees ? whole * factor[b][r] : 0.0f;
          }
          const u32 i = block + Own::query(r), column = part * Shape::PART + g * Values::GROUP + d;
          if (g * Values::GROUP + d >= Shape::PART || column >= s.value_dim || !rows.inside(i) || !Own::writes()) return;
          const u64 to = ((rows.row(s, i) * s.splits + rows.split) * s.value_dim + column) / 4;
          UNROLL for (u32 c = 0; c < Values::PIECE / 4; c++) {
            store4(out, to + c, f32x4{value[4 * c], value[4 * c + 1], value[4 * c + 2], value[4 * c + 3]});
          }
        });
      }
    }
  }
};
