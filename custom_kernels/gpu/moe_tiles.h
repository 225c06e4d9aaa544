// What `moe_route` says of the sorted rows, as the matmuls of a mixture of experts ask for it.
#pragma once

#include "activation.h"
#include "streams.h"

inline constexpr u32 MATRIX_TILE = 64;  // sorted rows that the matrix units take together

template <u32 N>
struct Count {
  static constexpr u32 VALUE = N;
};

// The weight of all experts as one of them has it: nvfp4's have a global scale each.
template <class W>
DEVICE W of_expert(const W& weight, u32) { return weight; }
DEVICE Nvfp4 of_expert(Nvfp4 weight, u32 expert) {
  weight.parts.global_scale += expert;
  return weight;
}

// Sorted rows [first, first + count) of one expert; `together`: how many rows there are where the matrix units, which
// take MATRIX_TILE rows of an expert at a time, would take them.
struct ExpertTile {
  u32 expert, first, count, together;
};
// What the matrix units take at a time; count 0: nothing.
struct MatrixTile {
  u32 expert, first, count;
};

struct ExpertRouting {
  const GLOBAL i32 *expert, *order, *offsets, *tiles;
  u32 k, experts = 0;

  __attribute__((always_inline)) u32 token(u32 sorted) const { return (u32)order[sorted] / k; }
  // count is 0 where there is no such tile.
  __attribute__((always_inline)) ExpertTile tile(u32 number) const {
    const i32 first = tiles[number];
    if (first < 0) return {};
    const u32 e = (u32)expert[first], begin = (u32)offsets[e], end = (u32)offsets[e + 1];
    const u32 matrix_first = (u32)first - ((u32)first - begin) % MATRIX_TILE;
    return {e, (u32)first, smaller(end - (u32)first, 16u), smaller(end - matrix_first, MATRIX_TILE)};
  }
  // Tile `number` of those that have `least` rows or more, expert after expert. The wave meets: each lane counts the tiles
  // of its share of the experts, and the one that has the tile looks for it.
  __attribute__((always_inline)) MatrixTile matrix_tile(u32 number, u32 least) const {
    const u32 share = ceil_div(experts, WAVE), mine = lane_id() * share, after = smaller(mine + share, experts);
    const auto tiles_of = [&](u32 e) __attribute__((always_inline)) {
      const u32 rows = (u32)(offsets[e + 1] - offsets[e]);
      return rows / MATRIX_TILE + (rows % MATRIX_TILE >= least);
    };
    u32 count = 0;
    for (u32 e = mine; e < after; e++) count += tiles_of(e);
    u32 until = count;  // of this lane and those before it
    UNROLL for (u32 step = 1; step < WAVE; step *= 2) {
      const u32 before = shuffle_bits(until, lane_id() < step ? lane_id() : lane_id() - step);
      until += lane_id() < step ? 0 : before;
    }
    if (number >= broadcast_bits(until, WAVE - 1)) return {};
    u32 lanes_before = until <= number;
    UNROLL for (u32 mask = WAVE / 2; mask; mask /= 2) lanes_before += shuffle_bits(lanes_before, lane_id() ^ mask);
    u32 left = number - (until - count), e = mine;
    if (until - count <= number && number < until) {
      for (u32 own = tiles_of(e); left >= own; own = tiles_of(e)) {
        left -= own;
        e++;
      }
    }
    const u32 found = broadcast_bits(e, lanes_before), begin = (u32)offsets[found], end = (u32)offsets[found + 1];
    const u32 first = begin + broadcast_bits(left, lanes_before) * MATRIX_TILE;
    return {found, first, smaller(end - first, MATRIX_TILE)};
  }
};

// The biases of gate and up, [experts * n], or null, and the activation.
struct GatedBy {
  const GLOBAL f32 *gate_bias, *up_bias;
  u32 activation;
  f32 limit;

  __attribute__((always_inline)) f32 operator()(f32 gate, f32 up, u32 row) const {
    if (gate_bias) {
      gate += gate_bias[row];
      up += up_bias[row];
    }
    return activated(gate, up, activation, limit);
  }
};
