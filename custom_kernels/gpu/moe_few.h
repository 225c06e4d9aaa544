// A mixture of experts for up to eight tokens on NVIDIA GPUs in two launches: the choice of the experts, the norm, gate
// and up with the activation; down, the weighted sum and what it is added to. Each token has the bits that moe_one.h and
// the launches of more tokens (moe_rows.h, moe_combine) give it. See custom_kernels/ops/moe_matmul.py for the operands.
#pragma once

#include "grid_order.h"
#include "moe_pairs.h"
#include "moe_rows.h"

#if !defined(__AMDGCN__)

// Eight waves choose for a token each, in what holds x later.
static_assert(ROWS_WAVES == PAIRED_TOKENS && NORM_THREADS == ROWS_THREADS);
static_assert(sizeof(RowsStage::words) >= ROWS_WAVES * MOST_EXPERTS * sizeof(f32));
static_assert(sizeof(SpanRowsStage::digits) >= ROWS_WAVES * MOST_EXPERTS * sizeof(f32));
template <bool SPANS>
DEVICE LOCAL f32* scratch_of_choice() {
  return SPANS ? (LOCAL f32*)SpanRowsStage::digits : (LOCAL f32*)RowsStage::words;
}

// A row of x that is normed first.
template <class X>
struct NormedRow {
  StoredRow<X> x;
  const RmsNorm& norm;
  f32 factor;

  MEMBER f32x4 operator()(u32 i) const {
    return rounded4<X>(normalized(x(i), ((const GLOBAL f32x4*)norm.weight)[i], factor, norm.offset));
  }
};

// A workgroup's share of `items`: [first, end).
struct WorkShare {
  u32 first, end;

  static MEMBER WorkShare of(u32 items, u32 workgroups) {
    const u32 share = ceil_div(items, workgroups), first = workgroup_id() * share;
    return {first, smaller(first + share, items)};
  }
};

// h = activation(gate, up) of each sorted row. list(): as of moe_gate_up_pairs, as is weighed.
template <bool SPANS, bool NORMED, class W, class X, class List>
DEVICE void moe_gate_up_few(const GLOBAL X* x, const List& list, W gate, W up, const GatedBy gated, GLOBAL X* h,
                            const RmsNorm norm, const ExpertShape s, u32 tokens, bool weighed) {
  gate.runs = up.runs = s.columns / W::RUN;
  const u32 tiles = list(), blocks = ceil_div(s.n, 8 * ROWS_WAVES);
  if constexpr (NORMED) norm_pairs<PAIRED_TOKENS, ROWS_THREADS>(x, tokens, s.columns, norm);
  const WorkShare share = WorkShare::of(tiles * blocks, s.workgroups);
  for (u32 item = share.first; item < share.end; item++) {
    const PairTile at = PairTile::number(item / blocks);
    const auto row_of = [&](u32 i) __attribute__((always_inline)) {
      const u32 token = PairList::token[at.first + smaller(i, at.count - 1)];
      const StoredRow<X> row = {x + (u64)token * s.columns};
      if constexpr (NORMED) return NormedRow<X>{row, norm, PairNorm::factor[token]};
      else return row;
    };
    const auto done = [&](u32 i, u32 row, f32 g, f32 u) __attribute__((always_inline)) {
      if (i >= at.count) return;
      const f32 by = weighed ? PairChoice::weight[PairList::pair[at.first + i]] : 1.0f;
      store(h, (u64)(at.first + i) * s.n + row, gated(g * by, u * by, at.expert * s.n + row));
    };
    with_rows<PAIRED_TOKENS>(at.count, [&](auto m) __attribute__((always_inline)) {
      const u32 tile = item % blocks * ROWS_WAVES + wave_id();
      gate_up_of_tile<decltype(m)::VALUE, SPANS, W, X>(row_of, gate, up, at.expert, tile, s, done);
    });
  }
}

struct FewSums {
  LOCAL_ARRAY static inline u32 place[MOST_PAIRED];  // of each pair, its sorted row
  LOCAL_ARRAY static inline f32 weight[MOST_PAIRED];  // of each pair
  LOCAL_ARRAY static inline u32 last;
};

// What down's results become, as moe_combine has it; the residual first gets what a shared expert gives, as add_gated
// has it.
template <class X>
struct FewResults {
  const GLOBAL X* rows;  // [pairs, n]
  const GLOBAL f32* bias;
  const Residual<X> residual;
  const GatedShared<X> shared;
  GLOBAL X* y;
  u32 tokens, k, experts, n;

  // Of columns [first, end). The workgroup's threads share them.
  MEMBER void combine(u32 first, u32 end) const {
    const u32 width = end - first;
    for (u32 item = thread_id(); item < tokens * width; item += ROWS_THREADS) {
      const u32 token = item / width, column = first + item % width;
      const u64 at = (u64)token * n + column;
      f32 total = 0.0f;
      for (u32 j = 0; j < k; j++) {
        const u32 pair = token * k + j, place = FewSums::place[pair], e = PairList::expert[place];
        if (e >= experts) continue;
        f32 value = widen(rows[(u64)place * n + column]);
        if (bias) value += bias[e * n + column];
        total = multiply_add(value, FewSums::weight[pair], total);
      }
      if (shared.x) {
        const f32 base = widen(Element<X>::of(shared(widen(residual.x[at]), at, token)));
        store(y, at, multiply_add(residual.scale, total, base));
      } else {
        store(y, at, residual(total, at));
      }
    }
  }
};

// y = the weighted sum of the matmuls over each token's experts. The last workgroup that has rows of some columns adds
// them up. weights, order: as of moe_down_pairs; counters: a launch's own, zero; rows: see FewResults.
template <bool SPANS, class W, class X>
DEVICE void moe_down_few(const GLOBAL X* h, const GLOBAL f32* weights, const GLOBAL i32* expert,
                         const GLOBAL i32* order, W weight, GLOBAL X* rows, const FewResults<X> results,
                         GLOBAL u32* counters, const ExpertShape s) {
  weight.runs = s.columns / W::RUN;
  const u32 pairs = results.tokens * results.k;
  if (thread_id() < pairs) {
    const u32 pair = (u32)order[thread_id()];
    FewSums::place[pair] = thread_id();
    FewSums::weight[thread_id()] = weights[thread_id()];
  }
  const u32 tiles = list_pairs(expert, order, pairs, results.k, s.experts);
  const u32 blocks = ceil_div(s.n, 16 * ROWS_WAVES), together = ceil_div(blocks, COUNTER_WORDS);
  const auto combine = [&](u32 group) __attribute__((always_inline)) {
    const u32 width = together * 16 * ROWS_WAVES, first = group * width;
    results.combine(first, smaller(first + width, s.n));
  };
  if (!tiles) {  // padding alone
    for (u32 group = workgroup_id(); group * together < blocks; group += s.workgroups) combine(group);
  }
  const WorkShare share = WorkShare::of(tiles * blocks, s.workgroups);
  for (u32 item = share.first; item < share.end; item++) {
    const PairTile at = PairTile::number(item / blocks);
    const u32 block = item % blocks, group = block / together;
    const auto row_of = [&](u32 i) __attribute__((always_inline)) {
      return StoredRow<X>{h + (u64)(at.first + smaller(i, at.count - 1)) * s.columns};
    };
    const auto done = [&](u32 i, u32 row, f32 value) __attribute__((always_inline)) {
      if (i < at.count) store(rows, (u64)(at.first + i) * s.n + row, value);
    };
    with_rows<PAIRED_TOKENS>(at.count, [&](auto m) __attribute__((always_inline)) {
      down_of_tile<decltype(m)::VALUE, SPANS, W, X>(row_of, weight, at.expert, block * ROWS_WAVES + wave_id(), s, done);
    });
    barrier();
    if (thread_id() == 0) {
      const u32 of_group = smaller(together, blocks - group * together);
      FewSums::last = last_of(counters + group, tiles * of_group);
    }
    barrier();
    if (broadcast_bits(FewSums::last, 0)) combine(group);
    barrier();  // everybody has seen it
  }
}

#endif
