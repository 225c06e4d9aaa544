// A mixture of experts for one token in one launch, as moe_one.h has it, for 4-bit weights whose rows are whole eights:
// expert_spans.h over codes that come into local memory, span after span, by copies that each wave keeps under way.
//
// Units of gate and up are stripes of 8 rows of each, units of down stripes of 8 rows over all chosen experts, two at a time. A wave takes
// every 16th span of a unit and goes on into the next one, so that the weights of down are under way while the others end
// gate and up. Nobody signals the end: h lies where all was zero, a zero of h is stored as minus zero, and who needs h asks
// until nothing is plus zero. grid_order.h says why that ends.
#pragma once

#include "launch_local.h"
#include "span_walk.h"

#if !defined(__AMDGCN__)

inline constexpr u32 SPANS_LOCAL = 224 * 1024, SPANS_STAGES = 4;

// Local memory, after the waves' codes: x or h; scales of two units in turn; sums of tasks.
template <class W, class X>
struct SpansLocal {
  using C = SpanCodes<W>;
  SpansOfX<W, X> x;
  LOCAL u8* scales;  // of units of even numbers
  u32 apart;         // bytes to those of odd ones
  LOCAL f32* slots;
  u32 of_up[2] = {}, of_down[2] = {};  // bytes of 8 rows of an array of scales

  MEMBER explicit SpansLocal(const SpansPlan& p) {
    LOCAL u8* at = (LOCAL u8*)launch_local<SPANS_LOCAL>() + ONE_WAVES * SPANS_STAGES * SPAN_BYTES;
    const u32 blocks = larger(p.up.padded, p.down.padded * p.s.choice.k);
    x.digits = at;
    at += blocks / 2 * SpansOfX<W, X>::OF_PAIR;
    x.unit = (LOCAL f32*)at;
    at += blocks * 4;
    x.sum = (LOCAL f32*)at;
    if (W::MINIMUM) at += blocks * 4;
    u32 bytes[2] = {};
    UNROLL for (u32 a = 0; a < C::ARRAYS; a++) {
      of_up[a] = 8 * C::row_bytes(a, p.up.k);
      of_down[a] = 8 * C::row_bytes(a, p.down.k);
      bytes[0] += of_up[a];
      bytes[1] += of_down[a];
    }
    const u32 in_up = p.s.of_up.most() * 2 * bytes[0];
    const u32 in_down = p.s.of_down.most() * p.expert_pairs * 2 * bytes[1], most = larger(in_up, in_down);
    scales = at;
    apart = most;
    slots = (LOCAL f32*)(at + 2 * most);
  }
  // Where the scales of 8 rows are, in those of a unit; half: of a pair.
  MEMBER LOCAL u8* scales_at(u32 region, u32 array, bool is_down, u32 pairs, u32 pair, u32 half) const {
    const u32 before = array ? pairs * 2 * of(0, is_down) : 0;
    return scales + (region ? apart : 0) + before + (pair * 2 + half) * of(array, is_down);
  }
  MEMBER u32 of(u32 array, bool is_down) const {  // all of both, lest they be in memory that is indexed
    const u32 first[2] = {of_up[0], of_down[0]}, second[2] = {of_up[1], of_down[1]};
    const u32 up = array ? second[0] : first[0], down = array ? second[1] : first[1];
    return is_down ? down : up;
  }
};

template <class W, class X, bool BIASED, bool NORMED>
struct OneSpans {
  using C = SpanCodes<W>;
  const SpansPlan& p;
  const SpansLocal<W, X>& local;
  const W &gate, &up, &down;
  u32 wave, lane;

  MEMBER const GLOBAL u8* codes_of(bool is_down, bool high) const {
    return (const GLOBAL u8*)(is_down ? down.parts.codes : high ? up.parts.codes : gate.parts.codes);
  }
  MEMBER const GLOBAL u8* scales_of(u32 a, bool is_down, bool high) const {
    const GLOBAL u8 *of_gate = C::array_of(gate, a), *of_up = C::array_of(up, a), *of_down = C::array_of(down, a);
    return is_down ? of_down : high ? of_up : of_gate;
  }

  MEMBER void ask_scales(u32 unit, u32 region) const {
    const bool is_down = p.is_down(unit);
    const u32 pairs = p.pairs(unit);
    _Pragma("nounroll") for (u32 half_pair = wave; half_pair < pairs * 2; half_pair += ONE_WAVES) {  // 8 rows a wave
      const SpanRows rows = span_rows(p, unit, half_pair / 2);
      const u32 half = half_pair % 2;
      UNROLL for (u32 a = 0; a < C::ARRAYS; a++) {
        const u32 bytes = local.of(a, is_down);
        const GLOBAL u8* from = scales_of(a, is_down, half) + (u64)((half ? rows.high : rows.low) / 8) * bytes;
        LOCAL u8* to = local.scales_at(region, a, is_down, pairs, half_pair / 2, half);
        _Pragma("nounroll") for (u32 at = lane * 16; at < bytes; at += WAVE * 16) {
          copy_async<false>((LOCAL u32x4*)(to + at), (const GLOBAL u32x4*)(from + at), true);
        }
      }
    }
  }
  MEMBER void ask_span(u32 unit, const SpanWalk& walk, LOCAL u8* to) const {
    const bool is_down = p.is_down(unit);
    const u32 bytes = (is_down ? p.down.k : p.up.k) / 2, row = lane / 8, at = walk.span * SPAN_ROW + lane % 8 * 16;
    const bool there = at < bytes;
    u32 first, second;
    if (is_down) {
      const u32 in_expert = (p.first(unit) + walk.major) * 8 + row;
      first = OneToken::expert[2 * walk.minor] * p.s.hidden + in_expert;
      second = OneToken::expert[second_of_pair(p, walk.minor)] * p.s.hidden + in_expert;
    } else {
      first = second = OneToken::expert[walk.major] * p.s.inner + walk.minor * 8 + row;
    }
    const GLOBAL u8 *low = codes_of(is_down, false) + (u64)first * bytes + at, *high = codes_of(is_down, true) + (u64)second * bytes + at;
    LOCAL u8* place = to + row * SPAN_STRIDE + lane % 8 * 16;
    UNROLL for (u32 i = 0; i < 4; i++) {
      const GLOBAL u8* from = (i < 2 ? low : high) + i % 2 * 4 * bytes;
      copy_async((LOCAL u32x4*)(place + i * 4 * SPAN_STRIDE), (const GLOBAL u32x4*)from, there);
    }
  }

  // Eight columns of x, and of the norm's weight.
  struct Columns {
    Four<X> x[2] = {};
    f32x4 weight[2] = {};
  };
  MEMBER void load_columns(const GLOBAL X* x, const RmsNorm& norm, u32 item, Columns& columns) const {
    if (item * 8 >= p.up.k) return;
    UNROLL for (u32 q = 0; q < 2; q++) {
      columns.x[q] = ask4(x, item * 2 + q);
      if constexpr (NORMED) columns.weight[q] = ((const GLOBAL f32x4*)norm.weight)[item * 2 + q];
    }
    UNROLL for (u32 q = 0; q < 2; q++) {
      asked(columns.x[q]);
      if constexpr (NORMED) asked(columns.weight[q]);
    }
  }
  // x, by the first THREADS threads, of which each has loaded its first columns; factor: of the norm.
  template <u32 THREADS>
  MEMBER void stage_x(const GLOBAL X* x, const RmsNorm& norm, f32 factor, Columns columns) const {
    for (u32 item = thread_id(); item < p.up.padded * 4; item += THREADS) {
      if (item != thread_id()) {
        columns = Columns{};
        load_columns(x, norm, item, columns);
      }
      f32 v[8] = {};
      if (item * 8 < p.up.k) {
        UNROLL for (u32 q = 0; q < 2; q++) {
          f32x4 four = widen4(columns.x[q]);
          if constexpr (NORMED) four = rounded4<X>(normalized(four, columns.weight[q], factor, norm.offset));
          UNROLL for (u32 c = 0; c < 4; c++) v[4 * q + c] = four[c];
        }
      }
      wave_meets();
      local.x.put(item / 4, v);
    }
  }
  // The chosen experts' h, as it comes: all that a thread waits for is asked for together.
  MEMBER void stage_h(const GLOBAL f32* h, u32 k) const {
    constexpr u32 TOGETHER = 3;
    const u32 own = p.down.padded * 4, items = k * own;
    for (u32 start = 0; start < items; start += ONE_THREADS * TOGETHER) {
      f32 v[TOGETHER][8];
      const GLOBAL f32* from[TOGETHER];
      u32 missing[TOGETHER], any = 0;
      UNROLL for (u32 i = 0; i < TOGETHER; i++) {
        const u32 item = start + i * ONE_THREADS + thread_id(), first_block = item / (4 * SPAN_BLOCKS);
        const u32 row = divided(first_block, p.s.by_down_spans), first = (item - row * own) * 8;
        missing[i] = item < items && first < p.down.k;
        from[i] = h + row * p.down.k + first;
        any |= missing[i];
        UNROLL for (u32 c = 0; c < 8; c++) v[i][c] = 0.0f;
      }
      while (any) {
        UNROLL for (u32 i = 0; i < TOGETHER; i++) {
          if (!missing[i]) continue;
          UNROLL for (u32 q = 0; q < 2; q++) {
            const f32x4 four = load_fresh(from[i], q);
            UNROLL for (u32 c = 0; c < 4; c++) v[i][4 * q + c] = four[c];
          }
        }
        any = 0;
        UNROLL for (u32 i = 0; i < TOGETHER; i++) {
          if (!missing[i]) continue;
          missing[i] = 0;
          UNROLL for (u32 c = 0; c < 8; c++) missing[i] |= __builtin_bit_cast(u32, v[i][c]) == 0;
          any |= missing[i];
        }
        if (any) nobody_comes();
      }
      wave_meets();
      UNROLL for (u32 i = 0; i < TOGETHER; i++) {
        const u32 item = start + i * ONE_THREADS + thread_id();
        if (item < items) local.x.put(item / 4, v[i]);  // the same for a whole wave
      }
    }
  }

  template <class Values>
  MEMBER f32 sum_of_spans(u32 pair, u32 spans, const Values& slots) const {
    f32 sum = slots[pair * spans * 16];
    _Pragma("unroll 4") for (u32 span = 1; span < spans; span++) sum += slots[(pair * spans + span) * 16];
    return sum;
  }
};

template <class W, bool BIASED, bool NORMED, class X>
DEVICE void moe_one_spans(const GLOBAL X* logits, const GLOBAL i32* positions, const GLOBAL f32* correction,
                          const GLOBAL X* x, W gate, W up, W down, const GatedBy gated, const GLOBAL f32* bias,
                          const RmsNorm norm, const Residual<X> residual, GLOBAL X* y, GLOBAL u32* scratch, u32 slot,
                          const SpansShape s) {
  GLOBAL f32* h = (GLOBAL f32*)half_of_launch(scratch, slot);
  GLOBAL u32* counters = scratch + SCRATCH_WORDS + slot * COUNTER_WORDS;
  const SpansPlan p(s);
  const SpansLocal<W, X> local(p);
  const u32 wave = wave_id(), lane = lane_id(), thread = thread_id(), k = s.choice.k;
  using C = SpanCodes<W>;
  const OneSpans<W, X, BIASED, NORMED> one = {p, local, gate, up, down, wave, lane};
  LOCAL u8* ring = (LOCAL u8*)launch_local<SPANS_LOCAL>() + wave * SPANS_STAGES * SPAN_BYTES;
  const i32 position = positions[0];
  clear_other_half(scratch, slot, s.units, ONE_THREADS);

  typename OneSpans<W, X, BIASED, NORMED>::Columns columns;
  f32 score = 0.0f;
  u32 second = 0;  // ticket, asked for before the weights, lest it come after them; of mxfp4, which lacks a register, later
  if (wave == TAKER / WAVE) {
    u32 ticket = 0;
    if (thread == TAKER) ticket = take_ticket(counters);
    u32 id = 0;
    const auto meet = []() __attribute__((always_inline)) { wave_meets(); };
    if (s.choice.experts <= 4 * WAVE) {
      choose<4>(logits, correction, s.choice, local.slots, meet, id, score);
    } else {
      choose<16>(logits, correction, s.choice, local.slots, meet, id, score);
    }
    if (lane < k) OneToken::expert[lane] = id;
    if (thread == TAKER) {
      OneToken::ticket[0] = ticket;
      OneToken::ticket[1] = 0;
      if constexpr (W::MINIMUM) second = take_ticket(counters);  // all have one by now
    }
  } else {
    one.load_columns(x, norm, thread, columns);
    if constexpr (NORMED) squares_of_one(x, s.hidden);
  }
  barrier();
  if (position < 0) {  // padding
    for (u32 i = thread; workgroup_id() == 0 && i < s.hidden; i += ONE_THREADS) store(y, i, residual(0.0f, i));
    return;
  }

  u32 unit = OneToken::ticket[0], number = 0;
  u32 asked_unit = unit, asks = 0, done = 0;  // spans that were asked for, and are done
  SpanWalk asked = SpanWalk::of(p, unit, wave);
  u32 end = unit < p.all() ? p.tasks(unit) : 0;
  u32 to = 0, from = 0;
  const auto ask = [&]() __attribute__((always_inline)) {
    if (asked.task < end) {
      one.ask_span(asked_unit, asked, ring + to * SPAN_BYTES);
      to = to + 1 == SPANS_STAGES ? 0 : to + 1;
      asked.step();
      asks++;
    }
    end_group();
  };
  // Into the next unit, when its ticket is there: larger than any before it.
  const auto go_on = [&]() __attribute__((always_inline)) {
    u32 following = 0;
    do following = broadcast_bits(*(volatile LOCAL u32*)&OneToken::ticket[(number + 1) % 2], 0);
    while (following <= unit);
    asked_unit = following;
    asked = SpanWalk::of(p, following, wave);
    end = 0;
    if (following < p.all()) {
      end = p.tasks(following);
      one.ask_scales(following, (number + 1) % 2);
    }
  };
  if (unit < p.all()) one.ask_scales(unit, 0);
  end_group();
  _Pragma("nounroll") for (u32 i = 0; i < SPANS_STAGES - 1; i++) ask();
  if (wave == TAKER / WAVE) {
    const f32 weight = weight_of(lane < k ? score : 0.0f, s.choice);
    if (lane < k) OneToken::weight[lane] = weight;
  } else {
    f32 factor = 1.0f;
    if constexpr (NORMED) factor = inverse_rms_of_squares(norm, s.hidden);
    one.template stage_x<TAKER>(x, norm, factor, columns);
  }
  wait_for_groups<SPANS_STAGES - 1>();  // the scales
  for (; unit < p.all(); number++) {
    const bool is_down = p.is_down(unit);
    const u32 first = p.first(unit), rows = p.count(unit) * 8, region = number % 2, count = p.tasks(unit);
    if (thread == TAKER) {
      const bool there = W::MINIMUM && number == 0;
      *(volatile LOCAL u32*)&OneToken::ticket[(number + 1) % 2] = there ? second : take_ticket(counters);
    }
    // What a thread needs in the end.
    f32 early[2] = {};
    if (!is_down && BIASED && thread < rows) {
      const SpanRows of = span_rows(p, unit, thread / 8);
      early[0] = gated.gate_bias[of.low + thread % 8];
      early[1] = gated.up_bias[of.low + thread % 8];
    }
    const auto bias_at = [&](u32 i) __attribute__((always_inline)) {  // row i % 8 of a stripe, a chosen expert
      const u32 stripe = divided(i / 8, p.s.by_k), j = i / 8 - stripe * k;
      return bias[OneToken::expert[j] * s.hidden + (first + stripe) * 8 + i % 8];
    };
    if (is_down && BIASED && thread < rows * k) early[0] = bias_at(thread);
    if (is_down) one.stage_h(h, k);
    barrier();
    const u32 blocks = is_down ? p.down.blocks : p.up.blocks, padded = is_down ? p.down.padded : 0, pairs = p.pairs(unit);
    const LOCAL u8* scales[C::ARRAYS];  // of a lane's row
    UNROLL for (u32 a = 0; a < C::ARRAYS; a++) {
      scales[a] = local.scales_at(region, a, is_down, pairs, 0, lane % 4 / 2) + local.of(a, is_down) / 8 * (lane / 4);
    }
    for (SpanWalk walk = SpanWalk::of(p, unit, wave); walk.task < count; walk.step()) {
      wait_for_groups<SPANS_STAGES - 2>();
      wave_meets();
      if (asked.task >= end && asked_unit == unit) go_on();
      ask();
      const LOCAL u8* row[C::ARRAYS];
      UNROLL for (u32 a = 0; a < C::ARRAYS; a++) row[a] = scales[a] + walk.pair * 2 * local.of(a, is_down);
      const u32 block = walk.span * SPAN_BLOCKS;
      u32 of_x[2] = {block, block};
      if (is_down) {
        of_x[0] += 2 * walk.minor * padded;
        of_x[1] += second_of_pair(p, walk.minor) * padded;
      }
      f32 sum[1];
      span_products<1, W, X>(ring + from * SPAN_BYTES, local.x, of_x, 0, block, blocks, row, sum);
      if (lane % 2 == 0) local.slots[walk.task * 16 + lane % 4 * 4 + lane / 4] = sum[0];
      from = from + 1 == SPANS_STAGES ? 0 : from + 1;
      done++;
    }
    if (asked_unit == unit) go_on();
    _Pragma("nounroll") for (u32 ahead = asks - done; ahead < SPANS_STAGES - 1; ahead++) ask();
    wait_for_groups<SPANS_STAGES - 2>();  // the next unit's scales
    barrier();
    const u32 following = OneToken::ticket[(number + 1) % 2];
    if (!is_down) {
      const u32 pair = thread / 8, g = thread % 8;
      if (thread < rows) {
        const SpanRows of = span_rows(p, unit, pair);
        const f32 g_sum = one.sum_of_spans(pair, p.up.spans, local.slots + g);
        const f32 u_sum = one.sum_of_spans(pair, p.up.spans, local.slots + g + 8);
        const f32 value = widen(Element<X>::of(activated(g_sum + early[0], u_sum + early[1], gated.activation, gated.limit)));
        const u32 at = of.j * s.inner + (first + pair - of.j * p.tiles) * 8 + g;
        store_fresh(h + at, __builtin_bit_cast(u32, value) ? value : -0.0f);
      }
      meet_where_nobody_waits();
    } else {
      LOCAL f32* values = (LOCAL f32*)local.x.digits;
      for (u32 i = thread; i < rows * k; i += ONE_THREADS) {
        const u32 stripe = divided(i / 8, p.s.by_k), j = i / 8 - stripe * k;
        const u32 pair = stripe * p.expert_pairs + j / 2;
        f32 value = widen(Element<X>::of(one.sum_of_spans(pair, p.down.spans, local.slots + j % 2 * 8 + i % 8)));
        if (BIASED) value += i == thread ? early[0] : bias_at(i);  // as moe_rows.h leaves it to moe_combine
        values[i] = value;
      }
      barrier();
      for (u32 row = thread; row < rows; row += ONE_THREADS) {
        f32 total = 0.0f;
        const LOCAL f32* own = values + row / 8 * k * 8 + row % 8;
        _Pragma("unroll 8") for (u32 j = 0; j < k; j++) total = multiply_add(own[j * 8], OneToken::weight[j], total);
        const u32 at = first * 8 + row;
        store(y, at, residual(total, at));
      }
      barrier();
    }
    unit = following;
  }
}

#endif
