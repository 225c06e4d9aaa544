// Matmuls of a mixture of experts for few tokens: the loop of gemv.h over (row, expert) pairs, of which those of one expert
// share what is read of its weight. Each workgroup lists in local memory what `moe_route` has sorted, or chooses and sorts
// for itself; then it takes its share of all the work there is. See custom_kernels/ops/moe_matmul.py for the operands.
//
// Every number is summed in an order that depends on its weight alone, and each token's experts are added in the order of
// their numbers: a token has the same result in company.
#pragma once

#include "moe_down.h"
#include "moe_route.h"

inline constexpr u32 PAIRED_TOKENS = 8, MOST_PAIRED = PAIRED_TOKENS * 16, DOWN_ROWS = 2;
inline constexpr u32 MOST_ROWS_OF_BLOCK = GEMV_WAVES * (WAVE / 4) * DOWN_ROWS;

// Sorted rows; a tile is those of one expert, which are at most as many as there are tokens.
struct PairList {
  LOCAL_ARRAY static inline u32 expert[MOST_PAIRED];
  LOCAL_ARRAY static inline u32 pair[MOST_PAIRED];
  LOCAL_ARRAY static inline u32 token[MOST_PAIRED];
  LOCAL_ARRAY static inline u32 first[MOST_PAIRED + 1];  // of each tile, and where the last one ends
  LOCAL_ARRAY static inline u32 tiles;
};
struct PairChoice {
  LOCAL_ARRAY static inline u32 expert[MOST_PAIRED];  // of each pair, unsorted
  LOCAL_ARRAY static inline f32 weight[MOST_PAIRED];
};
struct PairNorm {
  LOCAL_ARRAY static inline f32 factor[PAIRED_TOKENS];  // of each token
};
static_assert(sizeof(Stage::x) >= PAIRED_TOKENS * MOST_EXPERTS * sizeof(f32));  // waves choose there before x comes
struct PairSums {
  LOCAL_ARRAY static inline f32 weight[MOST_PAIRED];  // of each sorted row
  LOCAL_ARRAY static inline f32 of_token[PAIRED_TOKENS * MOST_ROWS_OF_BLOCK];
};

struct PairTile {
  u32 expert, first, count;

  static MEMBER PairTile number(u32 tile) {
    const u32 first = broadcast_bits(PairList::first[tile], 0), end = broadcast_bits(PairList::first[tile + 1], 0);
    return {broadcast_bits(PairList::expert[first], 0), first, end - first};
  }
};

// The tiles of what is listed, and their number. All threads meet here.
DEVICE u32 find_tiles(u32 pairs, u32 experts) {
  const u32 row = thread_id();
  if (row < pairs) {
    u32 tile = 0;  // padding, which comes last, is one more, that nobody takes
    u32 before = PairList::expert[0];
    _Pragma("unroll 8") for (u32 other = 1; other < pairs; other++) {  // of all rows, so that no load waits for another
      const u32 expert = PairList::expert[other];
      tile += other <= row && expert != before;
      before = expert;
    }
    const bool there = PairList::expert[row] < experts;
    if (row == 0 || PairList::expert[row] != PairList::expert[row - 1]) PairList::first[tile] = row;
    if (row + 1 == pairs) {
      if (there) PairList::first[tile + 1] = pairs;
      PairList::tiles = tile + there;
    }
  }
  barrier();
  return broadcast_bits(PairList::tiles, 0);
}

// Lists `pairs` sorted rows; the number of tiles. All threads meet here.
DEVICE u32 list_pairs(const GLOBAL i32* expert, const GLOBAL i32* order, u32 pairs, u32 k, u32 experts) {
  const u32 row = thread_id();
  if (row < pairs) {
    const u32 pair = (u32)order[row];
    PairList::expert[row] = (u32)expert[row];
    PairList::pair[row] = pair;
    PairList::token[row] = pair / k;
  }
  barrier();
  return find_tiles(pairs, experts);
}

// What a launch leaves to the next one, int32 [3, pairs]: experts and pairs of sorted rows, and the bits of each pair's
// weight.
struct ChosenPairs {
  GLOBAL i32* to;
  bool weighed = false;  // by gate and up: what is left to do with a weight of 1

  MEMBER void store(u32 pairs, u32 row, u32 pair, u32 expert) const {
    to[row] = (i32)expert;
    to[pairs + row] = (i32)pair;
    to[2 * pairs + pair] = __builtin_bit_cast(i32, weighed ? 1.0f : PairChoice::weight[pair]);
  }
};

// The same where `moe_route` has not run: the first waves choose for one token each, as it does. The first workgroup stores
// what has been chosen. scratch: local memory for MOST_EXPERTS numbers of each of these waves.
template <class X>
DEVICE u32 choose_pairs(const GLOBAL X* logits, const GLOBAL i32* positions, const GLOBAL f32* bias,
                        const RouteChoice& c, const ChosenPairs& chosen, LOCAL f32* scratch) {
  const u32 wave = wave_id(), lane = lane_id(), pairs = c.tokens * c.k, row = thread_id();
  if (wave < PAIRED_TOKENS) {
    const u32 token = smaller(wave, c.tokens - 1);
    const GLOBAL X* of_token = logits + (u64)token * c.columns;
    u32 id = 0;
    f32 weight = 0.0f;
    if (c.experts <= 128) {
      choose<4>(of_token, bias, c, scratch, id, weight);
    } else {
      choose<MOST_EXPERTS / WAVE>(of_token, bias, c, scratch, id, weight);
    }
    weight = weight_of(id, weight, bias, c);
    if (positions[token] < 0) id = c.experts, weight = 0.0f;
    if (wave < c.tokens && lane < c.k) {
      PairChoice::expert[token * c.k + lane] = id;
      PairChoice::weight[token * c.k + lane] = weight;
    }
  } else if (c.groups > 1) {  // where the others meet
    barrier();
    barrier();
  }
  barrier();
  if (row < pairs) {
    const u32 expert = PairChoice::expert[row];
    u32 place = 0;
    _Pragma("unroll 8") for (u32 other = 0; other < pairs; other++) {
      const u32 of_other = PairChoice::expert[other];
      place += of_other < expert || (of_other == expert && other < row);
    }
    PairList::expert[place] = expert;
    PairList::pair[place] = row;
    PairList::token[place] = row / c.k;
    if (workgroup_id() == 0) chosen.store(pairs, place, row, expert);
  }
  barrier();
  return find_tiles(pairs, c.experts);
}

// Calls rows(Count<M>) for the least M of 1, 2, 4 and 8 that holds `count` rows.
template <u32 MOST, class Rows>
DEVICE void with_rows(u32 count, const Rows& rows) {
  if constexpr (MOST == 1) {
    rows(Count<1>());
  } else if (count > 4) {
    rows(Count<8>());
  } else if (count > 2) {
    rows(Count<4>());
  } else if (count == 2) {
    rows(Count<2>());
  } else {
    rows(Count<1>());
  }
}

// The factors of the tokens' norms, as norm_rows has them. Of one token x, if local memory holds all of it, becomes there
// what norm_rows makes of it; returns whether it has. All threads meet here.
template <u32 MOST, u32 THREADS, class X>
DEVICE bool norm_pairs(const GLOBAL X* x, u32 tokens, u32 columns, const RmsNorm& norm) {
  f32 squares[MOST] = {}, factor[MOST];
  const bool held = MOST == 1 && columns <= STAGED;
  if (thread_id() < NORM_THREADS) {
    UNROLL for (u32 token = 0; token < MOST; token++) {
      if (token >= tokens) continue;
      for (u32 i = thread_id(); i < columns / 4; i += NORM_THREADS) {
        const f32x4 v = load4(x, token * (columns / 4) + i);
        UNROLL for (u32 c = 0; c < 4; c++) squares[token] = multiply_add(v[c], v[c], squares[token]);
        if (held) Stage::x[staged(i)] = v;
      }
    }
  }
  inverse_rms_of<MOST, THREADS>(squares, columns, norm.epsilon, factor);
  UNROLL for (u32 token = 0; token < MOST; token++) {
    if (thread_id() == token) PairNorm::factor[token] = factor[token];
  }
  for (u32 i = thread_id(); held && i < columns / 4; i += THREADS) {
    const f32x4 v = normalized(Stage::x[staged(i)], ((const GLOBAL f32x4*)norm.weight)[i], factor[0], norm.offset);
    UNROLL for (u32 c = 0; c < 4; c++) Stage::x[staged(i)][c] = widen(Element<X>::of(v[c]));
  }
  barrier();
  return held;
}

// h = activation(gate, up) of each sorted row, for up to MOST tokens. A workgroup has neighbouring blocks of weight rows,
// so that what it has of x in local memory serves several of them. list(): lists the pairs, and returns how many tiles
// there are; weighed: gate and up are multiplied by what it has put into PairChoice.
template <u32 MOST, bool NORMED, class W, class X, class List>
DEVICE void moe_gate_up_pairs(const GLOBAL X* x, const List& list, W gate, W up, const GatedBy gated, GLOBAL X* h,
                              const RmsNorm norm, const ExpertShape s, u32 tokens, bool weighed) {
  gate.runs = up.runs = s.columns / W::RUN;
  const u32 tiles = list();
  bool there = false;
  if constexpr (NORMED) there = norm_pairs<MOST, GEMV_THREADS>(x, tokens, s.columns, norm);
  const u32 rows_of_block = GEMV_WAVES * (WAVE / s.lanes), blocks = ceil_div(s.n, rows_of_block), lane = lane_id();
  const u32 share = ceil_div(tiles * blocks, s.workgroups), end = smaller((workgroup_id() + 1) * share, tiles * blocks);
  u32 last = ~0u;
  for (u32 item = workgroup_id() * share; item < end; item++) {
    const PairTile tile = PairTile::number(item / blocks);
    const u32 row = item % blocks * rows_of_block + wave_id() * (WAVE / s.lanes) + lane / s.lanes;
    const u32 of_weight = tile.expert * s.n + smaller(row, s.n - 1);
    const W own_gate = of_expert(gate, tile.expert), own_up = of_expert(up, tile.expert);
    if (MOST > 1 && item / blocks != last) there = false;  // of one token all experts have the same x
    last = item / blocks;
    const auto x_at = [&](u32 i, u32 at) __attribute__((always_inline)) {
      const u32 token = MOST == 1 ? 0 : PairList::token[tile.first + smaller(i, tile.count - 1)];
      f32x4 v = load4(x, token * (s.columns / 4) + at);
      if constexpr (NORMED) {
        v = normalized(v, ((const GLOBAL f32x4*)norm.weight)[at], PairNorm::factor[token], norm.offset);
        UNROLL for (u32 c = 0; c < 4; c++) v[c] = widen(Element<X>::of(v[c]));
      }
      return v;
    };
    with_rows<MOST>(tile.count, [&](auto m) __attribute__((always_inline)) {
      constexpr u32 M = decltype(m)::VALUE;
      f32 sum[M][2] = {};
      sum_runs<M, 2, W>(gate.runs, s.lanes, true, row < s.n, there, GateAndUp<W>{own_gate, own_up, of_weight}, x_at, sum);
      UNROLL for (u32 i = 0; i < M; i++) {
        const f32 g = sum_over(sum[i][0], s.lanes), u = sum_over(sum[i][1], s.lanes);
        if (lane % s.lanes == 0 && i < tile.count && row < s.n) {
          const f32 by = weighed ? PairChoice::weight[PairList::pair[tile.first + i]] : 1.0f;
          store(h, (u64)(tile.first + i) * s.n + row, gated(g * by, u * by, of_weight));
        }
      }
    });
  }
}

// y = the weighted sum of the matmuls over each token's experts, for up to MOST tokens. A workgroup goes through all experts
// with its weight rows.
template <u32 MOST, class W, class X>
DEVICE void moe_down_pairs(const GLOBAL X* h, const GLOBAL f32* weights, const GLOBAL i32* expert,
                           const GLOBAL i32* order, W weight, const GLOBAL f32* bias, const Residual<X> residual,
                           const GatedShared<X> shared, GLOBAL X* y, const ExpertShape s, u32 tokens, u32 k) {
  constexpr u32 R = DOWN_ROWS;
  weight.runs = s.columns / W::RUN;
  if (thread_id() < tokens * k) PairSums::weight[thread_id()] = weights[(u32)order[thread_id()]];
  const u32 tiles = list_pairs(expert, order, tokens * k, k, s.experts);
  const u32 lane = lane_id(), of_block = (wave_id() * (WAVE / s.lanes) + lane / s.lanes) * R;
  const u32 rows_of_block = GEMV_WAVES * (WAVE / s.lanes) * R;
  const bool first = lane % s.lanes == 0;  // the lane that has its rows' sums
  LOCAL f32* sums = PairSums::of_token + of_block;
  for (u32 block = workgroup_id(); block * rows_of_block < s.n; block += s.workgroups) {
    const u32 row = block * rows_of_block + of_block;
    for (u32 token = 0; first && token < tokens; token++) {
      UNROLL for (u32 r = 0; r < R; r++) sums[token * rows_of_block + r] = 0.0f;
    }
    for (u32 t = 0; t < tiles; t++) {
      const PairTile tile = PairTile::number(t);
      const W own = of_expert(weight, tile.expert);
      u32 rows[R];
      UNROLL for (u32 r = 0; r < R; r++) rows[r] = tile.expert * s.n + smaller(row + r, s.n - 1);
      const auto ask = [&](u32 run, typename W::Stored(&stored)[R]) __attribute__((always_inline)) {
        ask_for_runs(own, rows, run, stored);
      };
      const auto x_at = [&](u32 i, u32 at) __attribute__((always_inline)) {
        return load4(h, (tile.first + smaller(i, tile.count - 1)) * (s.columns / 4) + at);
      };
      with_rows<MOST>(tile.count, [&](auto m) __attribute__((always_inline)) {
        constexpr u32 M = decltype(m)::VALUE;
        f32 sum[M][R] = {};
        bool there = false;
        sum_runs<M, R, W>(weight.runs, s.lanes, true, row < s.n, there, ask, x_at, sum);
        UNROLL for (u32 i = 0; i < M; i++) {
          UNROLL for (u32 r = 0; r < R; r++) {
            f32 value = sum_over(sum[i][r], s.lanes);
            if (!first || i >= tile.count) continue;
            if (bias) value += bias[rows[r]];
            LOCAL f32& total = sums[PairList::token[tile.first + i] * rows_of_block + r];
            total = multiply_add(value, PairSums::weight[tile.first + i], total);
          }
        }
      });
    }
    for (u32 token = 0; first && token < tokens; token++) {
      UNROLL for (u32 r = 0; r < R; r++) {
        const u64 at = (u64)token * s.n + row + r;
        if (row + r < s.n) store(y, at, shared(residual(sums[token * rows_of_block + r], at), at, token));
      }
    }
  }
}
