// Few rows of x times 16 rows of a weight at a time (a stripe) on NVIDIA's matrix units, bound by reading the weight.
//
// Codes go from global into local memory by copies of 16 bytes that each wave keeps under way for itself, then through
// `StripeCodes` into the left factor of mma; scales go straight into registers (stripe_scales.h). The right factor has
// 8 columns: a row of x takes two (of float16 or bfloat16 numbers times float16 codes one), and where that leaves room
// the blocks of a piece lie beside each other, zero where the others are, so that a lane gets the products of a block
// of its own and scales them alone (rows_of_x.h). Sums of blocks 0 and 1, and of 2 and 3, of a piece are added to two
// totals. The waves share a stripe's columns, and their totals are added in their order: the order of a result's sums
// depends on its weight row alone, up to 8 rows of x.
#pragma once

#include "async_copy.h"
#include "stripe.h"
#include "stripe_codes.h"
#include "stripe_scales.h"

// X: the type of x. SHARING: waves of a workgroup, which share each stripe.
template <u32 M_, class W_, class X, u32 SHARING_>
struct Stripes {
  static constexpr u32 M = M_, SHARING = SHARING_;
  using W = W_;
  static constexpr u32 WAVES = SHARING, THREADS = WAVES * WAVE;
  static constexpr u32 LOCAL_BYTES = WAVES == 8 ? STRIPE_LOCAL : DEEP_STRIPE_LOCAL;
  using C = StripeCodes<W>;
  static constexpr bool INTEGER = C::INTEGER, WIDE = sizeof(X) == 4, PAIRED = C::PAIRED;
  // Rows of x whose results a lane has of a tile; lanes of a quad with different ones; blocks that lie beside each
  // other.
  static constexpr u32 OF_LANE = !INTEGER && !WIDE && M > 1 ? 2 : 1, UNITS = M / OF_LANE < 4 ? M / OF_LANE : 4;
  static constexpr u32 BESIDE = 4 / UNITS, OF_TILE = UNITS * OF_LANE, TILES = (M + OF_TILE - 1) / OF_TILE;
  static constexpr u32 CHAINS = C::SPLIT ? 2 : 1, GROUPS = W::GROUPS;
  // Bytes of a block of a row of x, of its column e, and of a lane in it.
  static constexpr u32 OF_BLOCK = WIDE ? 128 : 64, OF_COLUMN = WIDE ? 64 : INTEGER ? 32 : 0;
  static constexpr u32 OF_PLACE = INTEGER && !WIDE ? 8 : 16;
  using OfX = If<OF_PLACE == 8, u32x2, u32x4>;

  // Columns of x in local memory.
  static constexpr u32 COLUMNS = WAVES == 16 && M == 1 ? WIDE ? 25600 : 32768 : WAVES * (WIDE ? 1024 : 2048) / M;
  // Pieces that are asked for together, a stage; of each wave, in local memory at once; bytes.
  static constexpr u32 TOGETHER = PAIRED && M <= 4 ? 2 : 1, CHUNK = COLUMNS / (PIECE * SHARING * TOGETHER);
  static constexpr u32 ROW_BYTES = TOGETHER * PIECE * C::BITS / 8, ROW_STRIDE = ROW_BYTES + 16;
  static constexpr u32 ROW_COPIES = ROW_BYTES / 16, COPIES = (STRIPE * ROW_COPIES + WAVE - 1) / WAVE;
  static constexpr u32 PLANE_STRIDE = C::PLANES ? 32 * C::PLANES + 16 : 0;
  static constexpr u32 STAGE_BYTES = STRIPE * (ROW_STRIDE + PLANE_STRIDE);
  static constexpr u32 X_BYTES = M * COLUMNS / BLOCK * OF_BLOCK;
  static constexpr u32 SUMS_OF_X = W::MINIMUM ? M * COLUMNS / BLOCK * GROUPS : 0;
  static constexpr u32 UNIT_BYTES = (M * COLUMNS / PIECE + SUMS_OF_X) * 4;
  static constexpr u32 NUMBERS = (UNITS == 1 ? 1 : UNITS == 2 ? 2 : 4 * TILES) * OF_LANE;  // totals of a lane
  static constexpr u32 SLOT_BYTES = WAVES * NUMBERS * WAVE * 4;
  static constexpr u32 stages(u32 slots) {
    return (LOCAL_BYTES - X_BYTES - UNIT_BYTES - slots * SLOT_BYTES) / (WAVES * STAGE_BYTES);
  }
  // Stripes whose sums are in local memory at once; stages in local memory, all but one under way.
  static constexpr u32 EACH = stages(4) > 1 ? 4 : stages(3) > 1 ? 3 : 2, MOST = WAVES == 8 ? 3 : 5;
  static constexpr u32 STAGES = stages(EACH) < MOST ? stages(EACH) : MOST;
  static constexpr u32 X_AT = WAVES * STAGES * STAGE_BYTES, UNITS_AT = X_AT + X_BYTES;
  static constexpr u32 SUMS_AT = UNITS_AT + UNIT_BYTES;
  static_assert(M <= 8 && STAGES > 1 && CHUNK > 0 && SUMS_AT + EACH * SLOT_BYTES <= LOCAL_BYTES && X_AT % 16 == 0);

  DEVICE LOCAL u8* local() { return (LOCAL u8*)launch_local<LOCAL_BYTES>(); }
  // Block `block` of row `row` of x, of what is in local memory; its pieces are numbered as the waves take them.
  DEVICE LOCAL u8* x_of(u32 block, u32 row) { return local() + X_AT + (block * M + row) * OF_BLOCK; }
  // What products with a piece of a row of x are multiplied by, and the sum of a block of the row, of one group of it.
  DEVICE LOCAL f32& unit(u32 piece, u32 row) { return ((LOCAL f32*)(local() + UNITS_AT))[piece * M + row]; }
  DEVICE LOCAL f32& sum_of_x(u32 block, u32 group, u32 row) {
    return ((LOCAL f32*)(local() + UNITS_AT))[M * COLUMNS / PIECE + (block * GROUPS + group) * M + row];
  }
  // Of a wave, of a stripe.
  DEVICE LOCAL f32& total(u32 wave, u32 slot, u32 number, u32 lane) {
    return ((LOCAL f32*)(local() + SUMS_AT))[((wave * EACH + slot) * NUMBERS + number) * WAVE + lane];
  }
  DEVICE u32 number_of(u32 tile, u32 pair, u32 r, u32 e) {
    return (UNITS == 4 ? (tile * 2 + pair) * 2 + r : UNITS == 2 ? pair : 0) * OF_LANE + e;
  }

  // The first block of stage `z` of a wave; that of piece `piece` of x in local memory, where the first stage is
  // `first`.
  DEVICE u32 block_of(u32 z, u32 wave) {
    if constexpr (!PAIRED) return (z * SHARING + wave) * BLOCKS;
    if constexpr (TOGETHER == 2) return (z * SHARING + wave) * 2 * BLOCKS;
    return (z / 2 * SHARING + wave) * 2 * BLOCKS + z % 2 * 2;
  }
  DEVICE u32 block_of_x(u32 first, u32 piece, u32 block) {
    const u32 stage = piece / TOGETHER, from = block_of(first + stage / SHARING, stage % SHARING);
    return from + piece % TOGETHER * 2 + (PAIRED ? block / 2 * 4 + block % 2 : block);
  }
  DEVICE u32 stages_of(u32 k, u32 wave) {
    constexpr u32 PIECES = PAIRED ? 2 : 1;
    const u32 all = ceil_div(k, PIECES * PIECE);
    return (all + SHARING - 1 - wave) / SHARING * (PIECES / TOGETHER);
  }

  // What a lane copies of each stage of a stripe, from the rows' first column on.
  struct Feed {
    const GLOBAL u8* codes[COPIES];
    const GLOBAL u8* planes[C::PLANES ? C::PLANES : 1];
    bool high;  // whether rows 8 and on are there
  };
  DEVICE u32 copy_at(u32 i) {  // in a row
    const u32 chunk = (i * WAVE + lane_id()) % ROW_COPIES;
    return (PAIRED && TOGETHER == 1 ? chunk / 2 * 4 + chunk % 2 : chunk) * 16;
  }
  DEVICE Feed feed_of(const StripeRows<W>& rows, u32 k) {
    Feed feed = {};
    feed.high = rows.high_first < rows.high_end;
    UNROLL for (u32 i = 0; i < COPIES; i++) {
      const u32 row = (i * WAVE + lane_id()) / ROW_COPIES, of_tensor = rows.in_tensor(smaller(row, STRIPE - 1));
      const GLOBAL u8* codes = (const GLOBAL u8*)(row < 8 ? rows.low : rows.high).parts.codes;
      feed.codes[i] = codes + (u64)of_tensor * (k / 8 * C::BITS) + copy_at(i);
    }
    if constexpr (C::PLANES > 0) {
      UNROLL for (u32 i = 0; i < C::PLANES; i++) {
        const u32 item = i * WAVE + lane_id(), row = item / (2 * C::PLANES);
        const GLOBAL u8* planes = (const GLOBAL u8*)(row < 8 ? rows.low : rows.high).parts.high;
        feed.planes[i] = planes + (u64)rows.in_tensor(row) * (k / 8 * C::PLANES) + item % (2 * C::PLANES) * 16;
      }
    }
    return feed;
  }
  DEVICE void ask_for_stage(const Feed& feed, const ReadOnce& once, u32 block, u32 k, LOCAL u8* to) {
    const u32 from = block * 4 * C::BITS, row_bytes = k / 8 * C::BITS;
    UNROLL for (u32 i = 0; i < COPIES; i++) {
      const u32 item = i * WAVE + lane_id();
      LOCAL u8* place = to + item / ROW_COPIES * ROW_STRIDE + item % ROW_COPIES * 16;
      if ((i + 1) * WAVE <= STRIPE * ROW_COPIES || item < STRIPE * ROW_COPIES) {
        const bool low = (i + 1) * WAVE <= 8 * ROW_COPIES || (i * WAVE < 8 * ROW_COPIES && item < 8 * ROW_COPIES);
        const bool there = (low || feed.high) && from + copy_at(i) < row_bytes;
        copy_if_async((LOCAL u32x4*)place, (const GLOBAL u32x4*)(feed.codes[i] + from), there, once);
      }
    }
    if constexpr (C::PLANES > 0) {  // of all 256 columns
      const u32 of_planes = block / 8 * 32 * C::PLANES;
      UNROLL for (u32 i = 0; i < C::PLANES; i++) {
        const u32 item = i * WAVE + lane_id(), row = item / (2 * C::PLANES), at = item % (2 * C::PLANES) * 16;
        LOCAL u8* place = to + STRIPE * ROW_STRIDE + row * PLANE_STRIDE + at;
        const bool there = (row < 8 || feed.high) && of_planes + at < k / 8 * C::PLANES;
        copy_if_async((LOCAL u32x4*)place, (const GLOBAL u32x4*)(feed.planes[i] + of_planes), there, once);
      }
    }
  }

  // A lane's part of scales: of rows g and g + 8 those of the span that its blocks are in.
  struct Scales {
    SpanScales<W> of[2];
  };
  DEVICE void ask_for_scales(Scales& scales, const StripeRows<W>& rows, const u32 (&of_tensor)[2], u32 block, u32 k) {
    const u32 span = block / 4 + (PAIRED ? lane_id() % 4 / 2 : 0);
    if (k % PIECE == 0) {
      scales.of[0].template ask<true>(rows.low, of_tensor[0], span);
      scales.of[1].template ask<true>(rows.high, of_tensor[1], span);
    } else {
      scales.of[0].template ask<false>(rows.low, of_tensor[0], span);
      scales.of[1].template ask<false>(rows.high, of_tensor[1], span);
    }
  }

  // Where a lane reads the right factor, from the first block in local memory on, and which blocks are its own.
  struct Right {
    const LOCAL u8* from;
    u32 beside;
    OfX held[BESIDE > 1 ? 4 : 1];  // of blocks that are not: zero

    MEMBER Right() : held{} {
      const u32 column = lane_id() / 4, e = column % 2, unit = column / 2 % UNITS;
      const u32 row = OF_COLUMN ? unit : M == 1 ? 0 : unit * 2 + e;
      beside = column / 2 / UNITS;
      from = x_of(0, row) + e * OF_COLUMN + lane_id() % 4 * OF_PLACE;
    }
    template <u32 B>
    MEMBER OfX of(const LOCAL u8* piece, u32 tile) {
      if constexpr (BESIDE == 1) return *(const LOCAL OfX*)(piece + (B * M + tile * OF_TILE) * OF_BLOCK);
      load_if<B * M * OF_BLOCK>(beside == B % BESIDE, piece, held[BESIDE > 1 ? B : 0]);
      return held[BESIDE > 1 ? B : 0];
    }
    MEMBER const LOCAL u8* at(u32 piece) const { return from + piece * (BLOCKS * M * OF_BLOCK); }
  };

  // Products of the blocks that lie beside each other.
  struct OfIntegers {
    Counts c[CHAINS][TILES + WIDE];

    MEMBER void add(const u32 (&a)[4], const OfX (&x)[TILES]) {
      UNROLL for (u32 tile = 0; tile < TILES; tile++) add(a, x[tile][0], x[tile][1], tile);
      if constexpr (WIDE) {  // the lowest digits: of tile 1 in the odd columns
        u32 last[2] = {x[0][2], x[0][3]};
        if constexpr (TILES == 2) {
          UNROLL for (u32 i = 0; i < 2; i++) last[i] = lane_id() / 4 % 2 ? x[TILES - 1][2 + i] : last[i];
        }
        add(a, last[0], last[1], TILES);
      }
    }
    MEMBER void add(const u32 (&a)[4], u32 first, u32 last, u32 tile) {
      if constexpr (C::SPLIT) {
        multiply_bytes<C::SIGNED>(a[0], a[1], first, c[0][tile]);
        multiply_bytes<C::SIGNED>(a[2], a[3], last, c[CHAINS - 1][tile]);
      } else {
        multiply_bytes<C::SIGNED>(a, first, last, c[0][tile]);
      }
    }
    MEMBER f32 dot(u32 chain, u32 tile, u32 r, u32) const {
      const f32 high = (f32)(c[chain][tile].of[2 * r] * (WIDE ? 128 : 256) + c[chain][tile].of[2 * r + 1]);
      if constexpr (!WIDE) return high;
      return multiply_add((f32)c[chain][TILES - !WIDE].of[2 * r + tile], 1.0f / 256.0f, high);
    }
  };
  struct OfFloats {
    Products c[CHAINS][TILES];

    MEMBER void add(const u32 (&first)[4], const u32 (&last)[4], const OfX (&x)[TILES]) {
      UNROLL for (u32 tile = 0; tile < TILES; tile++) {
        multiply_16x8<f16>(first, x[tile][0], x[tile][1], c[0][tile]);
        multiply_16x8<f16>(last, x[tile][2], x[tile][3], c[CHAINS - 1][tile]);
      }
    }
    MEMBER f32 dot(u32 chain, u32 tile, u32 r, u32 e) const {
      if constexpr (!WIDE) return c[chain][tile].of[2 * r + e];
      return c[chain][tile].of[2 * r] + c[chain][tile].of[2 * r + 1];
    }
  };

  // The products of a block of a lane's own, scaled: of rows g and g + 8.
  template <class P>
  DEVICE void scaled(const P& products, u32 piece, u32 block, u32 tile, u32 e, const f32 (&scale)[2][GROUPS],
                     const f32 (&minimum)[2][GROUPS], f32 (&value)[2]) {
    const u32 row = tile * OF_TILE + lane_id() % 4 % UNITS * OF_LANE + e;
    const f32 by = unit(piece, row);
    UNROLL for (u32 r = 0; r < 2; r++) {
      value[r] = products.dot(0, tile, r, e) * by * scale[r][0];
      if constexpr (C::SPLIT) value[r] = multiply_add(products.dot(1, tile, r, e) * by, scale[r][GROUPS - 1], value[r]);
      if constexpr (W::MINIMUM) {
        UNROLL for (u32 s = 0; s < GROUPS; s++) {
          value[r] = multiply_add(sum_of_x(block, s, row), minimum[r][s], value[r]);
        }
      }
    }
  }

  // Adds a piece's products: `piece`, of x in local memory; scales, of block lane % 4.
  DEVICE void add_piece(const typename C::Piece& codes, u32 piece, Right& right, const f32 (&scales)[2][GROUPS],
                        const f32 (&minima)[2][GROUPS], f32 (&sum)[NUMBERS]) {
    const u32 lane = lane_id(), t = lane % 4;
    u32 marked[2] = {};
    f32 before[TILES * OF_LANE][2];
    const LOCAL u8* of_x = right.at(piece);
    UNROLL for (u32 a = 0; a < UNITS; a++) {
      If<INTEGER, OfIntegers, OfFloats> products = {};
      UNROLL for (u32 b = a * BESIDE; b < (a + 1) * BESIDE; b++) {
        OfX x[TILES];
        UNROLL for (u32 tile = 0; tile < TILES; tile++) {
          x[tile] = b == 0 ? right.template of<0>(of_x, tile) : b == 1 ? right.template of<1>(of_x, tile)
                    : b == 2 ? right.template of<2>(of_x, tile) : right.template of<3>(of_x, tile);
        }
        u32 first[4], last[4];
        if constexpr (INTEGER) {
          C::factor(codes, b, first);
          products.add(first, x);
        } else {
          C::factor(codes, b, first, last);
          products.add(first, last, x);
        }
        if constexpr (C::MARKED) UNROLL for (u32 r = 0; r < 2; r++) marked[r] |= C::marks(codes, b, r);
      }
      const u32 block = a * BESIDE + t / UNITS;
      f32 scale[2][GROUPS], minimum[2][GROUPS] = {};
      UNROLL for (u32 r = 0; r < 2; r++) {
        if constexpr (C::MARKED) {
          marked[r] |= shuffle_bits(marked[r], lane ^ 1);
          marked[r] |= shuffle_bits(marked[r], lane ^ 2);
        }
        UNROLL for (u32 s = 0; s < GROUPS; s++) {
          const u32 owner = lane / 4 * 4 + block;
          scale[r][s] = UNITS == 1 ? scales[r][s] : shuffle(scales[r][s], owner);
          if constexpr (W::MINIMUM) minimum[r][s] = UNITS == 1 ? minima[r][s] : shuffle(minima[r][s], owner);
        }
        if constexpr (C::MARKED) scale[r][0] = marked[r] ? quiet_nan() : scale[r][0];
      }
      UNROLL for (u32 tile = 0; tile < TILES; tile++) {
        UNROLL for (u32 e = 0; e < OF_LANE; e++) {
          f32 value[2];
          scaled(products, piece, piece * BLOCKS + block, tile, e, scale, minimum, value);
          if constexpr (UNITS == 4) {
            f32(&kept)[2] = before[tile * OF_LANE + e];
            UNROLL for (u32 r = 0; r < 2; r++) {
              if (a % 2) sum[number_of(tile, a / 2, r, e)] += kept[r] + value[r];
              kept[r] = value[r];
            }
          } else {  // two lanes have neighbouring blocks: one takes the sum of row g, one that of row g + 8
            constexpr u32 OTHER = UNITS;
            const bool high = lane & OTHER;
            const f32 given = shuffle(high ? value[0] : value[1], lane ^ OTHER);
            sum[number_of(tile, a, 0, e)] += (high ? value[1] : value[0]) + given;
          }
        }
      }
    }
  }

  // Adds the products of a stage in local memory. piece: its first one's number in x.
  DEVICE void add_stage(const LOCAL u8* from, u32 z, u32 piece, const Scales& scales, Right& right, u32 zero,
                        f32 (&sum)[NUMBERS]) {
    UNROLL for (u32 h = 0; h < TOGETHER; h++) {
      const u32 half = TOGETHER == 2 ? h : z % 2, of_span = PAIRED ? 2 * half + lane_id() % 2 : lane_id() % 4;
      const u32 apart = TOGETHER == 2 ? 4 : 2, later = TOGETHER == 2 ? 2 * h : 0;
      f32 scale[2][GROUPS], minimum[2][GROUPS] = {};
      UNROLL for (u32 r = 0; r < 2; r++) scales.of[r].scales(of_span, scale[r], minimum[r]);
      typename C::Piece codes;
      const PieceAt at = {from, from + STRIPE * ROW_STRIDE, later, later + apart, 2 * half, 2 * half + 4, zero};
      C::template load<ROW_STRIDE>(at, codes);
      add_piece(codes, piece + h, right, scale, minimum, sum);
    }
  }

  // Calls result(stripe, row, of_x, low, high) for rows `row` and `row` + 8 of each stripe and the first m rows of x.
  // All threads meet here: four lanes have a result, one for each pair of sums and row.
  template <class Result>
  DEVICE void each_result(u32 count, u32 m, const Result& result) {
    const u32 all = count * m * 32;
    for (u32 i = thread_id(); i - lane_id() < all; i += THREADS) {
      const u32 r = i % 2, pair = i / 2 % 2, g = i / 4 % 8, of_x = i / 32 % m, stripe = i / 32 / m;
      const u32 tile = of_x / OF_TILE, unit = of_x % OF_TILE / OF_LANE, e = of_x % OF_LANE;
      const u32 lane = UNITS == 1 ? 2 * pair + r : UNITS == 2 ? 2 * r + unit : unit;
      f32 mine = 0.0f;
      UNROLL for (u32 w = 0; w < SHARING; w++) {
        mine += total(w, stripe, number_of(tile, pair, r, e), 4 * g + lane);
      }
      mine += shuffle(mine, lane_id() ^ 2);
      const f32 high = shuffle(mine, lane_id() ^ 1);
      if (i % 4 == 0) result(stripe, g, of_x, mine, high);
    }
  }
};
