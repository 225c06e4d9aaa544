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
// take MATRIX_TILE rows of an expert from `matrix_first` on, would take them.
struct ExpertTile {
  u32 expert, first, count, matrix_first, together;
};

struct ExpertRouting {
  const GLOBAL i32 *expert, *order, *offsets, *tiles;
  u32 k;

  __attribute__((always_inline)) u32 token(u32 sorted) const { return (u32)order[sorted] / k; }
  // count is 0 where there is no such tile.
  __attribute__((always_inline)) ExpertTile tile(u32 number) const {
    const i32 first = tiles[number];
    if (first < 0) return {};
    const u32 e = (u32)expert[first], begin = (u32)offsets[e], end = (u32)offsets[e + 1];
    const u32 matrix_first = (u32)first - ((u32)first - begin) % MATRIX_TILE;
    return {e, (u32)first, smaller(end - (u32)first, 16u), matrix_first, smaller(end - matrix_first, MATRIX_TILE)};
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
