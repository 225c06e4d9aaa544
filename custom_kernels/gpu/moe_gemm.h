// Matmuls of a mixture of experts where an expert has many rows, on the matrix units: the tiles of tiled_gemm.h over up to
// 64 sorted rows of one expert. Gate and up are one tile of two weights. A tile computes 16, 32 or all of its rows, by how
// many there are.
#pragma once

#include "moe_tiles.h"
#include "tiled_gemm.h"

// Which columns of which tile a workgroup computes.
struct ExpertBlock {
  MatrixTile tile;
  u32 first_n;
};
template <u32 COLUMNS>
DEVICE ExpertBlock block_of_workgroup(const ExpertRouting& routing, u32 n, u32 matrix_rows) {
  const u32 blocks = ceil_div(n, COLUMNS);
  return {routing.matrix_tile(workgroup_id() / blocks, matrix_rows), workgroup_id() % blocks * COLUMNS};
}

// source(row), store(row, column, a, b): as in FragmentGemm::run, of the rows and columns that are there.
template <class TILE, bool PAIRED, u32 ROWS, class W, class X, class Source, class Store>
DEVICE void multiply_expert(const GLOBAL X* x, const W& a, const W& b, u32 n, u32 k, const ExpertBlock& block,
                            const Source& source, const Store& store) {
  const u32 count = block.tile.count, first_row = block.tile.expert * n;
  if constexpr (ROWS > TILE::FEWEST) {
    if (count <= ROWS / 2) return multiply_expert<TILE, PAIRED, ROWS / 2>(x, a, b, n, k, block, source, store);
  }
  typename TILE::template Gemm<W, X, PAIRED, ROWS>().run(
      x, a, b, first_row, first_row, n, k, block.first_n,
      [&](u32 row) __attribute__((always_inline)) { return source(smaller(row, count - 1)); },
      [&](u32 row, u32 column, f32 one, f32 other) __attribute__((always_inline)) {
        if (row < count && column < n) store(row, column, one, other);
      });
}

template <class TILE, class W, class X>
DEVICE void moe_gate_up_gemm(const GLOBAL X* x, const ExpertRouting routing, const W gate, const W up,
                             const GatedBy gated, GLOBAL X* h, u32 n, u32 k, u32 matrix_rows) {
  constexpr u32 COLUMNS = TILE::template Gemm<W, X, true>::COLUMNS;
  const ExpertBlock block = block_of_workgroup<COLUMNS>(routing, n, matrix_rows);
  const u32 first = block.tile.first, e = block.tile.expert;
  if (!block.tile.count) return;
  multiply_expert<TILE, true, MATRIX_TILE>(
      x, of_expert(gate, e), of_expert(up, e), n, k, block,
      [&](u32 row) __attribute__((always_inline)) { return routing.token(first + row); },
      [&](u32 row, u32 column, f32 g, f32 u) __attribute__((always_inline)) {
        store(h, (u64)(first + row) * n + column, gated(g, u, e * n + column));
      });
}

template <class TILE, class W, class X>
DEVICE void moe_rows_gemm(const GLOBAL X* h, const ExpertRouting routing, const W weight, GLOBAL X* y, u32 n, u32 k,
                          u32 matrix_rows) {
  constexpr u32 COLUMNS = TILE::template Gemm<W, X, false>::COLUMNS;
  const ExpertBlock block = block_of_workgroup<COLUMNS>(routing, n, matrix_rows);
  const u32 first = block.tile.first;
  if (!block.tile.count) return;
  const W own = of_expert(weight, block.tile.expert);
  multiply_expert<TILE, false, MATRIX_TILE>(
      h, own, own, n, k, block, [&](u32 row) __attribute__((always_inline)) { return first + row; },
      [&](u32 row, u32 column, f32 value, f32) __attribute__((always_inline)) {
        store(y, (u64)(first + row) * n + column, value);
      });
}
