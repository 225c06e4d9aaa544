// y[m, n] = sum over k of x[m, k] * weight[n, k] for 9 to 16 rows of x on NVIDIA's matrix units, bound by reading
// the weight. Weights are multiplied as their codes, exactly, and the sums of a group's products are scaled.
//
// A workgroup has STRIPES of 16 weight rows; its waves share their columns, a piece of 128 in turn, and add what they have at
// the end, in their order. Each wave keeps copies of codes and of x under way for itself, and holds 16 rows of a piece of x in
// registers for all stripes: no barriers but at the end. Columns are a multiple of 128. bfloat16 numbers times codes that
// bfloat16 does not hold (8 bits, E2M1) become float16 ones, float32 numbers two: a piece of a row is multiplied by a power of
// two that its largest decides, so what is lost is below 2^-39, or 2^-22, of that.
#pragma once

#include "async_copy.h"
#include "code_pairs.h"
#include "pair_arithmetic.h"
#include "register_hints.h"
#include "rows_of_x.h"
#include "stripe.h"

template <u32 STRIPES, u32 WAVES_, class W, class X, bool PAIRED>
struct RegisterGemm {
  // Eight waves are half of a multiprocessor's; twelve, with 168 registers each, all of it: they load x straight from global memory.
  static constexpr bool DIRECT = WAVES_ > 8, WIDE = sizeof(X) == 4;
  static constexpr u32 M = 16, WAVES = WAVES_, TERMS = WIDE ? 2 : 1, THREADS = WAVES * WAVE, COLUMNS = (PAIRED ? STRIPE / 2 : STRIPE) * STRIPES;
  static constexpr bool IN_HALVES = Element<X>::BITS > 8 || !IN_BF16<W>, CONVERTED = IN_HALVES && Element<X>::BITS != 11;
  using U = If<IN_HALVES, f16, BF16>;
  using C = CodePairs<W, U>;
  static constexpr u32 STEPS = 8, SHARING = STEPS_A_SCALE<W>, GROUPS = STEPS / SHARING;
  static constexpr bool MINIMUM = W::MINIMUM, SHIFTED = C::OFFSET != 0.0f && (WIDE || !MINIMUM);
  // Bytes of local memory: of a stage, of a piece of x.
  static constexpr u32 STAGE = STRIPE * C::STRIDE;
  static constexpr u32 OF_X = DIRECT ? 0 : M * PIECE * 2;
  static constexpr u32 FITTING = (STRIPE_LOCAL / WAVES - OF_X) / STAGE, STAGES = FITTING < 5 ? FITTING : 5;
  static constexpr u32 OF_WAVE = STAGES * STAGE + OF_X;
  static_assert(STAGES >= 2 && WAVES * OF_WAVE <= STRIPE_LOCAL && WAVES * STRIPES * 1024 <= STRIPE_LOCAL && (DIRECT || !WIDE));

  W low = W(Parts{}), high = W(Parts{});
  u32 low_first, low_end, high_first, high_end, k, pieces;
  const GLOBAL X* x;
  Products sum[STRIPES][2];   // of 8 rows of x each
  u32 of_x[4][2][TERMS][4];   // block, 8 rows, term, pairs of a lane
  f32 sums[GROUPS][2][2];     // of columns of x that share a scale: of rows 2 t and 2 t + 1
  f32 units[2][2];            // what products of those rows are multiplied by

  DEVICE LOCAL u8* ring() { return (LOCAL u8*)launch_local<STRIPE_LOCAL>() + wave_id() * OF_WAVE; }
  DEVICE LOCAL u8* piece_of_x() { return ring() + STAGES * STAGE; }
  // Where chunk `chunk` of a row of x is, so that what lanes read together is in different banks.
  DEVICE u32 place_of(u32 row, u32 chunk) {
    return row * (PIECE * 2) + (chunk ^ (C::ORDER == NEIGHBOURS ? (row & 1) * 4 : (row & 3) * 2)) * 16;
  }
  MEMBER StripeRows<W> rows_of(u32 s) const {
    constexpr u32 ROWS = PAIRED ? STRIPE / 2 : STRIPE;
    return {low, high, low_first + s * ROWS, low_end, high_first + s * ROWS, high_end};
  }

  // What a lane copies of each stage: whole rows to a copy, or, where those are not 64 or 128 bytes, all chunks of a row by
  // two lanes. The first place of codes, and of high bits, in a tensor of rows 0 to 7, and 8 to 15, of the first stripe.
  static constexpr bool EVEN = C::CHUNKS == 4 || C::CHUNKS == 8;
  static constexpr u32 COPIES = (C::CHUNKS + 1) / 2, HIGH = C::CHUNKS - C::FIRST;
  struct Feed {
    const GLOBAL u8* codes[EVEN ? 2 : 1];
    const GLOBAL u8* high;
    u32 of_row, of_high, left;  // bytes of a row; how many rows there are from the lane's first one on
  };
  MEMBER Feed feed() const {
    Feed f = {};
    const u32 lane = lane_id(), row = EVEN ? lane / C::CHUNKS : lane % STRIPE, chunk = EVEN ? lane % C::CHUNKS : lane / STRIPE;
    f.of_row = k / 8 * C::FIRST;
    f.of_high = k / 8 * HIGH;
    const u32 of_low = low_first + row, of_high = high_first + (EVEN ? row : row - 8);
    const GLOBAL u8* const from[2] = {(const GLOBAL u8*)low.parts.codes + (u64)of_low * f.of_row + chunk * 16,
                                      (const GLOBAL u8*)high.parts.codes + (u64)of_high * f.of_row + chunk * 16};
    f.codes[0] = EVEN || row < 8 ? from[0] : from[1];
    if constexpr (EVEN) f.codes[1] = from[1];
    if constexpr (HIGH > 0) {
      const GLOBAL u8* of_tensor = (const GLOBAL u8*)(row < 8 ? low : high).parts.high;
      f.high = of_tensor + (u64)(row < 8 ? of_low : of_high) * f.of_high + chunk * 16;
    }
    const u32 first = EVEN || row < 8 ? of_low : of_high, end = EVEN || row < 8 ? low_end : high_end;
    f.left = first < end ? end - first : 0u;
    return f;
  }
  MEMBER void ask_for_codes(const Feed& f, u32 s, u32 piece, u32 stage) const {
    constexpr u32 ROWS = PAIRED ? STRIPE / 2 : STRIPE, OF_COPY = WAVE / C::CHUNKS;
    const u32 lane = lane_id(), row = EVEN ? lane / C::CHUNKS : lane % STRIPE, chunk = EVEN ? lane % C::CHUNKS : lane / STRIPE;
    LOCAL u8* to = ring() + stage + row * C::STRIDE + chunk * 16;
    const u32 before = s * ROWS, at = before * f.of_row + piece * (C::FIRST * 16);
    UNROLL for (u32 i = 0; i < COPIES; i++) {
      if constexpr (EVEN) {
        const u32 later = i % (COPIES / 2) * OF_COPY, of_half = i / (COPIES / 2);
        const bool there = before + later + (PAIRED ? 0 : of_half * 8) < f.left;
        copy_async((LOCAL u32x4*)(to + i * OF_COPY * C::STRIDE),
                   (const GLOBAL u32x4*)(f.codes[of_half] + (at + later * f.of_row)), there);
      } else {
        const GLOBAL u8* from = f.codes[0] + (at + i * 32);
        if (HIGH > 0 && 2 * i >= C::FIRST) from = f.high + (before * f.of_high + piece * (HIGH * 16) + (2 * i - C::FIRST) * 16);
        if (2 * i + 1 < C::CHUNKS || chunk == 0) copy_async((LOCAL u32x4*)(to + i * 32), (const GLOBAL u32x4*)from, before < f.left);
      }
    }
  }
  template <class Source>
  MEMBER void ask_for_x(u32 piece, const Source& source) const {
    const u32 lane = lane_id(), chunk = lane % 16, column = piece * PIECE + chunk * 8;
    UNROLL for (u32 i = 0; i < 8; i++) {
      const u32 row = 2 * i + anew(lane / 16);
      copy_async<false>((LOCAL u32x4*)(piece_of_x() + place_of(row, chunk)),
                        (const GLOBAL u32x4*)(x + ((u64)source(row) * k + column)), true);
    }
  }

  // Scales of rows g and g + 8 of a stripe.
  struct Scales {
    SpanScales<W> of[2];
  };
  MEMBER void ask_for_scales(Scales& scales, u32 s, u32 piece) const {
    const StripeRows<W> rows = rows_of(anew(s));
    const u32 g = lane_id() / 4;
    scales.of[0].template ask<true>(low, rows.in_tensor(g), piece);
    scales.of[1].template ask<true>(high, rows.in_tensor(g + 8), piece);
  }

  template <class Source>
  MEMBER void load_x(u32 piece, const Source& source) {
    const u32 g = lane_id() / 4, t = lane_id() % 4;
    UNROLL for (u32 n = 0; n < 2; n++) {
      const GLOBAL X* row = x + ((u64)source(8 * n + g) * k + piece * PIECE);
      UNROLL for (u32 b = 0; b < 4; b++) {
        if constexpr (C::ORDER == NEIGHBOURS) {
          const u32x4 v = ((const GLOBAL u32x4*)row)[4 * b + t];
          UNROLL for (u32 i = 0; i < 4; i++) of_x[b][n][0][i] = v[i];
        } else {
          UNROLL for (u32 h = 0; h < 2; h++) {
            const u32x2 v = ((const GLOBAL u32x2*)row)[8 * b + 4 * h + t];
            UNROLL for (u32 i = 0; i < 2; i++) of_x[b][n][0][2 * h + i] = v[i];
          }
        }
      }
    }
  }
  // A piece of x into registers, in neighbouring pairs.
  MEMBER void load_x() {
    const u32 g = lane_id() / 4, t = lane_id() % 4;
    UNROLL for (u32 n = 0; n < 2; n++) {
      UNROLL for (u32 b = 0; b < 4; b++) {
        const u32 row = 8 * n + g;
        if constexpr (C::ORDER == NEIGHBOURS) {
          const u32x4 v = *(const LOCAL u32x4*)(piece_of_x() + place_of(row, 4 * b + t));
          UNROLL for (u32 i = 0; i < 4; i++) of_x[b][n][0][i] = v[i];
        } else {
          UNROLL for (u32 h = 0; h < 2; h++) {
            const u32x2 v = *(const LOCAL u32x2*)(piece_of_x() + place_of(row, 4 * b + 2 * h + t / 2) + t % 2 * 8);
            UNROLL for (u32 i = 0; i < 2; i++) of_x[b][n][0][2 * h + i] = v[i];
          }
        }
      }
    }
  }
  // Pairs as those of the codes are.
  MEMBER void order_x() {
    UNROLL for (u32 n = 0; n < 2; n++) {
      UNROLL for (u32 b = 0; b < 4; b++) {
        u32(&p)[4] = of_x[b][n][0];
        const u32 v[4] = {p[0], p[1], p[2], p[3]};
        if constexpr (C::ORDER == NEIGHBOURS) {
          UNROLL for (u32 i = 0; i < 4; i++) p[i] = halves_of(v[i / 2], v[i / 2 + 2], i % 2, i % 2);
        } else if constexpr (C::ORDER == LINEAR) {
          UNROLL for (u32 i = 0; i < 4; i++) p[i] = halves_of(v[i / 2 * 2], v[i / 2 * 2 + 1], i % 2, i % 2);
        }
      }
    }
  }
  // Of the exponents of numbers those that leave what they are multiplied by, and `units`, normal.
  DEVICE u32 exponent_of(u32 bits) {
    const u32 found = bits & 255u;
    return found < 15 ? 15u : smaller(found, 254u);
  }
  // A piece of float32 numbers as two float16 terms, and `units`.
  template <class Source>
  MEMBER void load_wide_x(u32 piece, const Source& source) {
    const u32 lane = lane_id(), g = lane / 4, t = lane % 4;
    UNROLL for (u32 n = 0; n < 2; n++) {
      const GLOBAL f32x4* row = (const GLOBAL f32x4*)(x + ((u64)source(8 * n + g) * k + piece * PIECE));
      f32x4 v[4][2];
      f32 most = 0.0f;
      UNROLL for (u32 b = 0; b < 4; b++) {
        UNROLL for (u32 h = 0; h < 2; h++) v[b][h] = row[8 * b + (C::ORDER == NEIGHBOURS ? 2 * t + h : 4 * h + t)];
      }
      UNROLL for (u32 i = 0; i < 32; i++) most = larger_magnitude(most, v[i / 8][i / 4 % 2][i % 4]);
      UNROLL for (u32 mask = 1; mask < 4; mask *= 2) most = larger_magnitude(most, shuffle(most, lane ^ mask));
      const u32 largest = __builtin_bit_cast(u32, most);
      const f32 factor = __builtin_bit_cast(f32, (268u - exponent_of(largest >> 23)) << 23);
      UNROLL for (u32 b = 0; b < 4; b++) {
        UNROLL for (u32 p = 0; p < 4; p++) {
          constexpr bool NEXT = C::ORDER == NEIGHBOURS, ADJOIN = C::ORDER == ADJACENT;
          const f32 low_one = (NEXT ? v[b][0][p] : v[b][p / 2][ADJOIN ? p % 2 * 2 : p % 2]) * factor;
          const f32 high_one = (NEXT ? v[b][1][p] : v[b][p / 2][ADJOIN ? p % 2 * 2 + 1 : p % 2 + 2]) * factor;
          const u32 pair = half_pair(low_one, high_one);
          of_x[b][n][0][p] = pair;
          of_x[b][n][TERMS - 1][p] = half_pair(low_one - low_half(pair), high_one - high_half(pair));
        }
      }
      UNROLL for (u32 e = 0; e < 2; e++) {
        const u32 of_row = shuffle_bits(largest, 4 * (2 * t + e));
        units[n][e] = __builtin_bit_cast(f32, (exponent_of(of_row >> 23) - 14u) << 23);
      }
    }
  }
  // bfloat16 to float16, and `units`.
  MEMBER void convert_x() {
    const u32 lane = lane_id(), t = lane % 4;
    u32 most[2] = {};
    UNROLL for (u32 n = 0; n < 2; n++) {
      UNROLL for (u32 i = 0; i < 16; i++) most[n] = larger_pair(most[n], of_x[i / 4][n][0][i % 4] & 0x7fff7fffu);
    }
    u32 largest = larger_pair(halves_of(most[0], most[1], 0, 0), halves_of(most[0], most[1], 1, 1));
    UNROLL for (u32 mask = 1; mask < 4; mask *= 2) largest = larger_pair(largest, shuffle_bits(largest, lane ^ mask));
    UNROLL for (u32 n = 0; n < 2; n++) {
      const u32 factor = (268u - exponent_of(largest >> (16 * n + 7))) * 0x00800080u;
      UNROLL for (u32 i = 0; i < 16; i++) {
        u32& pair = of_x[i / 4][n][0][i % 4];
        const u32 two = bf16_multiply(pair, factor);
        pair = half_pair(__builtin_bit_cast(f32, two << 16), __builtin_bit_cast(f32, two & 0xffff0000u));
      }
    }
    UNROLL for (u32 e = 0; e < 2; e++) {
      const u32 of_row = shuffle_bits(largest, 4 * (2 * t + e));
      UNROLL for (u32 n = 0; n < 2; n++) units[n][e] = __builtin_bit_cast(f32, (exponent_of(of_row >> (16 * n + 7)) - 14u) << 23);
    }
  }
  // Sums of x, by the matrix units: products with ones.
  MEMBER void sum_x() {
    constexpr u32 ONES = Element<U>::BITS == 8 ? 0x3f803f80u : 0x3c003c00u;
    const u32 ones[4] = {ONES, ONES, ONES, ONES};
    UNROLL for (u32 s = 0; s < GROUPS; s++) {
      UNROLL for (u32 n = 0; n < 2; n++) {
        Products total = {};
        UNROLL for (u32 i = s * SHARING; i < (s + 1) * SHARING; i++) {
          UNROLL for (u32 term = 0; term < TERMS; term++) {
            const u32(&v)[4] = of_x[i / 2][n][term];
            multiply_16x8<U>(ones, v[i % 2 * 2], v[i % 2 * 2 + 1], total);
          }
        }
        UNROLL for (u32 e = 0; e < 2; e++) sums[s][n][e] = total.of[e];
      }
    }
  }

  DEVICE u32 shifted(u32 pair) {
    if constexpr (Element<U>::BITS == 8) return bf16_multiply_add(pair, 0x3f803f80u, two_of_bf16(-C::OFFSET));
    return half_add(pair, -C::OFFSET);
  }

  MEMBER void multiply(const LOCAL u8* stage, const Scales& scales, Products (&total)[2]) const {
    typename C::Piece piece;
    C::load(stage, piece);
    Products of_piece[2] = {};
    Products(&to)[2] = CONVERTED ? of_piece : total;
    f32 scale[2][W::GROUPS], least[2][W::GROUPS] = {};
    u32 a[2][4];
    UNROLL for (u32 s = 0; s < GROUPS; s++) {
      Products products[2] = {};
      UNROLL for (u32 i = s * SHARING; i < (s + 1) * SHARING; i++) {
        if (i % 2 == 0) {
          C::factor(piece, i / 2, a);
          if constexpr (SHIFTED) {
            UNROLL for (u32 j = 0; j < 8; j++) a[j / 4][j % 4] = shifted(a[j / 4][j % 4]);
          }
        }
        UNROLL for (u32 n = 0; n < 2; n++) {
          UNROLL for (u32 term = 0; term < TERMS; term++) {
            const u32(&v)[4] = of_x[i / 2][n][term];
            multiply_16x8<U>(a[i % 2], v[i % 2 * 2], v[i % 2 * 2 + 1], products[n]);
          }
        }
      }
      UNROLL for (u32 r = 0; r < 2; r++) {
        if (s * SHARING % 2 == 0) scales.of[r].scales(s * SHARING / 2, scale[r], least[r]);
        const u32 of_block = SHARING == 1 ? s % 2 : 0;
        const f32 by = scale[r][of_block], add = SHIFTED || !MINIMUM ? least[r][of_block] : multiply_add(-C::OFFSET, by, least[r][of_block]);
        UNROLL for (u32 n = 0; n < 2; n++) {
          UNROLL for (u32 e = 0; e < 2; e++) {
            f32& one = to[n].of[2 * r + e];
            one = multiply_add(products[n].of[2 * r + e], by, one);
            if constexpr (MINIMUM) one = multiply_add(sums[s][n][e], add, one);
            now(one);
          }
        }
      }
    }
    if constexpr (CONVERTED) {
      UNROLL for (u32 n = 0; n < 2; n++) {
        UNROLL for (u32 i = 0; i < 4; i++) {
          total[n].of[i] = multiply_add(of_piece[n].of[i], units[n][i % 2], total[n].of[i]);
          now(total[n].of[i]);
        }
      }
    }
  }

  // As FragmentGemm's.
  template <class Source, class Store>
  MEMBER void run(const GLOBAL X* x_, W a, W b, u32 first_a, u32 first_b, u32 n, u32 k_, u32 first_n, const Source& source,
                  const Store& store) {
    x = x_;
    k = k_;
    low = a;
    high = PAIRED ? b : a;
    low.runs = high.runs = k / W::RUN;
    low_first = first_a + first_n;
    low_end = first_a + n;
    high_first = PAIRED ? first_b + first_n : low_first + 8;
    high_end = PAIRED ? first_b + n : low_end;
    pieces = k / PIECE;
    const u32 wave = wave_id();
    const Feed f = feed();
    UNROLL for (u32 s = 0; s < STRIPES; s++) {
      UNROLL for (u32 i = 0; i < 2; i++) sum[s][i] = {};
    }
    u32 asked = wave, asked_slot = 0, asked_stage = 0, stage = 0;
    const auto ask = [&]() __attribute__((always_inline)) {
      if (asked < pieces) ask_for_codes(f, asked_slot, asked, asked_stage);
      asked_stage = asked_stage == (STAGES - 1) * STAGE ? 0 : asked_stage + STAGE;
      if (++asked_slot == STRIPES) {
        asked_slot = 0;
        asked += WAVES;
      }
    };
    if (!DIRECT && wave < pieces) ask_for_x(wave, source);
    _Pragma("nounroll") for (u32 i = 0; i < STAGES - 1; i++) {
      ask();
      end_group();
    }
    Scales coming = {};
    if (wave < pieces) ask_for_scales(coming, 0, wave);
    _Pragma("nounroll") for (u32 piece = wave; piece < pieces; piece += WAVES) {
      UNROLL for (u32 s = 0; s < STRIPES; s++) {
        if constexpr (DIRECT) {
          if (s == 0 && !WIDE) load_x(piece, source);
          if (s == 0 && WIDE) load_wide_x(piece, source);
        }
        constexpr u32 SINCE_X = STRIPES - 1 < STAGES - 2 ? STRIPES - 1 : STAGES - 2;  // groups since that of x
        if (DIRECT || s > 0) {
          wait_for_groups<STAGES - 2>();
        } else {
          wait_for_groups<SINCE_X>();
        }
        wave_meets();
        ask();
        if (!DIRECT && s == 0) {
          load_x();
          wave_meets();
          if (piece + WAVES < pieces) ask_for_x(piece + WAVES, source);
        }
        end_group();
        if (s == 0) {
          if constexpr (CONVERTED && !WIDE) convert_x();
          if constexpr (!WIDE) order_x();
          if constexpr (MINIMUM) sum_x();
        }
        const Scales scales = coming;
        const bool last = s + 1 == STRIPES;
        const u32 next = last ? piece + WAVES : piece;
        if (next < pieces) ask_for_scales(coming, last ? 0 : s + 1, next);
        multiply(ring() + stage, scales, sum[s]);
        stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
      }
    }
    wait_for_groups<0>();
    barrier();
    gather(first_n, store);
  }

  // The sums of all waves, the first wave's first, and what becomes of them.
  template <class Store>
  MEMBER void gather(u32 first_n, const Store& store) const {
    LOCAL f32x4* all = (LOCAL f32x4*)launch_local<STRIPE_LOCAL>();
    constexpr u32 ITEMS = STRIPES * 2 * WAVE;
    UNROLL for (u32 i = 0; i < STRIPES * 2; i++) {
      const f32(&of)[4] = sum[i / 2][i % 2].of;
      all[wave_id() * ITEMS + i * WAVE + lane_id()] = (f32x4){of[0], of[1], of[2], of[3]};
    }
    barrier();
    const f32 whole_low = SpanScales<W>::whole(low) * C::UNIT, whole_high = SpanScales<W>::whole(high) * C::UNIT;
    for (u32 item = thread_id(); item < ITEMS; item += THREADS) {
      f32x4 total = all[item];
      UNROLL for (u32 w = 1; w < WAVES; w++) total += all[w * ITEMS + item];
      const u32 g = item % WAVE / 4, t = item % 4, stripe = item / WAVE / 2, row = item / WAVE % 2 * 8 + 2 * t;
      UNROLL for (u32 e = 0; e < 2; e++) {
        const f32 one = total[e] * whole_low, other = total[2 + e] * whole_high;
        if constexpr (PAIRED) {
          store(row + e, first_n + stripe * 8 + g, one, other);
        } else {
          store(row + e, first_n + stripe * STRIPE + g, one, one);
          store(row + e, first_n + stripe * STRIPE + g + 8, other, other);
        }
      }
    }
  }
};
