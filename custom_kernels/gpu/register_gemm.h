// y[m, n] = sum over k of x[m, k] * weight[n, k] for 9 to 16 rows of x on NVIDIA's matrix units, bound by reading
// the weight. Weights are multiplied as their codes, exactly, and the sums of a group's products are scaled.
//
// A workgroup has STRIPES of 16 weight rows; its waves share their columns, a piece of 128 in turn, and add what they have at
// the end, in their order. Each wave keeps copies of codes and of x under way for itself, and holds 16 rows of a piece of x in
// registers for all stripes: no barriers but at the end. Columns are a multiple of 128. bfloat16 numbers times codes that
// bfloat16 does not hold (8 bits, E2M1) become float16 ones, float32 numbers two: a piece of a row is multiplied by a power of
// two that its largest decides, so what is lost is below 2^-39, or 2^-22, of that.
#pragma once

#include "pair_arithmetic.h"
#include "register_feed.h"
#include "register_hints.h"
#include "rows_of_x.h"

template <u32 STRIPES, u32 WAVES_, class W, class X, bool PAIRED>
struct RegisterGemm {
  static constexpr bool WIDE = sizeof(X) == 4;
  static constexpr u32 M = 16, WAVES = WAVES_, TERMS = WIDE ? 2 : 1, THREADS = WAVES * WAVE;
  static constexpr u32 COLUMNS = (PAIRED ? STRIPE / 2 : STRIPE) * STRIPES;
  // Eight waves of up to four stripes are half of a multiprocessor's; others, with more registers each, all of it: they
  // load x straight from global memory, as all do whose x is wide.
  static constexpr bool DIRECT = WIDE || WAVES > 8 || STRIPES > 4;
  // Whether the next piece's x has registers of its own.
  static constexpr bool KEPT = DIRECT && !WIDE && (WAVES == 8 || STRIPES <= 3);
  static constexpr bool IN_HALVES = Element<X>::BITS > 8 || !IN_BF16<W>, CONVERTED = IN_HALVES && Element<X>::BITS != 11;
  using U = If<IN_HALVES, f16, BF16>;
  using C = CodePairs<W, U>;
  static constexpr u32 STEPS = 8, SHARING = STEPS_A_SCALE<W>, GROUPS = STEPS / SHARING;
  static constexpr bool MINIMUM = W::MINIMUM, SHIFTED = C::OFFSET != 0.0f && (WIDE || !MINIMUM);
  using Feed = RegisterFeed<W, C, STRIPES, WAVES, PAIRED>;
  static constexpr bool FED = Feed::SCALED;  // whether scales come with the codes
  // Whether products are summed as they are, since pairs have their scales, or a whole row has one.
  static constexpr bool ROW_SCALED = ROW_HAS_SCALE<W>, PLAIN = SCALED_PAIRS<C> || ROW_SCALED;
  // Bytes of local memory: of a row of x (what lanes read together is in different banks), of a stage, of a piece of x.
  static constexpr u32 OF_ROW = PIECE * 2 + (C::ORDER == NEIGHBOURS ? 64 : 32);
  static constexpr u32 STAGE = Feed::STAGE, OF_X = DIRECT ? 0 : M * OF_ROW;
  static constexpr u32 FITTING = (STRIPE_LOCAL / WAVES / 16 * 16 - OF_X) / STAGE, STAGES = FITTING < 5 ? FITTING : 5;
  static constexpr u32 AHEAD = STAGES - 1, OF_WAVE = STAGES * STAGE + OF_X;
  static_assert(STAGES >= 2 && WAVES * OF_WAVE <= STRIPE_LOCAL && WAVES * STRIPES * 1024 <= STRIPE_LOCAL);

  W low = W(Parts{}), high = W(Parts{});
  u32 low_first, low_end, high_first, high_end, k, pieces;
  const GLOBAL X* x;
  Products sum[STRIPES][2];   // of 8 rows of x each
  u32 of_x[4][2][TERMS][4];   // block, 8 rows, term, pairs of a lane
  f32 sums[GROUPS][2][2];     // of columns of x that share a scale: of rows 2 t and 2 t + 1
  f32 units[2][2];            // what products of those rows are multiplied by
  LOCAL u8* ring;             // the wave's local memory: stages, a piece of x

  MEMBER LOCAL u8* piece_of_x() const { return ring + STAGES * STAGE; }
  // Where chunk `chunk` of a row of x is.
  DEVICE u32 place_of(u32 row, u32 chunk) { return row * OF_ROW + chunk * 16; }
  MEMBER StripeRows<W> rows_of(u32 s) const {
    constexpr u32 ROWS = PAIRED ? STRIPE / 2 : STRIPE;
    return {low, high, low_first + s * ROWS, low_end, high_first + s * ROWS, high_end};
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

  // A piece of x as it is, in neighbouring pairs, or numbers where it is wide.
  using Raw = u32[4][2][TERMS][4];
  template <class Source>
  MEMBER void load_x(u32 piece, const Source& source, Raw& to) const {
    const u32 g = lane_id() / 4, t = lane_id() % 4;
    UNROLL for (u32 n = 0; n < 2; n++) {
      const GLOBAL X* row = x + ((u64)source(8 * n + g) * k + piece * PIECE);
      UNROLL for (u32 b = 0; b < 4; b++) {
        if constexpr (WIDE) {
          UNROLL for (u32 h = 0; h < 2; h++) {
            const u32x4 v = ((const GLOBAL u32x4*)row)[8 * b + (C::ORDER == NEIGHBOURS ? 2 * t + h : 4 * h + t)];
            UNROLL for (u32 i = 0; i < 4; i++) to[b][n][h][i] = v[i];
          }
        } else if constexpr (C::ORDER == NEIGHBOURS) {
          const u32x4 v = ((const GLOBAL u32x4*)row)[4 * b + t];
          UNROLL for (u32 i = 0; i < 4; i++) to[b][n][0][i] = v[i];
        } else {
          UNROLL for (u32 h = 0; h < 2; h++) {
            const u32x2 v = ((const GLOBAL u32x2*)row)[8 * b + 4 * h + t];
            UNROLL for (u32 i = 0; i < 2; i++) to[b][n][0][2 * h + i] = v[i];
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
  MEMBER void split_x() {
    const u32 lane = lane_id(), t = lane % 4;
    UNROLL for (u32 n = 0; n < 2; n++) {
      f32x4 v[4][2];
      f32 most = 0.0f;
      UNROLL for (u32 i = 0; i < 32; i++) {
        v[i / 8][i / 4 % 2][i % 4] = __builtin_bit_cast(f32, of_x[i / 8][n][i / 4 % 2 * (TERMS - 1)][i % 4]);
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
      UNROLL for (u32 i = 0; i < 16; i++) most[n] = larger_magnitudes(most[n], of_x[i / 4][n][0][i % 4]);
    }
    u32 largest = larger_magnitudes(halves_of(most[0], most[1], 0, 0), halves_of(most[0], most[1], 1, 1));
    UNROLL for (u32 mask = 1; mask < 4; mask *= 2) {
      largest = larger_magnitudes(largest, shuffle_bits(largest, lane ^ mask));
    }
    largest &= 0x7fff7fffu;
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
    if constexpr (PLAIN) {
      UNROLL for (u32 i = 0; i < STEPS; i++) {
        if (i % 2 == 0) {
          C::factor(piece, i / 2, a);
          if constexpr (SCALED_PAIRS<C>) {
            UNROLL for (u32 r = 0; r < 2; r++) {
              const u32 by = C::scale(scales.of[r].scale.words, i / 2);
              UNROLL for (u32 j = r; j < 8; j += 2) a[j / 4][j % 4] = half_multiply(a[j / 4][j % 4], by);
            }
          }
        }
        UNROLL for (u32 n = 0; n < 2; n++) {
          UNROLL for (u32 term = 0; term < TERMS; term++) {
            const u32(&v)[4] = of_x[i / 2][n][term];
            multiply_16x8<U>(a[i % 2], v[i % 2 * 2], v[i % 2 * 2 + 1], to[n]);
          }
        }
      }
    }
    UNROLL for (u32 s = 0; s < (PLAIN ? 0 : GROUPS); s++) {
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
    ring = (LOCAL u8*)launch_local<STRIPE_LOCAL>() + wave * OF_WAVE;
    Feed feed;
    // Workgroups begin at different pieces, since memory is slow to give all of them the same ones of x at once.
    const u32 turned = workgroup_id() * WAVES % pieces;
    const auto real = [&](u32 i) __attribute__((always_inline)) {
      const u32 at = i + turned;
      return at < pieces ? at : at - pieces;
    };
    feed.start(low, high, low_first, low_end, high_first, high_end, k, real(wave));
    UNROLL for (u32 s = 0; s < STRIPES; s++) {
      UNROLL for (u32 i = 0; i < 2; i++) sum[s][i] = {};
    }
    Raw coming_x = {};
    if (!DIRECT && wave < pieces) ask_for_x(real(wave), source);
    UNROLL for (u32 i = 0; i < AHEAD; i++) {
      if (wave + i / STRIPES * WAVES < pieces) feed.ask(i % STRIPES, ring + i * STAGE);
      feed.next((i + 1) % STRIPES == 0, real(wave + i / STRIPES * WAVES) + WAVES >= pieces);
      end_group();
    }
    if (DIRECT && wave < pieces) load_x(real(wave), source, KEPT ? coming_x : of_x);
    Scales coming = {};
    if (!FED && !ROW_SCALED && wave < pieces) ask_for_scales(coming, 0, real(wave));
    u32 stage = 0, before = AHEAD * STAGE;
    _Pragma("nounroll") for (u32 piece = wave; piece < pieces; piece += WAVES) {
      UNROLL for (u32 s = 0; s < STRIPES; s++) {
        if (s == 0 && DIRECT && !KEPT && piece != wave) load_x(real(piece), source, of_x);
        constexpr u32 SINCE_X = STRIPES - 1 < AHEAD - 1 ? STRIPES - 1 : AHEAD - 1;  // groups since that of x
        if (DIRECT || s > 0) {
          wait_for_groups<AHEAD - 1>();
        } else {
          wait_for_groups<SINCE_X>();
        }
        wave_meets();
        if (piece + (s + AHEAD) / STRIPES * WAVES < pieces) feed.ask((s + AHEAD) % STRIPES, ring + before);
        feed.next((s + AHEAD + 1) % STRIPES == 0, real(piece + (s + AHEAD) / STRIPES * WAVES) + WAVES >= pieces);
        if (!DIRECT && s == 0) {
          load_x();
          wave_meets();
          if (piece + WAVES < pieces) ask_for_x(real(piece + WAVES), source);
        }
        end_group();
        if (s == 0) {
          if constexpr (KEPT) {
            UNROLL for (u32 i = 0; i < 32 * TERMS; i++) {
              u32(&held)[TERMS][4] = of_x[i / TERMS / 8][i / TERMS / 4 % 2];
              held[i % TERMS][i / TERMS % 4] = coming_x[i / TERMS / 8][i / TERMS / 4 % 2][i % TERMS][i / TERMS % 4];
            }
            if (piece + WAVES < pieces) load_x(real(piece + WAVES), source, coming_x);
          }
          if constexpr (WIDE) split_x();
          if constexpr (CONVERTED && !WIDE) convert_x();
          if constexpr (!WIDE) order_x();
          if constexpr (MINIMUM) sum_x();
        }
        Scales scales = coming;
        if constexpr (FED) {
          UNROLL for (u32 r = 0; r < 2; r++) Feed::load_scales(ring + stage, lane_id() / 4 + 8 * r, scales.of[r]);
        } else if constexpr (!ROW_SCALED) {
          const bool last = s + 1 == STRIPES;
          const u32 later = last ? piece + WAVES : piece;
          if (later < pieces) ask_for_scales(coming, last ? 0 : s + 1, real(later));
        }
        multiply(ring + stage, scales, sum[s]);
        before = stage;
        stage = stage == AHEAD * STAGE ? 0 : stage + STAGE;
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
      f32 of_low = whole_low, of_high = whole_high;
      if constexpr (ROW_SCALED) {
        const StripeRows<W> rows = rows_of(stripe);
        of_low *= scale_of_row(low, rows.in_tensor(g));
        of_high *= scale_of_row(high, rows.in_tensor(g + 8));
      }
      UNROLL for (u32 e = 0; e < 2; e++) {
        const f32 one = total[e] * of_low, other = total[2 + e] * of_high;
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
