// The sums of a wave of flash_attention.h: of its rows the softmax so far, online (Milakov and Gimelshein,
// arXiv:1805.02867) and in powers of two, and the values mixed by it; how waves of the same rows join theirs in local
// memory, and what is stored.
#pragma once

#include "flash_rows.h"

template <class X, class T, u32 D, u32 DV, u32 MOST_BLOCKS, u32 MOST_PART, bool SPLIT, class Y, u32 TILES>
struct FlashSums {
  using Shape = FlashShape<X, T, D, DV, MOST_BLOCKS, MOST_PART>;
  using Tiles = FlashTiles<X, T, D, DV, MOST_BLOCKS, MOST_PART>;
  using M = typename Multiplied<T>::Type;
  using Own = InLane<Shape::TERMS>;
  using Values = typename Shape::Values;
  static constexpr u32 BLOCKS = Shape::BLOCKS, GROUPS = Shape::GROUPS, COUNT = Own::COUNT;

  f32 mixed[BLOCKS][GROUPS][Values::TILES][COUNT];
  f32 peak[BLOCKS][Own::QUERIES], total[BLOCKS][Own::QUERIES], factor[BLOCKS][Own::QUERIES];
  i32 first[BLOCKS][Own::QUERIES], last[BLOCKS][Own::QUERIES];  // positions that a query sees; none when last < first

  // No rows that see anything.
  __attribute__((always_inline)) void nothing() {
    UNROLL for (u32 b = 0; b < BLOCKS; b++) {
      UNROLL for (u32 r = 0; r < Own::QUERIES; r++) {
        first[b][r] = 0;
        last[b][r] = -1;
        factor[b][r] = total[b][r] = 0.0f;
        peak[b][r] = NOTHING;
      }
    }
    clear_mixed();
  }
  __attribute__((always_inline)) void clear_mixed() {
    UNROLL for (u32 b = 0; b < BLOCKS; b++) {
      UNROLL for (u32 g = 0; g < GROUPS; g++) {
        UNROLL for (u32 t = 0; t < Values::TILES; t++) {
          UNROLL for (u32 n = 0; n < COUNT; n++) mixed[b][g][t][n] = 0.0f;
        }
      }
    }
  }
  // Which positions the rows of the wave see, and no sums yet.
  __attribute__((always_inline)) SeenPositions start(u32 row_wave) {
    SeenPositions seen;
    UNROLL for (u32 b = 0; b < BLOCKS; b++) {
      UNROLL for (u32 r = 0; r < Own::QUERIES; r++) {
        const u32 i = row_wave * Shape::ROWS_OF_WAVE + b * Shape::QUERIES + Own::query(r);
        first[b][r] = Tiles::first[i];
        last[b][r] = Tiles::last[i];
        factor[b][r] = Tiles::factor[i];
        peak[b][r] = NOTHING;
        total[b][r] = 0.0f;
        seen.add(first[b][r], last[b][r]);
      }
    }
    clear_mixed();
    seen.meet();
    return seen;
  }

  // Scores to weights, and what the older sums must be multiplied with; returns which keys are seen, a bit each.
  template <bool MASKED>
  __attribute__((always_inline)) u32 weigh(const Tile (&scores)[TILES][BLOCKS], u32 b, i32 tile, const AttentionShape& s,
                                           Operand (&weights)[TILES][BLOCKS], f32 (&kept)[Own::QUERIES]) {
    f32 v[TILES][COUNT], most[Own::QUERIES];
    u32 seen = 0;
    UNROLL for (u32 u = 0; u < TILES; u++) {
      UNROLL for (u32 n = 0; n < COUNT; n++) v[u][n] = Own::score(scores[u][b], n) * factor[b][Own::local(n)];
    }
    if (s.softcap != 0.0f) {
      UNROLL for (u32 u = 0; u < TILES; u++) {
        UNROLL for (u32 n = 0; n < COUNT; n++) v[u][n] = capped(v[u][n], s.softcap) * LOG2_E;
      }
    }
    u32 own[Own::QUERIES];  // which of the lane's keys a query sees
    UNROLL for (u32 r = 0; r < Own::QUERIES; r++) {
      most[r] = NOTHING;
      if constexpr (MASKED) {
        const u32 visible = bits_between(first[b][r] - tile, last[b][r] - tile);
        seen |= visible;
        own[r] = visible >> Own::first_key();
      }
    }
    UNROLL for (u32 u = 0; u < TILES; u++) {
      UNROLL for (u32 n = 0; n < COUNT; n++) {
        const u32 r = Own::local(n);
        if constexpr (MASKED) v[u][n] = own[r] >> (16 * u + Own::further(n)) & 1 ? v[u][n] : NOTHING;
        most[r] = higher_of(most[r], v[u][n]);
      }
    }
    f32 base[Own::QUERIES];
    UNROLL for (u32 r = 0; r < Own::QUERIES; r++) {
      const f32 higher = higher_of(peak[b][r], largest_of_keys(most[r]));
      kept[r] = exp2_fast(peak[b][r] - higher);
      peak[b][r] = higher;
      base[r] = higher - WEIGHT_SHIFT<M>;
      total[b][r] *= kept[r];
    }
    UNROLL for (u32 u = 0; u < TILES; u++) {
      UNROLL for (u32 n = 0; n < COUNT; n++) {
        const u32 r = Own::local(n);
        // Where two terms hold it exactly, the weight of the peak is a power of two: the difference comes first.
        const f32 above = Shape::TERMS == 2 ? (v[u][n] - peak[b][r]) + WEIGHT_SHIFT<M> : v[u][n] - base[r];
        v[u][n] = MASKED && v[u][n] == NOTHING ? 0.0f : exp2_fast(above);
        total[b][r] += v[u][n];
      }
      weights[u][b] = Own::template weights<M>(v[u]);
    }
    return seen;
  }
  // All scores of some tiles.
  template <bool MASKED>
  __attribute__((always_inline)) u32 weigh_all(const Tile (&scores)[TILES][BLOCKS], i32 tile, const AttentionShape& s,
                                               Operand (&weights)[TILES][BLOCKS], f32 (&kept)[BLOCKS][Own::QUERIES]) {
    u32 seen = 0;
    UNROLL for (u32 b = 0; b < BLOCKS; b++) seen |= weigh<MASKED>(scores, b, tile, s, weights, kept[b]);
    if constexpr (MASKED) seen = any_of_wave(seen);
    return seen;
  }
  // A tile's own sums to those of a wave.
  __attribute__((always_inline)) void add(u32 g, u32 t, const Tile (&sums)[BLOCKS],
                                          const f32 (&kept)[BLOCKS][Own::QUERIES]) {
    UNROLL for (u32 b = 0; b < BLOCKS; b++) {
      UNROLL for (u32 n = 0; n < COUNT; n++) {
        f32& of = mixed[b][g][t][n];
        of = multiply_add(of, kept[b][Own::local(n)], Own::mixed(sums[b], n));
      }
    }
  }

  // any: whether this workgroup has positions.
  __attribute__((always_inline)) void end(const GLOBAL f32* sinks, GLOBAL Y* out, GLOBAL f32* peaks,
                                          const FlashRows& rows, const AttentionShape& s, u32 key_wave, u32 row_wave,
                                          u32 part, bool any) {
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
      meet(sinks, out, peaks, rows, s, key_wave, part, any);
    } else {
      finish(sinks, out, peaks, rows, s, row_wave, part, any);
    }
  }

  // The waves' results of the same rows, joined in local memory.
  __attribute__((always_inline)) void meet(const GLOBAL f32* sinks, GLOBAL Y* out, GLOBAL f32* peaks,
                                           const FlashRows& rows, const AttentionShape& s, u32 key_wave, u32 part,
                                           bool any) {
    constexpr u32 TOGETHER = Tiles::GROUPS_MEETING, WIDTH = Values::GROUP * TOGETHER;
    LOCAL f32* meeting = Tiles::meeting();
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
    UNROLL for (u32 g = 0; g < GROUPS; g += TOGETHER) {
      UNROLL for (u32 more = 0; more < TOGETHER; more++) {
        Values::template chunks<COUNT>(mixed[0][g + more], [&](u32 r, u32 d, const f32 (&v)[Values::PIECE])
                                                               __attribute__((always_inline)) {
          const u32 column = more * Values::GROUP + d;
          UNROLL for (u32 i = 0; i < Values::PIECE; i++) {
            const f32 value = Own::whole(v[i]) * factor[0][r];
            meeting[(wave * Shape::QUERIES + Own::query(r)) * WIDTH + column + i] = value;
          }
        });
      }
      barrier();
      for (u32 item = 4 * thread; item < Shape::PARTS * Shape::QUERIES * WIDTH; item += 4 * ATTENTION_THREADS) {
        const u32 of_part = item / (Shape::QUERIES * WIDTH), i = item / WIDTH % Shape::QUERIES;
        const u32 column = g * Values::GROUP + item % WIDTH, d = of_part * Shape::PART + column;
        const bool there = column < Shape::PART && d < s.value_dim && rows.inside(i);
        if (!there) continue;
        f32x4 value = 0.0f;
        UNROLL for (u32 w = 0; w < Shape::KEY_WAVES; w++) {
          const u32 at = ((w * Shape::PARTS + of_part) * Shape::QUERIES + i) * WIDTH + item % WIDTH;
          value += ((const LOCAL f32x4*)meeting)[at / 4];
        }
        f32 highest, sum;
        joined(i, highest, sum);
        const u64 row = rows.row(s, i) * s.splits + rows.split;
        const f32 weight = last_factor(sinks, rows, s, i, highest, sum);
        store4(out, (row * s.value_dim + d) / 4, sum > 0.0f || sum != sum ? value * weight : (f32x4)0.0f);
      }
      if (g + TOGETHER < GROUPS) barrier();
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
    const f32 before = highest - WEIGHT_SHIFT<M>;
    f32 base = before;
    if (s.has_sinks) join_sink(sinks[rows.head(i)], base, sum);
    return exp2_fast(before - base) * Multiplied<T>::UNIT / sum;
  }
  DEVICE void put_peak(GLOBAL f32* peaks, u64 row, f32 highest, f32 sum) {
    peaks[2 * row] = highest - WEIGHT_SHIFT<M>;
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
          store_piece(out, (rows.row(s, i) * s.splits + rows.split) * s.value_dim + column, value);
        });
      }
    }
  }
};
