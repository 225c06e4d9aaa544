// The kernels of a mixture of experts, each made by one macro line that custom_kernels/gpu/moe_kernels.py writes. In
// parentheses there: Weight, the format; GATE, UP, DOWN, the parameters of a weight's parts; GATE_IS and so on, the parts. X
// is the type of activations: f32, f16 or BF16.
#pragma once

#include "moe_down.h"
#include "moe_few.h"
#include "moe_gemm.h"
#include "moe_gemv.h"
#include "moe_one.h"
#include "moe_one_spans.h"
#include "moe_pairs.h"
#include "moe_rows.h"
#include "moe_route.h"


// For up to 32 * PER_LANE experts.
#define MOE_ROUTE(symbol, X, PER_LANE)                                                                             \
  KERNEL(ROUTE_THREADS)                                                                                            \
  void symbol(IN(X, logits), IN(i32, positions), IN(f32, bias), OUT(i32, ids), OUT(f32, weights),                  \
              OUT(i32, places), OUT(i32, order), OUT(i32, expert), OUT(i32, offsets), OUT(i32, tiles),             \
              u32 tokens, u32 experts, u32 k, u32 scoring, u32 normalize, u32 scale_bits, u32 groups, u32 group_k, \
              u32 group_top, u32 biased, u32 tile_count, u32 columns, u32 jitter_bits,                                     \
              u32 logit_scale_bits) {                                                         \
    moe_route<PER_LANE>(logits, positions, bias, ids, weights, places, order, expert, offsets, tiles,              \
                        {tokens, experts, k, scoring, normalize, __builtin_bit_cast(f32, scale_bits), groups,      \
                         group_k, group_top, biased, tile_count, columns, __builtin_bit_cast(f32, jitter_bits),                                \
                         __builtin_bit_cast(f32, logit_scale_bits)});                                                 \
  }

#define ROUTING IN(i32, expert), IN(i32, order), IN(i32, offsets), IN(i32, tiles)
#define GATED_SCALARS u32 activation, u32 limit_bits
#define GATED_BY(gate_bias, up_bias) {gate_bias, up_bias, activation, __builtin_bit_cast(f32, limit_bits)}
#define EXPERT_SCALARS u32 k, u32 experts, u32 n, u32 columns, u32 lanes, u32 workgroups

// GATE_BIAS, UP_BIAS: parameters that are among UP's, or nullptr.
#define MOE_GATE_UP_GEMV(symbol, X, M, Weight, GATE, GATE_IS, UP, UP_IS, GATE_BIAS, UP_BIAS)       \
  KERNEL(GEMV_THREADS)                                                                             \
  REGISTERS(128)                                                                                   \
  void symbol(IN(X, x), ROUTING, INSIDE GATE, INSIDE UP, OUT(X, h), EXPERT_SCALARS, GATED_SCALARS, \
              u32 matrix_rows) {                                                                   \
    moe_gate_up_gemv<M>(x, {expert, order, offsets, tiles, k}, INSIDE Weight(INSIDE GATE_IS),      \
                        INSIDE Weight(INSIDE UP_IS), GATED_BY(GATE_BIAS, UP_BIAS), h,              \
                        {experts, n, columns, lanes, workgroups}, matrix_rows);                    \
  }
// Of up to MOST tokens; NORMED: UP ends with the norm's weight.
#define GATE_UP_PAIRS(MOST, NORMED, Weight, GATE_IS, UP_IS, GATE_BIAS, UP_BIAS, NORM, WEIGHED)                     \
  moe_gate_up_pairs<MOST, NORMED>(                                                                                \
      x, list, INSIDE Weight(INSIDE GATE_IS), INSIDE Weight(INSIDE UP_IS), GATED_BY(GATE_BIAS, UP_BIAS), h,         \
      {NORM, __builtin_bit_cast(f32, epsilon_bits), __builtin_bit_cast(f32, offset_bits)},                        \
      {experts, n, columns, lanes, workgroups}, tokens, WEIGHED)
#define MOE_GATE_UP_PAIRS(symbol, X, MOST, NORMED, Weight, GATE, GATE_IS, UP, UP_IS, GATE_BIAS, UP_BIAS, NORM)      \
  KERNEL(GEMV_THREADS)                                                                                            \
  REGISTERS(MOST == 1 ? 128 : 192)                                                                                \
  void symbol(IN(X, x), IN(i32, expert), IN(i32, order), INSIDE GATE, INSIDE UP, OUT(X, h), u32 tokens,             \
              EXPERT_SCALARS, GATED_SCALARS, u32 epsilon_bits, u32 offset_bits) {                                  \
    const auto list = [&]() __attribute__((always_inline)) {                                                       \
      return list_pairs(expert, order, tokens * k, k, experts);                                                    \
    };                                                                                                            \
    GATE_UP_PAIRS(MOST, NORMED, Weight, GATE_IS, UP_IS, GATE_BIAS, UP_BIAS, NORM, false);                                 \
  }
#define CHOICE_SCALARS                                                                                            \
  u32 epsilon_bits, u32 offset_bits, u32 scoring, u32 normalize, u32 scale_bits, u32 groups, u32 group_k,         \
      u32 group_top, u32 logit_columns, u32 biased, u32 jitter_bits, u32 logit_scale_bits, u32 weighed
#define CHOOSE_PAIRS(CORRECTION, SCRATCH)                                                                         \
  const GLOBAL f32* correction_of = CORRECTION;                                                                   \
  const auto list = [&]() __attribute__((always_inline)) {                                                        \
    return choose_pairs(logits, positions, correction_of,                                                         \
                        {tokens, experts, k, scoring, normalize, __builtin_bit_cast(f32, scale_bits), groups,     \
                         group_k, group_top, biased, 0, logit_columns, __builtin_bit_cast(f32, jitter_bits),      \
                         __builtin_bit_cast(f32, logit_scale_bits)},                                              \
                        {chosen, weighed != 0}, SCRATCH);                                                         \
  }
// The same with the choice of the experts; CORRECTION: what scores are corrected by, among UP's, or nullptr. H: a buffer
// for h, or (), where H_IS says that it is behind what is chosen, in the same buffer.
#define AFTER_CHOSEN(X) GLOBAL X* h = (GLOBAL X*)(chosen + ceil_div(3 * tokens * k, 4) * 4);
#define MOE_GATE_UP_CHOSEN(symbol, X, MOST, NORMED, H, H_IS, Weight, GATE, GATE_IS, UP, UP_IS, GATE_BIAS, UP_BIAS,  \
                           NORM, CORRECTION)                                                                      \
  KERNEL(GEMV_THREADS)                                                                                            \
  REGISTERS(MOST == 1 ? 128 : 192)                                                                                \
  void symbol(IN(X, logits), IN(i32, positions), IN(X, x), INSIDE GATE, INSIDE UP INSIDE H, OUT(i32, chosen),       \
              u32 tokens, EXPERT_SCALARS, GATED_SCALARS, CHOICE_SCALARS) {                                         \
    INSIDE H_IS                                                                                                    \
    CHOOSE_PAIRS(CORRECTION, (LOCAL f32*)Stage::x);                                                                \
    GATE_UP_PAIRS(MOST, NORMED, Weight, GATE_IS, UP_IS, GATE_BIAS, UP_BIAS, NORM, weighed != 0);                                 \
  }
// Of one token from the choice of its experts to their sum. GATE begins with the router's correction, where it has one;
// DOWN ends with the bias, the norm's weight and the residual.
#define MOE_ONE(symbol, X, BIASES, NORMED, Weight, GATE, GATE_IS, UP, UP_IS, DOWN, DOWN_IS, CORRECTION, GATE_BIAS, UP_BIAS, \
                BIAS, NORM, RESIDUAL)                                                                               \
  KERNEL(ONE_THREADS)                                                                                               \
  void symbol(IN(X, logits), IN(i32, positions), IN(X, x), INSIDE GATE, INSIDE UP, INSIDE DOWN,                      \
              OUT(u32, scratch), OUT(X, y), u32 experts, u32 k, u32 scoring, u32 normalize, u32 scale_bits,          \
              u32 groups, u32 group_k, u32 group_top, u32 hidden, u32 inner, u32 unit_tiles, u32 unit_rows,          \
              u32 slot, GATED_SCALARS, u32 epsilon_bits, u32 offset_bits, u32 added_bits) {                          \
    moe_one<INSIDE Weight, BIASES, NORMED>(                                                                         \
        logits, positions, CORRECTION, x, INSIDE Weight(INSIDE GATE_IS), INSIDE Weight(INSIDE UP_IS),                \
        INSIDE Weight(INSIDE DOWN_IS), GATED_BY(GATE_BIAS, UP_BIAS), BIAS,                                          \
        {NORM, __builtin_bit_cast(f32, epsilon_bits), __builtin_bit_cast(f32, offset_bits)},                        \
        Residual<X>{RESIDUAL, __builtin_bit_cast(f32, added_bits)}, y, scratch, slot,                                \
        {{1, experts, k, scoring, normalize, __builtin_bit_cast(f32, scale_bits), groups, group_k, group_top,        \
          CORRECTION != nullptr, 0},                                                                   \
         hidden, inner, unit_tiles, unit_rows});                                                                    \
  }
// The same of 4-bit weights, by the spans of expert_spans.h.
#define MOE_ONE_SPANS(symbol, X, BIASES, NORMED, Weight, GATE, GATE_IS, UP, UP_IS, DOWN, DOWN_IS, CORRECTION, GATE_BIAS, UP_BIAS, \
                BIAS, NORM, RESIDUAL)                                                                               \
  KERNEL(ONE_THREADS)                                                                                               \
  void symbol(IN(X, logits), IN(i32, positions), IN(X, x), INSIDE GATE, INSIDE UP, INSIDE DOWN,                      \
              OUT(u32, scratch), OUT(X, y), u32 experts, u32 k, u32 scoring, u32 normalize, u32 scale_bits,          \
              u32 groups, u32 group_k, u32 group_top, u32 hidden, u32 inner, u32 units, u32 of_up, u32 of_down, u32 by_tiles, u32 by_k, u32 by_pairs, u32 by_up_spans, u32 by_down_spans,          \
              u32 slot, GATED_SCALARS, u32 epsilon_bits, u32 offset_bits, u32 added_bits) {                          \
    moe_one_spans<INSIDE Weight, BIASES, NORMED>(                                                                         \
        logits, positions, CORRECTION, x, INSIDE Weight(INSIDE GATE_IS), INSIDE Weight(INSIDE UP_IS),                \
        INSIDE Weight(INSIDE DOWN_IS), GATED_BY(GATE_BIAS, UP_BIAS), BIAS,                                          \
        {NORM, __builtin_bit_cast(f32, epsilon_bits), __builtin_bit_cast(f32, offset_bits)},                        \
        Residual<X>{RESIDUAL, __builtin_bit_cast(f32, added_bits)}, y, scratch, slot,                                \
        {{1, experts, k, scoring, normalize, __builtin_bit_cast(f32, scale_bits), groups, group_k, group_top,        \
          CORRECTION != nullptr, 0},                                                                   \
         hidden, inner, units, {of_up >> 16, of_up & 0xffffu}, {of_down >> 16, of_down & 0xffffu}, by_tiles, by_k, by_pairs, by_up_spans, by_down_spans});                                                                    \
  }
// Of few rows on NVIDIA GPUs, each summed as MOE_ONE does it.
#define MOE_GATE_UP_ROWS(symbol, X, SPANS, Weight, GATE, GATE_IS, UP, UP_IS, GATE_BIAS, UP_BIAS)                             \
  KERNEL(ROWS_THREADS)                                                                                            \
  void symbol(IN(X, x), ROUTING, INSIDE GATE, INSIDE UP, OUT(X, h), EXPERT_SCALARS, GATED_SCALARS,                 \
              u32 matrix_rows) {                                                                                  \
    moe_gate_up_rows<SPANS>(x, {expert, order, offsets, tiles, k}, INSIDE Weight(INSIDE GATE_IS),                         \
                     INSIDE Weight(INSIDE UP_IS), GATED_BY(GATE_BIAS, UP_BIAS), h,                                 \
                     {experts, n, columns, lanes, workgroups}, matrix_rows);                                       \
  }
#define MOE_DOWN_ROWS(symbol, X, SPANS, Weight, DOWN, DOWN_IS)                                                            \
  KERNEL(ROWS_THREADS)                                                                                            \
  void symbol(IN(X, h), ROUTING, INSIDE DOWN, OUT(X, y), EXPERT_SCALARS, u32 matrix_rows) {                        \
    moe_down_rows<SPANS>(h, {expert, order, offsets, tiles, k}, INSIDE Weight(INSIDE DOWN_IS), y,                         \
                  {experts, n, columns, lanes, workgroups}, matrix_rows);                                          \
  }
#define MOE_ROWS_GEMV(symbol, X, M, Weight, DOWN, DOWN_IS)                                    \
  KERNEL(GEMV_THREADS)                                                                        \
  REGISTERS(128)                                                                              \
  void symbol(IN(X, h), ROUTING, INSIDE DOWN, OUT(X, y), EXPERT_SCALARS, u32 matrix_rows) {   \
    moe_rows_gemv<M>(h, {expert, order, offsets, tiles, k}, INSIDE Weight(INSIDE DOWN_IS), y, \
                     {experts, n, columns, lanes, workgroups}, matrix_rows);                  \
  }
#define RESIDUAL_SCALARS u32 added, u32 scale_bits
#define GATED_SHARED_SCALARS u32 gated, u32 logit_columns, u32 logit_column, u32 shared_scale_bits
#define GATED_SHARED \
  {gated ? shared : nullptr, logits, logit_columns, logit_column, __builtin_bit_cast(f32, shared_scale_bits)}
#define RESIDUAL {added ? residual : nullptr, __builtin_bit_cast(f32, scale_bits)}
// order_at, weights_at, h_at: numbers before the order, the weights, h, which may stand in one buffer with the experts.
#define MOE_DOWN_PAIRS(symbol, X, MOST, Weight, DOWN, DOWN_IS)                                                       \
  KERNEL(GEMV_THREADS)                                                                                            \
  REGISTERS(MOST == 1 ? 128 : 192)                                                                                \
  void symbol(IN(X, h), IN(f32, weights), IN(i32, expert), IN(i32, order), INSIDE DOWN, IN(f32, bias),              \
              IN(X, residual), IN(X, shared), IN(X, logits), OUT(X, y), u32 tokens, EXPERT_SCALARS, u32 order_at,   \
              u32 weights_at, u32 h_at, u32 biased, RESIDUAL_SCALARS, GATED_SHARED_SCALARS) {                      \
    moe_down_pairs<MOST, INSIDE Weight, X>(h + h_at, weights + weights_at, expert, order + order_at,                      \
                                           INSIDE Weight(INSIDE DOWN_IS), biased ? bias : nullptr, RESIDUAL,       \
                                           GATED_SHARED, y, {experts, n, columns, lanes, workgroups}, tokens, k);  \
  }
// Of up to eight tokens on NVIDIA GPUs.
#define MOE_GATE_UP_FEW(symbol, X, SPANS, NORMED, H, H_IS, Weight, GATE, GATE_IS, UP, UP_IS, GATE_BIAS, UP_BIAS,    \
                        NORM, CORRECTION)                                                                         \
  KERNEL(ROWS_THREADS)                                                                                            \
  void symbol(IN(X, logits), IN(i32, positions), IN(X, x), INSIDE GATE, INSIDE UP INSIDE H, OUT(i32, chosen),       \
              u32 tokens, EXPERT_SCALARS, GATED_SCALARS, CHOICE_SCALARS) {                                         \
    INSIDE H_IS                                                                                                   \
    CHOOSE_PAIRS(CORRECTION, scratch_of_choice<SPANS>());                                                         \
    moe_gate_up_few<SPANS, NORMED>(                                                                               \
        x, list, INSIDE Weight(INSIDE GATE_IS), INSIDE Weight(INSIDE UP_IS), GATED_BY(GATE_BIAS, UP_BIAS), h,       \
        {NORM, __builtin_bit_cast(f32, epsilon_bits), __builtin_bit_cast(f32, offset_bits)},                      \
        {experts, n, columns, lanes, workgroups}, tokens, weighed != 0);                                          \
  }
#define MOE_DOWN_FEW(symbol, X, SPANS, Weight, DOWN, DOWN_IS)                                                      \
  KERNEL(ROWS_THREADS)                                                                                            \
  void symbol(IN(X, h), IN(f32, weights), IN(i32, expert), IN(i32, order), INSIDE DOWN, IN(f32, bias),              \
              IN(X, residual), IN(X, shared), IN(X, logits), OUT(u32, scratch), OUT(X, rows), OUT(X, y), u32 tokens,    \
              EXPERT_SCALARS, u32 order_at, u32 weights_at, u32 h_at, u32 slot, u32 with_bias, RESIDUAL_SCALARS,    \
              GATED_SHARED_SCALARS) {                                                                             \
    clear_other_half(scratch, slot, workgroups, ROWS_THREADS);                                                    \
    moe_down_few<SPANS, INSIDE Weight, X>(                                                                        \
        h + h_at, weights + weights_at, expert, order + order_at, INSIDE Weight(INSIDE DOWN_IS), rows,              \
        {rows, with_bias ? bias : nullptr, RESIDUAL, GATED_SHARED, y, tokens, k, experts, n},                     \
        scratch + SCRATCH_WORDS + slot * COUNTER_WORDS, {experts, n, columns, lanes, workgroups});                \
  }
// Of the gated shared expert alone.
#define ADD_GATED(symbol, X)                                                                                       \
  KERNEL(COMBINE_THREADS)                                                                                         \
  void symbol(IN(X, base), IN(X, shared), IN(X, logits), OUT(X, y), u32 items, u32 n, u32 gated, u32 logit_columns, \
              u32 logit_column, u32 shared_scale_bits) {                                                          \
    add_gated<X>(base, GATED_SHARED, y, items, n);                                                                \
  }
// In tiles, of tiled_gemm.h. LEADING: y or h where it comes first, since what it has is updated; FOLLOWING: else.
#define MOE_GATE_UP_TILES(symbol, X, threads, TILE, LEADING, FOLLOWING, Weight, GATE, GATE_IS, UP, UP_IS, GATE_BIAS, UP_BIAS) \
  KERNEL(threads)                                                                                                       \
  void symbol(INSIDE LEADING IN(X, x), ROUTING, INSIDE GATE, INSIDE UP INSIDE FOLLOWING, u32 k, u32 experts, u32 n,       \
              u32 columns, GATED_SCALARS, u32 matrix_rows) {                                                            \
    moe_gate_up_gemm<INSIDE TILE>(x, {expert, order, offsets, tiles, k, experts}, INSIDE Weight(INSIDE GATE_IS),         \
                                  INSIDE Weight(INSIDE UP_IS), GATED_BY(GATE_BIAS, UP_BIAS), y, n, columns, matrix_rows); \
  }
#define MOE_ROWS_TILES(symbol, X, threads, TILE, LEADING, FOLLOWING, Weight, DOWN, DOWN_IS)                               \
  KERNEL(threads)                                                                                                       \
  void symbol(INSIDE LEADING IN(X, x), ROUTING, INSIDE DOWN INSIDE FOLLOWING, u32 k, u32 experts, u32 n, u32 columns,     \
              u32 matrix_rows) {                                                                                        \
    moe_rows_gemm<INSIDE TILE>(x, {expert, order, offsets, tiles, k, experts}, INSIDE Weight(INSIDE DOWN_IS), y, n,      \
                               columns, matrix_rows);                                                                   \
  }
#define MOE_GATHER(symbol, X)                                                                \
  KERNEL(COMBINE_THREADS)                                                                    \
  void symbol(IN(X, x), IN(i32, expert), IN(i32, order), IN(f32, weights), OUT(X, sorted), u32 k, u32 experts, \
              u32 pairs, u32 columns, u32 weighed) {                                         \
    moe_gather(x, {expert, order, nullptr, nullptr, k}, weighed ? weights : nullptr, sorted, experts, pairs, columns); \
  }
#define MOE_ACTIVATE(symbol, X, BIASES, GATE_BIAS, UP_BIAS)                                                    \
  KERNEL(COMBINE_THREADS)                                                                                      \
  void symbol(IN(X, gate), IN(X, up), IN(i32, expert), INSIDE BIASES OUT(X, h), u32 experts, u32 pairs, u32 n, \
              GATED_SCALARS) {                                                                                 \
    moe_activate(gate, up, expert, GATED_BY(GATE_BIAS, UP_BIAS), h, experts, pairs, n);                        \
  }
#define MOE_COMBINE(symbol, X)                                                                                       \
  KERNEL(COMBINE_THREADS)                                                                                          \
  void symbol(IN(X, down), IN(f32, weights), IN(i32, places), IN(i32, expert), IN(f32, bias), IN(X, residual),       \
              OUT(X, y), u32 tokens, u32 k, u32 experts, u32 n, u32 biased, RESIDUAL_SCALARS) {                     \
    moe_combine<X>(down, weights, places, expert, bias, RESIDUAL, y, tokens, k, experts, n, biased);               \
  }
