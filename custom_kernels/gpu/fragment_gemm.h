// y[m, n] = sum over k of x[m, k] * weight[n, k] for many rows of x on NVIDIA's matrix units. Weights never touch local memory:
// a wave owns 32 of their rows, whose codes its lanes read as they are stored, a piece of neighbouring columns each, and decode
// into fragments. For that the columns of a block are summed in another order, in which x is read from local memory too.
//
// Weights are scaled, then rounded to bfloat16: once where x is float16 or bfloat16 (relative error 2^-9 a weight), as a sum of
// two where x is float32 and one is not all of a weight (pieces.h). x is one bfloat16 number, of float16 and float32 the sum of two. Of the products the smallest, low
// by low, is left out: a relative error of 4e-6 where x is float32.
//
// A workgroup computes TM x N of y, 64 columns of x at a time; WAVES_K groups of waves share the columns, and add what they
// have at the end, in one order.
#pragma once

#include "async_copy.h"
#include "pieces.h"

// Of a workgroup: M rows of x, a multiple of 16; waves side by side; groups of waves that share the columns.
template <u32 M_, u32 WAVES_N_, u32 WAVES_K_>
struct FragmentTile {
  static constexpr u32 M = M_, WAVES_N = WAVES_N_, WAVES_K = WAVES_K_;
};

// x in 16-byte chunks [buffer][group of waves][term][row][chunk], chunks of odd rows swapped in pairs for the banks' sake.
template <u32 COUNT>
struct FragmentTiles {
  LOCAL_ARRAY static inline u32x4 x[COUNT];
};

// PAIRED: half of a wave's rows are of one weight, half of another. ROWS: as many of the tile's rows are computed, in the
// local memory of the whole tile.
template <class TILE, class W, class X, bool PAIRED = false, u32 ROWS = TILE::M>
struct FragmentGemm {
  static constexpr u32 M = TILE::M, TM = ROWS, WAVES_N = TILE::WAVES_N, WAVES_K = TILE::WAVES_K;
  static constexpr u32 THREADS = WAVE * WAVES_N * WAVES_K;
  static constexpr u32 N = 32 * WAVES_N, COLUMNS = PAIRED ? N / 2 : N;  // rows of weights; columns of y
  static constexpr u32 TERMS = Element<X>::BITS <= 8 ? 1 : 2, WEIGHT_TERMS = Element<X>::BITS <= 11 || Piece<W>::EXACT ? 1 : 2;
  static constexpr u32 BUFFERS = TERMS == 1 ? 3 : 2, STEP = 64, CHUNKS = STEP / 8;
  static constexpr u32 PIECE = Piece<W>::COLUMNS, BLOCK = 4 * PIECE, STEPS = BLOCK / STEP, FRAGMENTS_M = TM / 8;
  static constexpr u32 ITEMS = WAVES_K * TM * CHUNKS, LOADS = ITEMS / THREADS;
  using Tiles = FragmentTiles<BUFFERS * WAVES_K * TERMS * M * CHUNKS>;
  using Stored = typename Piece<W>::Stored;
  using Ready = typename Piece<W>::Ready;

  static_assert(ITEMS % THREADS == 0);
  static_assert(WAVES_K == 1 || TM * N * 4 <= sizeof(Tiles::x));

  Products sum[FRAGMENTS_M][2];  // of 8 rows of x, 16 of weights
  Stored next[4];
  Four<X> next_x[TERMS == 1 ? 1 : LOADS][2];
  const GLOBAL X* x;
  u32 row_of_x[LOADS];  // of this thread's items
  u32 k, rounds;        // of WAVES_K blocks

  MEMBER u32 block_of(u32 round, u32 group) const { return round * WAVES_K + group; }

  // Item `i` of the thread in step `step`: its place in a buffer's high terms, and its column.
  MEMBER void item_of(u32 i, u32 step, u32& group, u32& row, u32& chunk, u32& column) const {
    const u32 item = i * THREADS + thread_id();
    group = WAVES_K == 1 ? 0 : item / (TM * CHUNKS);
    row = item / CHUNKS % TM;
    chunk = item % CHUNKS;
    column = block_of(step / STEPS, group) * BLOCK + chunk / 2 * PIECE + step % STEPS * 16 + chunk % 2 * 8;
  }
  DEVICE u32 place_of(u32 buffer, u32 group, u32 term, u32 row, u32 chunk) {
    return (((buffer * WAVES_K + group) * TERMS + term) * TM + row) * CHUNKS + (chunk ^ (row & 1));
  }

  MEMBER void copy(u32 step, u32 buffer) const {
    UNROLL for (u32 i = 0; i < LOADS; i++) {
      u32 group, row, chunk, column;
      item_of(i, step, group, row, chunk, column);
      copy_async<false>(Tiles::x + place_of(buffer, group, 0, row, chunk),
                        (const GLOBAL u32x4*)(x + (u64)row_of_x[i] * k + column), column < k);
    }
    end_group();
  }
  MEMBER void fetch(u32 step) {
    UNROLL for (u32 i = 0; i < LOADS; i++) {
      u32 group, row, chunk, column;
      item_of(i, step, group, row, chunk, column);
      const u64 at = ((u64)row_of_x[i] * k + column) / 4;
      UNROLL for (u32 c = 0; c < 2; c++) {
        next_x[i][c] = {};
        if (column < k) next_x[i][c] = ask4(x, at + c);
      }
    }
  }
  MEMBER void put(u32 step, u32 buffer) const {
    UNROLL for (u32 i = 0; i < LOADS; i++) {
      u32 group, row, chunk, column;
      item_of(i, step, group, row, chunk, column);
      u32x4 terms[2];
      UNROLL for (u32 c = 0; c < 2; c++) {
        const f32x4 v = widen4(next_x[i][c]);
        UNROLL for (u32 p = 0; p < 2; p++) {
          u32 high, low;
          split_pair(v[2 * p], v[2 * p + 1], high, low);
          terms[0][2 * c + p] = high;
          terms[1][2 * c + p] = low;
        }
      }
      UNROLL for (u32 term = 0; term < TERMS; term++) Tiles::x[place_of(buffer, group, term, row, chunk)] = terms[term];
    }
  }

  MEMBER void ask(const W& first, const W& second, const u32 (&rows)[4], u32 round, u32 group) {
    const u32 piece = block_of(round, group) * 4 + lane_id() % 4;
    const bool inside = piece * PIECE < k;
    UNROLL for (u32 j = 0; j < 4; j++) {
      next[j] = {};
      if (inside) Piece<W>::ask(PAIRED && j >= 2 ? second : first, next[j], rows[j], piece);
    }
  }

  // 16 columns of each lane's pieces, from `start` of the piece on.
  MEMBER void multiply(const Ready (&ready)[4], u32 start, u32 buffer, u32 group) {
    const u32 g = lane_id() / 4, t = lane_id() % 4;
    UNROLL for (u32 half = 0; half < 2; half++) {
      u32 w[2][2][WEIGHT_TERMS][4];  // four columns of the half, 16 rows, term
      UNROLL for (u32 i = 0; i < 2; i++) {
        UNROLL for (u32 j = 0; j < 4; j++) {
          u32 pair[WEIGHT_TERMS][2];
          Piece<W>::pairs(ready[j], start / 4 + 2 * half + i, pair);
          UNROLL for (u32 term = 0; term < WEIGHT_TERMS; term++) {
            UNROLL for (u32 p = 0; p < 2; p++) w[i][j / 2][term][j % 2 + 2 * p] = pair[term][p];
          }
        }
      }
      UNROLL for (u32 m = 0; m < FRAGMENTS_M; m++) {
        UNROLL for (u32 term = 0; term < TERMS; term++) {
          const u32x4 of_x = Tiles::x[place_of(buffer, group, term, 8 * m + g, 2 * t + half)];
          UNROLL for (u32 other = 0; other < (term ? 1 : WEIGHT_TERMS); other++) {
            UNROLL for (u32 i = 0; i < 2; i++) {
              UNROLL for (u32 r = 0; r < 2; r++) multiply_16x8<BF16>(w[i][r][other], of_x[2 * i], of_x[2 * i + 1], sum[m][r]);
            }
          }
        }
      }
    }
  }

  // source(row): the row of x that is the tile's, any for rows that nothing is stored of. first_a, first_b: of each weight's
  // n rows; first_n: of y's columns. store(row, column, a, b): a place of the tile, its column n or more where there is none; a of the first
  // weight, b, where PAIRED, of the second.
  template <class Source, class Store>
  MEMBER void run(const GLOBAL X* x_, W a, W b, u32 first_a, u32 first_b, u32 n, u32 k_, u32 first_n, const Source& source,
                  const Store& store) {
    x = x_;
    k = k_;
    const u32 wave = wave_id(), wave_n = wave % WAVES_N, group = wave / WAVES_N, g = lane_id() / 4, t = lane_id() % 4;
    a.runs = b.runs = k / W::RUN;
    rounds = ceil_div(k, BLOCK * WAVES_K);
    const u32 steps = rounds * STEPS, columns_of_wave = PAIRED ? 16 : 32;
    u32 rows[4];
    UNROLL for (u32 j = 0; j < 4; j++) {
      rows[j] = (PAIRED && j >= 2 ? first_b : first_a) + smaller(first_n + wave_n * columns_of_wave + 8 * (PAIRED ? j % 2 : j) + g, n - 1);
    }
    UNROLL for (u32 m = 0; m < FRAGMENTS_M; m++) {
      UNROLL for (u32 r = 0; r < 2; r++) sum[m][r] = {};
    }
    ask(a, b, rows, 0, group);
    UNROLL for (u32 i = 0; i < LOADS; i++) row_of_x[i] = source((i * THREADS + thread_id()) / CHUNKS % TM);
    if constexpr (TERMS == 1) {
      copy(0, 0);
      copy(1, 1);
    } else {
      fetch(0);
      put(0, 0);
      fetch(1);
    }
    u32 buffer = 0;
    for (u32 round = 0; round < rounds; round++) {
      Ready ready[4];
      UNROLL for (u32 j = 0; j < 4; j++) ready[j] = Piece<W>::ready(next[j]);
      if (round + 1 < rounds) ask(a, b, rows, round + 1, group);
      UNROLL for (u32 i = 0; i < STEPS; i++) {
        const u32 step = round * STEPS + i, last = buffer == 0 ? BUFFERS - 1 : buffer - 1;
        if constexpr (TERMS == 1) {
          wait_for_groups<1>();
          barrier();
          if (step + 2 < steps) {
            copy(step + 2, last);
          } else {
            end_group();
          }
        } else {
          barrier();
          put(step + 1, last);
          fetch(step + 2);
        }
        multiply(ready, 16 * i, buffer, group);
        buffer = buffer == BUFFERS - 1 ? 0 : buffer + 1;
      }
    }
    if constexpr (WAVES_K > 1) gather(group, wave_n);
    if (group != 0) return;
    f32 whole[4];
    UNROLL for (u32 j = 0; j < 4; j++) whole[j] = Piece<W>::whole(PAIRED && j >= 2 ? b : a, rows[j]);
    UNROLL for (u32 m = 0; m < FRAGMENTS_M; m++) {
      UNROLL for (u32 r = 0; r < (PAIRED ? 1 : 2); r++) {
        UNROLL for (u32 e = 0; e < 4; e++) {
          const u32 row = 8 * m + 2 * t + e % 2, column = first_n + wave_n * columns_of_wave + 16 * r + 8 * (e / 2) + g;
          constexpr u32 OTHER = PAIRED ? 1 : 0;
          const f32 one = sum[m][r].of[e] * whole[2 * r + e / 2];
          store(row, column, one, PAIRED ? sum[m][OTHER].of[e] * whole[2 * OTHER + e / 2] : one);
        }
      }
    }
  }

  // The sums of all groups, first group first, in the first one's registers.
  MEMBER void gather(u32 group, u32 wave_n) {
    LOCAL f32x4* sums = (LOCAL f32x4*)Tiles::x;
    for (u32 other = 1; other < WAVES_K; other++) {
      barrier();
      UNROLL for (u32 i = 0; i < FRAGMENTS_M * 2; i++) {
        LOCAL f32x4& place = sums[(wave_n * FRAGMENTS_M * 2 + i) * WAVE + lane_id()];
        f32(&of)[4] = sum[i / 2][i % 2].of;
        if (group == other) place = (f32x4){of[0], of[1], of[2], of[3]};
      }
      barrier();
      UNROLL for (u32 i = 0; i < FRAGMENTS_M * 2; i++) {
        const f32x4 more = sums[(wave_n * FRAGMENTS_M * 2 + i) * WAVE + lane_id()];
        UNROLL for (u32 e = 0; e < 4; e++) {
          if (group == 0) sum[i / 2][i % 2].of[e] += more[e];
        }
      }
    }
  }
};
