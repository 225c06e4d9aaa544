// How the waves of a workgroup go through its stripes (stripes.h): what they ask for, when they put x into local
// memory, and where their sums meet.
#pragma once

#include "stripes.h"

template <class S>
struct StripeLoop : S {
  using typename S::Feed, typename S::Right, typename S::Scales, typename S::W;
  using S::M, S::CHUNK, S::COLUMNS, S::EACH, S::NUMBERS, S::SHARING, S::STAGES, S::STAGE_BYTES, S::TOGETHER;
  using S::add_stage, S::ask_for_scales, S::ask_for_stage, S::block_of, S::feed_of, S::local, S::stages_of, S::total;

  // The stages of a wave in the order in which they are used: EACH stripes at a time, of those by columns of x, then
  // stripes, then stages.
  struct Place {
    u32 z, slot, first, end, base;
    // To the next; whether it is of another stripe. all: stages of a stripe.
    MEMBER bool step(u32 stripes, u32 all) {
      if (++z < end) return false;
      if (++slot == EACH || base + slot == stripes) {
        slot = 0;
        first += CHUNK;
        if (first >= all) {
          first = 0;
          base += EACH;
        }
        end = smaller(all, first + CHUNK);
      }
      z = first;
      return true;
    }
  };

  // For each stripe of this workgroup, rows_of(0) to rows_of(stripes - 1), its sums. fill.load(z, end, held) asks for
  // what of x stages z to end - 1 of this wave take, fill.put(first, z, end, held) puts it into local memory, where the
  // first stage there is `first`; finish(stripe, count) is called by all threads once `each_result` has the sums of
  // `count` stripes from number `stripe` on.
  //
  // A wave puts there what it takes itself, and asks for codes ahead across stripes: nothing but the last codes waits
  // for memory. Its first loads of x come before those of codes, for behind them they would wait for as long.
  template <class RowsOf, class Fill, class Finish>
  DEVICE void each_stripe(u32 stripes, u32 k, const RowsOf& rows_of, Fill& fill, const Finish& finish) {
    constexpr u32 FILLED = Fill::STAGES < CHUNK ? Fill::STAGES : CHUNK;
    const u32 all = stages_of(k, wave_id());
    typename Fill::Held held;
    if constexpr (Fill::EARLY) {
      fill.load(0, smaller(all, FILLED), held);
      barrier();  // no wave's codes are asked for before another's x
    }
    const auto put_early = [&]() __attribute__((always_inline)) {
      if constexpr (Fill::EARLY) fill.put(0, 0, smaller(all, FILLED), held);
    };
    if constexpr (M == 1) {
      if (k <= COLUMNS) return each_with_all_of_x(stripes, k, all, rows_of, fill, put_early, finish);
    }
    each_by_columns(stripes, k, all, rows_of, fill, put_early, finish);
  }

  // What a wave has under way: stages of codes, and scales one stage ahead.
  template <class RowsOf>
  struct Stream {
    u32 k, wave;
    const RowsOf& rows_of;
    Feed feed;
    StripeRows<W> rows;
    u32 of_tensor[2];
    Scales coming;
    ReadOnce once;
    u32 ring;  // bytes in local memory, as are
    u32 from;  // the stage that comes next, and
    u32 to;    // the one that is free

    MEMBER Stream(u32 k, u32 wave, const RowsOf& rows_of)
        : k(k), wave(wave), rows_of(rows_of), feed(feed_of(rows_of(0), k)), rows(rows_of(0)), of_tensor{}, coming{},
          ring(wave * STAGES * STAGE_BYTES), from(ring), to(ring) {}
    MEMBER void ask(u32 z) { ask_for_stage(feed, once, block_of(z, wave), k, local() + to); }
    MEMBER void ask_scales(u32 z) { ask_for_scales(coming, rows, of_tensor, block_of(z, wave), k); }
    MEMBER void scales_of_stripe(u32 stripe) {
      rows = rows_of(stripe);
      UNROLL for (u32 r = 0; r < 2; r++) of_tensor[r] = rows.in_tensor(lane_id() / 4 + 8 * r);
    }
    MEMBER u32 after(u32 stage) const {
      return stage == ring + (STAGES - 1) * STAGE_BYTES ? ring : stage + STAGE_BYTES;
    }
    MEMBER void next_stage() { to = from, from = after(from); }
  };

  // Where all of x is in local memory.
  template <class RowsOf, class Fill, class Put, class Finish>
  DEVICE void each_with_all_of_x(u32 stripes, u32 k, u32 all, const RowsOf& rows_of, Fill& fill, const Put& put_early,
                                 const Finish& finish) {
    constexpr u32 FILLED = Fill::STAGES < CHUNK ? Fill::STAGES : CHUNK;
    const u32 wave = wave_id(), lane = lane_id();
    Stream<RowsOf> stream(k, wave, rows_of);
    u32 asked = 0, asked_stripe = all ? 0 : stripes;
    const auto ask = [&]() __attribute__((always_inline)) {
      if (asked_stripe < stripes) {
        stream.ask(asked);
        if (++asked == all) {
          asked = 0;
          if (++asked_stripe < stripes) stream.feed = feed_of(rows_of(asked_stripe), k);
        }
      }
      end_group();
    };
    stream.scales_of_stripe(0);
    if (all) stream.ask_scales(0);
    _Pragma("nounroll") for (u32 i = 0; i < STAGES - 1; i++) {
      ask();
      stream.to += STAGE_BYTES;
    }
    put_early();
    for (u32 z = FILLED; z < all; z += FILLED) fill.load_and_put(0, z, smaller(all, z + FILLED));
    wave_meets();
    const u32 zero = unknown_zero();
    Right right;
    for (u32 base = 0; base < stripes; base += EACH) {
      const u32 count = smaller(EACH, stripes - base);
      for (u32 slot = 0; slot < count; slot++) {
        f32 sum[NUMBERS] = {};
        _Pragma("nounroll") for (u32 z = 0; z < all; z++) {
          wait_for_groups<STAGES - 2>();
          wave_meets();
          const Scales scales = stream.coming;
          // Of the next stage; after the last one they are asked for again. One place: where there are two, they are
          // merged, and the wave waits for what it loads.
          const bool over = z + 1 == all;
          if (over && base + slot + 1 < stripes) stream.scales_of_stripe(base + slot + 1);
          stream.ask_scales(over ? 0 : z + 1);
          ask();  // after the scales: what is asked for comes in order, and later codes would hold them up
          add_stage(local() + stream.from, z, (z * SHARING + wave) * TOGETHER, scales, right, zero, sum);
          stream.next_stage();
        }
        UNROLL for (u32 i = 0; i < NUMBERS; i++) total(wave, slot, i, lane) = sum[i];
      }
      barrier();
      finish(base, count);
      if (base + EACH < stripes) barrier();
    }
    wait_for_groups<0>();
  }

  // Where local memory has x for `chunk` stages at a time.
  template <class RowsOf, class Fill, class Put, class Finish>
  DEVICE void each_by_columns(u32 stripes, u32 k, u32 all, const RowsOf& rows_of, Fill& fill, const Put& put_early,
                              const Finish& finish) {
    constexpr u32 FILLED = Fill::STAGES < CHUNK ? Fill::STAGES : CHUNK;
    const u32 wave = wave_id(), lane = lane_id(), most = stages_of(k, 0);
    Stream<RowsOf> stream(k, wave, rows_of);
    Place asked = {0, 0, 0, smaller(all, CHUNK), all ? 0 : stripes}, next = asked;
    const auto ask = [&]() __attribute__((always_inline)) {
      if (asked.base < stripes) {
        stream.ask(asked.z);
        const bool over = asked.step(stripes, all);
        if (over && asked.base < stripes) stream.feed = feed_of(rows_of(asked.base + asked.slot), k);
      }
      end_group();
    };
    _Pragma("nounroll") for (u32 i = 0; i < STAGES - 1; i++) {
      ask();
      stream.to += STAGE_BYTES;
    }
    stream.scales_of_stripe(0);
    if (all) stream.ask_scales(0);
    put_early();
    const u32 zero = unknown_zero();
    for (u32 base = 0; base < stripes; base += EACH) {
      const u32 count = smaller(EACH, stripes - base);
      for (u32 first = 0; first < most; first += CHUNK) {
        const u32 end = smaller(all, first + CHUNK);
        for (u32 slot = 0; slot < count; slot++) {
          const bool fresh = slot == 0 && (base == 0 || most > CHUNK), early = Fill::EARLY && base == 0 && first == 0;
          f32 sum[NUMBERS];
          UNROLL for (u32 i = 0; i < NUMBERS; i++) sum[i] = first ? total(wave, slot, i, lane) : 0.0f;
          _Pragma("nounroll") for (u32 from = first; from < end; from += FILLED) {
            const u32 until = smaller(end, from + FILLED);
            if (fresh && !(early && from == 0)) {
              wave_meets();
              fill.load_and_put(first, from, until);
            }
            wave_meets();
            Right right;
            _Pragma("nounroll") for (u32 z = from; z < until; z++) {
              wait_for_groups<STAGES - 2>();
              wave_meets();
              ask();
              const Scales scales = stream.coming;
              if (next.step(stripes, all) && next.base < stripes) stream.scales_of_stripe(next.base + next.slot);
              if (next.base < stripes) stream.ask_scales(next.z);
              add_stage(local() + stream.from, z, ((z - first) * SHARING + wave) * TOGETHER, scales, right, zero, sum);
              stream.next_stage();
            }
          }
          UNROLL for (u32 i = 0; i < NUMBERS; i++) total(wave, slot, i, lane) = sum[i];
        }
      }
      barrier();
      finish(base, count);
      if (base + EACH < stripes) barrier();
    }
    wait_for_groups<0>();
  }
};
