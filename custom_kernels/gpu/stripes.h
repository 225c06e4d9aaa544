// Few rows of x times 16 rows of a weight at a time (a stripe) on NVIDIA's matrix units, bound by reading the weight.
//
// Pieces of a stripe, 16 rows by 128 columns, go from global into local memory by copies of 16 bytes that each wave keeps
// under way for itself, then as fragments through `Halves` into mma.m16n8k16, whose 8 columns are 4 rows of x in two
// float16 terms, or 8 rows in one (rows_of_x.h). Each block of 32 columns is scaled in float32 and added. The waves share a stripe's columns:
// piece p belongs to wave p % 8, and the waves' sums are added in their order, so that a result's order of sums
// depends on its weight row alone, up to 8 rows of x.
#pragma once

#include "async_copy.h"
#include "halves.h"
#include "mma.h"

inline constexpr u32 STRIPE_THREADS = 256, STRIPE_WAVES = STRIPE_THREADS / WAVE;
inline constexpr u32 STRIPE = 16, PIECE = 128, BLOCK = 32, BLOCKS = PIECE / BLOCK;
inline constexpr u32 STRIPE_LOCAL = 98 * 1024;  // bytes of local memory: what a workgroup can have on every NVIDIA GPU

#if defined(__NVPTX__)
extern "C" LOCAL u32x4 strixhlo_local[];  // given by the launch
DEVICE LOCAL u32x4* launch_local() { return strixhlo_local; }
#else
struct LaunchLocal {
  LOCAL_ARRAY static inline u32x4 of[STRIPE_LOCAL / 16];
};
DEVICE LOCAL u32x4* launch_local() { return LaunchLocal::of; }
#endif

// The rows of a stripe: [low_first, low_end) of `low` in its rows 0 to 7, of `high` in its rows 8 to 15, as far as there.
template <class W>
struct StripeRows {
  W low, high;
  u32 low_first, low_end, high_first, high_end;
};

// The stripes of this workgroup: those of the first workgroups, which run on different multiprocessors, may be one more.
struct StripeShare {
  u32 begin, end;

  MEMBER StripeShare(u32 stripes, u32 workgroups) {
    const u32 id = workgroup_id(), each = stripes / workgroups, more = stripes % workgroups;
    begin = id * each + smaller(id, more);
    end = begin + each + (id < more);
  }
};

// X: the type of x. Of float32 a row takes two terms, of the others one.
template <u32 M, class W, class X>
struct Stripes {
  using H = Halves<W>;
  static constexpr u32 TERMS = sizeof(X) == 4 ? 2 : 1, OF_TILE = 8 / TERMS, TILES = (M + OF_TILE - 1) / OF_TILE;
  static constexpr u32 OF_LANE = TERMS == 1 && M > 1 ? 2 : 1;  // rows of x whose results a lane has of a tile
  static constexpr u32 COLUMNS = 8192 / M;  // of x in local memory
  static constexpr u32 ROW_BYTES = PIECE * H::BITS / 8, ROW_STRIDE = ROW_BYTES + 16;  // rows g in different banks
  static constexpr u32 COPIES = STRIPE * ROW_BYTES / 16 / WAVE;
  static constexpr u32 first_word(u32 strip) { return strip ? first_word(strip - 1) + STRIPE * H::WORDS[strip - 1] : 0; }
  static constexpr u32 first_copy(u32 strip) {
    return strip ? first_copy(strip - 1) + (STRIPE * H::WORDS[strip - 1] + WAVE - 1) / WAVE : 0;
  }
  static constexpr u32 STRIP_COPIES = first_copy(H::STRIPS);
  static constexpr u32 PIECE_BYTES = STRIPE * ROW_STRIDE + first_word(H::STRIPS) * 4;
  static constexpr u32 X_BYTES = M * COLUMNS * TERMS * 2, UNIT_BYTES = M * COLUMNS / BLOCK * 5;
  static constexpr u32 SLOT_BYTES = STRIPE_WAVES * TILES * WAVE * 8 * OF_LANE;
  static constexpr u32 MOST = 4;  // stripes at once
  // Pieces in local memory, of which all but one are on their way.
  static constexpr u32 FITTING = (STRIPE_LOCAL - X_BYTES - UNIT_BYTES - MOST * SLOT_BYTES) / (STRIPE_WAVES * PIECE_BYTES);
  static constexpr u32 STAGES = FITTING < 5 ? FITTING : 5;
  static constexpr u32 X_AT = STRIPE_WAVES * STAGES * PIECE_BYTES, UNITS_AT = X_AT + X_BYTES;
  static constexpr u32 SUMS_AT = UNITS_AT + UNIT_BYTES;
  static_assert(M <= 8 && STAGES > 1 && COLUMNS % (PIECE * STRIPE_WAVES) == 0 && SUMS_AT + MOST * SLOT_BYTES <= STRIPE_LOCAL);

  // Of one tile: of each row of x that the lane has, weight rows g and g + 8.
  struct Sums {
    f32x2 of[OF_LANE];
  };

  DEVICE LOCAL u8* local() { return (LOCAL u8*)launch_local(); }
  // The terms of rows of x of a block, as lanes read them: neighbouring blocks begin in different banks.
  DEVICE LOCAL u32x4* terms(u32 block, u32 row, u32 term) {
    const u32 at = (row * TERMS + term) ^ (M * TERMS > 1 ? block % 2 : 0);
    return (LOCAL u32x4*)(local() + X_AT + (block * M * TERMS + at) * 64);
  }
  // What products of a piece with the terms of a row of x are multiplied by, and the sum of a block of the row.
  DEVICE LOCAL f32& unit(u32 piece, u32 row) { return ((LOCAL f32*)(local() + UNITS_AT))[piece * M + row]; }
  DEVICE LOCAL f32& sum_of_x(u32 block, u32 row) {
    return ((LOCAL f32*)(local() + UNITS_AT + M * COLUMNS / PIECE * 4))[block * M + row];
  }
  DEVICE LOCAL Sums& sums(u32 wave, u32 slot, u32 tile, u32 lane) {
    return ((LOCAL Sums*)(local() + SUMS_AT))[((wave * MOST + slot) * TILES + tile) * WAVE + lane];
  }

  // What a lane copies of each piece of a stripe: 16 bytes of codes of some rows, words of strips of some.
  struct Feed {
    const GLOBAL u8* codes[COPIES];
    u32 room[COPIES];  // bytes of the row from the lane's place in its first piece on; 0: no such row
    const GLOBAL u8* words[STRIP_COPIES];
    u32 left[STRIP_COPIES];  // bytes that may be read
  };

  DEVICE Feed feed_of(const StripeRows<W>& rows, u32 piece, u32 row_bytes) {
    Feed feed;
    UNROLL for (u32 i = 0; i < COPIES; i++) {
      const u32 item = i * WAVE + lane_id(), row = item / (ROW_BYTES / 16), at = item % (ROW_BYTES / 16) * 16;
      const bool high = i * WAVE / (ROW_BYTES / 16) >= 8;  // the same for the whole wave
      const u32 of_tensor = high ? rows.high_first + row - 8 : rows.low_first + row;
      const bool there = of_tensor < (high ? rows.high_end : rows.low_end);
      const GLOBAL u8* codes = (const GLOBAL u8*)(high ? rows.high : rows.low).parts.codes;
      feed.room[i] = there && at < row_bytes ? row_bytes - at : 0;
      feed.codes[i] = codes + (there ? (u64)of_tensor * row_bytes + piece * ROW_BYTES + at : 0);
    }
    feed_strips(rows, piece, feed);
    return feed;
  }
  template <u32 S = 0>
  DEVICE void feed_strips(const StripeRows<W>& rows, u32 piece, Feed& feed) {
    if constexpr (S < H::STRIPS) {
      constexpr u32 COUNT = H::WORDS[S] ? H::WORDS[S] : 1, FIRST = first_copy(S);
      UNROLL for (u32 i = 0; i < STRIPE * H::WORDS[S]; i += WAVE) {
        const u32 item = i + lane_id(), row = item / COUNT;
        const u32 of_tensor = row < 8 ? rows.low_first + row : rows.high_first + row - 8;
        const u32 end = row < 8 ? rows.low_end : rows.high_end;
        const Strip strip = H::template strip<S>(row < 8 ? rows.low : rows.high, of_tensor, end, piece);
        const u64 at = (strip.start & ~(u64)3) + 4 * (item % COUNT);
        const bool there = row < STRIPE && of_tensor < end && at < strip.end;
        const u64 left = there ? strip.end - at : 0;
        feed.left[FIRST + i / WAVE] = left < 0x40000000u ? (u32)left : 0x40000000u;
        feed.words[FIRST + i / WAVE] = strip.base + (there ? at : 0);
      }
      feed_strips<S + 1>(rows, piece, feed);
    }
  }

  // Asks for piece `piece` of the stripe, and goes on to the wave's next.
  DEVICE void ask_for_piece(Feed& feed, u32 piece, LOCAL u8* to) {
    const u32 lane = lane_id(), row = lane / (ROW_BYTES / 16), at = lane % (ROW_BYTES / 16) * 16;
    UNROLL for (u32 i = 0; i < COPIES; i++) {
      LOCAL u8* place = to + (row + i * WAVE / (ROW_BYTES / 16)) * ROW_STRIDE + at;
      copy_async((LOCAL u32x4*)place, (const GLOBAL u32x4*)feed.codes[i], piece * ROW_BYTES < feed.room[i]);
      feed.codes[i] += STRIPE_WAVES * ROW_BYTES;
    }
    ask_for_strips(feed, to);
  }
  template <u32 S = 0>
  DEVICE void ask_for_strips(Feed& feed, LOCAL u8* to) {
    if constexpr (S < H::STRIPS) {
      constexpr u32 FIRST = first_copy(S), WORD = first_word(S), STEP = H::FOUR[S] * STRIPE_WAVES / 4;
      UNROLL for (u32 i = 0; i < STRIPE * H::WORDS[S]; i += WAVE) {
        const GLOBAL u8*& from = feed.words[FIRST + i / WAVE];
        u32& left = feed.left[FIRST + i / WAVE];
        if (STRIPE * H::WORDS[S] >= WAVE || lane_id() < STRIPE) {
          copy_word_async((LOCAL u32*)(to + STRIPE * ROW_STRIDE) + WORD + i + lane_id(), from, smaller(left, 4u));
        }
        from += STEP;
        left -= smaller(left, STEP);
      }
      ask_for_strips<S + 1>(feed, to);
    }
  }

  // Where in a piece the strips of row `row` of the stripe are.
  template <u32 S = 0>
  DEVICE void find_strips(const W& w, u32 of_tensor, u32 piece, u32 row, u32 (&at)[H::STRIPS]) {
    if constexpr (S < H::STRIPS) {
      constexpr u32 FIRST = first_word(S);
      const u32 shift = (u32)H::template strip<S>(w, of_tensor, of_tensor + 1, piece).start & 3u;
      at[S] = STRIPE * ROW_STRIDE + 4 * (FIRST + row * H::WORDS[S]) + shift;
      find_strips<S + 1>(w, of_tensor, piece, row, at);
    }
  }
  // The scales of this lane's block of a piece, block lane % 4, for rows g and g + 8; `inside`: the block is there.
  DEVICE void read_scales(const LOCAL u8* piece, const u32 (&strips)[2][H::STRIPS], bool inside,
                          f32 (&scale)[2][W::GROUPS], f32 (&minimum)[2]) {
    UNROLL for (u32 i = 0; i < 2; i++) {
      const LOCAL u8* at[H::STRIPS];
      UNROLL for (u32 s = 0; s < H::STRIPS; s++) at[s] = piece + strips[i][s];
      H::scales(at, lane_id() % 4, scale[i], minimum[i]);
      UNROLL for (u32 s = 0; s < W::GROUPS; s++) scale[i][s] = inside ? scale[i][s] : 0.0f;
      minimum[i] = inside ? minimum[i] : 0.0f;
    }
  }

  // The lane's column e of products, which of float32 is of two terms.
  DEVICE f32 dot(const Products& c, u32 i, u32 e) {
    return TERMS == 1 ? c.of[2 * i + e] : multiply_add(c.of[2 * i + 1], 1.0f / 2048.0f, c.of[2 * i]);
  }

  // The e-th row of x whose results this lane has of a tile.
  DEVICE u32 row_of_x(u32 tile, u32 e) { return (tile * OF_TILE + OF_LANE * (lane_id() % 4)) % M + e; }

  // Adds the products of a piece with columns of x from `block` on. scales, minima: of this lane's block.
  DEVICE void add_piece(const LOCAL u8* piece, u32 block, const f32 (&scales)[2][W::GROUPS], const f32 (&minima)[2],
                        Sums (&sum)[TILES]) {
    const u32 lane = lane_id(), g = lane / 4, t = lane % 4;
    u32 marked[2] = {};
    f32 by[TILES][OF_LANE];
    UNROLL for (u32 tile = 0; tile < TILES; tile++) {
      UNROLL for (u32 e = 0; e < OF_LANE; e++) by[tile][e] = unit(block / BLOCKS, row_of_x(tile, e));
    }
    UNROLL for (u32 b = 0; b < BLOCKS; b++) {
      u32 pairs[2][4];
      f32 scale[2][W::GROUPS], minimum[2];
      UNROLL for (u32 i = 0; i < 2; i++) {
        const LOCAL u32* codes = (const LOCAL u32*)(piece + (g + 8 * i) * ROW_STRIDE + b * (ROW_BYTES / BLOCKS));
        H::halves(codes, t, pairs[i]);
        if constexpr (H::MARKED) marked[i] |= H::marks(codes, t);
        UNROLL for (u32 s = 0; s < W::GROUPS; s++) scale[i][s] = shuffle(scales[i][s], 4 * g + b);
        if constexpr (W::MINIMUM) minimum[i] = shuffle(minima[i], 4 * g + b);
      }
      const u32 first[4] = {pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]};
      const u32 last[4] = {pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3]};
      UNROLL for (u32 tile = 0; tile < TILES; tile++) {
        // Columns of rows of x that are not there repeat others, and nobody reads their sums.
        constexpr u32 LANES = 4 * (M < OF_TILE ? M * TERMS : 8);
        const LOCAL u32x4* x = terms(block, tile * OF_TILE, 0) + b * M * TERMS * 4;
        const u32x4 of_x = x[(lane ^ (M * TERMS > 1 && b % 2 ? 4 : 0)) % LANES];
        Products c = {};
        f32 before[2][OF_LANE];
        multiply_16x8<f16>(first, of_x[0], of_x[1], c);
        if constexpr (H::SPLIT) {
          UNROLL for (u32 i = 0; i < 2; i++) {
            UNROLL for (u32 e = 0; e < OF_LANE; e++) before[i][e] = dot(c, i, e) * scale[i][0];
          }
          c = {};
        }
        multiply_16x8<f16>(last, of_x[2], of_x[3], c);
        UNROLL for (u32 e = 0; e < OF_LANE; e++) {
          UNROLL for (u32 i = 0; i < 2; i++) {
            f32 total = sum[tile].of[e][i];
            if constexpr (H::SPLIT) {
              total = multiply_add(multiply_add(dot(c, i, e), scale[i][1], before[i][e]), by[tile][e], total);
            } else {
              total = multiply_add(dot(c, i, e) * by[tile][e], scale[i][0], total);
            }
            if constexpr (W::MINIMUM) total = multiply_add(sum_of_x(block + b, row_of_x(tile, e)), minimum[i], total);
            sum[tile].of[e][i] = total;
          }
        }
      }
    }
    if constexpr (H::MARKED) {
      UNROLL for (u32 i = 0; i < 2; i++) {
        marked[i] |= shuffle_bits(marked[i], lane ^ 1);
        marked[i] |= shuffle_bits(marked[i], lane ^ 2);
        UNROLL for (u32 tile = 0; tile < TILES; tile++) {
          UNROLL for (u32 e = 0; e < OF_LANE; e++) {
            if (marked[i]) sum[tile].of[e][i] = quiet_nan();
          }
        }
      }
    }
  }

  // Sums of the stripes rows_of(0) to rows_of(count - 1), at most MOST, for `each_result`. fill(start, count) puts float4s
  // of x into local memory, from `start` on; `there`: all of x is in it; `others` may still read what was there.
  template <class RowsOf, class Fill>
  DEVICE void sum_stripes(u32 count, u32 k, const RowsOf& rows_of, bool others, bool& there, const Fill& fill) {
    constexpr u32 CHUNK = COLUMNS / PIECE;  // pieces of the columns of x that are in local memory at once
    const u32 wave = wave_id(), lane = lane_id();
    const u32 pieces = ceil_div(k, PIECE), row_bytes = k / 8 * H::BITS;
    LOCAL u8* ring = local() + wave * STAGES * PIECE_BYTES;

    // Pieces are asked for in the order in which they are used: by columns of x, then stripes, then pieces.
    u32 asked_first = wave, asked_piece = asked_first, asked_end = smaller(pieces, CHUNK);
    u32 asked_slot = 0, asked_stage = 0;
    Feed feed = {};
    if (asked_piece < pieces) feed = feed_of(rows_of(0), asked_piece, row_bytes);
    const auto ask = [&]() __attribute__((always_inline)) {
      if (asked_piece < pieces) {
        ask_for_piece(feed, asked_piece, ring + asked_stage * PIECE_BYTES);
        asked_stage = asked_stage + 1 == STAGES ? 0 : asked_stage + 1;
        asked_piece += STRIPE_WAVES;
        if (asked_piece >= asked_end) {
          if (++asked_slot == count) {
            asked_slot = 0;
            asked_first += CHUNK;
            asked_end = smaller(pieces, asked_end + CHUNK);
          }
          asked_piece = asked_first;
          if (asked_piece < pieces) feed = feed_of(rows_of(asked_slot), asked_piece, row_bytes);
        }
      }
      end_group();
    };
    _Pragma("nounroll") for (u32 i = 0; i < STAGES - 1; i++) ask();
    if (others) barrier();  // the sums of before are read
    for (u32 i = 0; i < count * TILES; i++) sums(wave, i / TILES, i % TILES, lane) = {};
    u32 stage = 0;
    for (u32 start = 0; start < k; start += COLUMNS) {
      if (!there) {
        if (start) barrier();
        const u32 columns = smaller(k - start, COLUMNS);
        fill(start / 4, ceil_div(columns, PIECE) * (PIECE / 4));
        barrier();
        there = columns == k;
      }
      const u32 first = start / PIECE + wave, end = smaller(pieces, start / PIECE + CHUNK);
      if (first >= end) continue;
      for (u32 slot = 0; slot < count; slot++) {
        const StripeRows<W> rows = rows_of(slot);
        u32 strips[2][H::STRIPS];
        find_strips(rows.low, rows.low_first + lane / 4, first, lane / 4, strips[0]);
        find_strips(rows.high, rows.high_first + lane / 4, first, lane / 4 + 8, strips[1]);
        Sums sum[TILES];
        UNROLL for (u32 tile = 0; tile < TILES; tile++) sum[tile] = sums(wave, slot, tile, lane);
        _Pragma("nounroll") for (u32 piece = first; piece < end; piece += STRIPE_WAVES) {
          wait_for_groups<STAGES - 2>();
          wave_meets();
          ask();
          const LOCAL u8* from = ring + stage * PIECE_BYTES;
          f32 scale[2][W::GROUPS], minimum[2] = {};
          read_scales(from, strips, piece * BLOCKS + lane % 4 < k / BLOCK, scale, minimum);
          add_piece(from, piece * BLOCKS - start / BLOCK, scale, minimum, sum);
          stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        UNROLL for (u32 tile = 0; tile < TILES; tile++) sums(wave, slot, tile, lane) = sum[tile];
      }
    }
    wait_for_groups<0>();
    barrier();
  }

  // Calls result(stripe, row, of_x, low, high) for rows `row` and `row` + 8 of each stripe and the first m rows of x.
  template <class Result>
  DEVICE void each_result(u32 count, u32 m, const Result& result) {
    for (u32 i = thread_id(); i < count * TILES * WAVE; i += STRIPE_THREADS) {
      const u32 lane = i % WAVE, tile = i / WAVE % TILES, stripe = i / WAVE / TILES;
      UNROLL for (u32 e = 0; e < OF_LANE; e++) {
        const u32 of_x = tile * OF_TILE + OF_LANE * (lane % 4) + e;
        if (of_x >= m) continue;
        f32x2 total = (f32x2)0.0f;
        UNROLL for (u32 w = 0; w < STRIPE_WAVES; w++) {
          total += sums(w, stripe, tile, lane).of[e];
        }
        result(stripe, lane / 4, of_x, total[0], total[1]);
      }
    }
  }
};
