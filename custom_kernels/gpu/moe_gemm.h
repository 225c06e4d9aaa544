// Matmuls of a mixture of experts where an expert has many rows, on the matrix units: the tiles of matrix_gemm.h over up
// to 64 sorted rows of one expert. Gate and up are one tile: 16 rows of the one, 16 of the other, in turn.
#pragma once

#include "matrix_gemm.h"
#include "moe_tiles.h"

// PAIRED: a tile has both weights, and N / 2 columns of the result.
template <class W, bool PAIRED, class X>
struct ExpertGemm : MatrixGemm<MATRIX_TILE, W, X> {
  using Base = MatrixGemm<MATRIX_TILE, W, X>;
  using Shape = typename Base::Shape;
  static constexpr u32 COLUMNS = PAIRED ? Shape::N / 2 : Shape::N, RUNS = Base::K_STEP / W::RUN;

  u32 x_row[Base::LOADS_X], w_row[Base::LOADS_W];
  bool second[Base::LOADS_W];  // of the two weights; the same for all of a wave

  __attribute__((always_inline)) void load(const GLOBAL X* x, const W& a, const W& b, u32 k, u32 start) {
    UNROLL for (u32 i = 0; i < Base::LOADS_X; i++) {
      const u32 column = (i * MATRIX_THREADS + thread_id()) % (Base::K_STEP / 4);
      Base::next_x[i] = ask4(x, (u64)x_row[i] * (k / 4) + smaller(start / 4 + column, k / 4 - 1));
    }
    UNROLL for (u32 i = 0; i < Base::LOADS_W; i++) {
      const u32 run = smaller(start / W::RUN + (i * MATRIX_THREADS + thread_id()) % RUNS, a.runs - 1);
      if (PAIRED && second[i]) {
        Base::next_w[i] = b.load(w_row[i], run);
      } else {
        Base::next_w[i] = a.load(w_row[i], run);
      }
    }
  }

  // source(i): the row of x of the tile's row i, of `count`. store(row, column, first, second): results of a place; the
  // second only where PAIRED.
  template <class Source, class Store>
  __attribute__((always_inline)) void run(const GLOBAL X* x, W a, W b, u32 e, u32 count, u32 n, u32 k, u32 first_n,
                                          const Source& source, const Store& store) {
    const u32 wave = wave_id();
    const u32 wave_m = wave % Shape::WAVES_M * Base::ROWS_OF_WAVE;
    const u32 wave_n = wave / Shape::WAVES_M % Shape::WAVES_N * Base::COLUMNS_OF_WAVE;
    a = of_expert(a, e);
    b = of_expert(b, e);
    a.runs = b.runs = k / W::RUN;
    UNROLL for (u32 i = 0; i < Base::LOADS_X; i++) {
      x_row[i] = source(smaller((i * MATRIX_THREADS + thread_id()) / (Base::K_STEP / 4), count - 1));
    }
    UNROLL for (u32 i = 0; i < Base::LOADS_W; i++) {
      const u32 row = (i * MATRIX_THREADS + thread_id()) / RUNS;
      second[i] = (i * MATRIX_THREADS / RUNS + wave * (WAVE / RUNS)) / 16 % 2;
      w_row[i] = e * n + smaller(first_n + (PAIRED ? row / 32 * 16 + row % 16 : row), n - 1);
    }
    UNROLL for (u32 i = 0; i < Base::FRAGMENTS_M; i++) {
      UNROLL for (u32 j = 0; j < Base::FRAGMENTS_N; j++) Base::sum[i][j] = {};
    }
    load(x, a, b, k, 0);
    for (u32 start = 0; start < k; start += Base::K_STEP) {
      Base::stage(k, start);
      barrier();
      load(x, a, b, k, start + Base::K_STEP < k ? start + Base::K_STEP : start);
      UNROLL for (u32 g = 0; g < Base::GROUPS_OF_WAVE; g++) Base::add_group(g, wave_m, wave_n);
      barrier();
    }
    UNROLL for (u32 i = 0; i < Base::FRAGMENTS_M; i++) {
      UNROLL for (u32 j = 0; j < Base::FRAGMENTS_N; j += PAIRED ? 2 : 1) {
        UNROLL for (u32 at = 0; at < 8; at++) {
          const u32 row = wave_m + 16 * i + row_of(at);
          const u32 column = first_n + (PAIRED ? wave_n / 2 + 8 * j : wave_n + 16 * j) + column_of(at);
          if (row >= count || column >= n) continue;
          store(row, column, Base::sum[i][j].of[at], Base::sum[i][PAIRED ? j + 1 : j].of[at]);
        }
      }
    }
  }
};

// Whether this workgroup has a tile; `block`: which columns.
DEVICE bool matrix_tile(const ExpertRouting& routing, u32 blocks, u32 matrix_rows, ExpertTile& tile) {
  tile = routing.tile(workgroup_id() / blocks);
  return tile.count && tile.first == tile.matrix_first && tile.together >= matrix_rows;
}

template <class W, class X>
DEVICE void moe_gate_up_gemm(const GLOBAL X* x, const ExpertRouting routing, W gate, W up, const GatedBy gated,
                             GLOBAL X* h, u32 n, u32 k, u32 matrix_rows) {
  using Gemm = ExpertGemm<W, true, X>;
  const u32 blocks = ceil_div(n, Gemm::COLUMNS);
  ExpertTile tile;
  if (!matrix_tile(routing, blocks, matrix_rows, tile)) return;
  Gemm().run(
      x, gate, up, tile.expert, tile.together, n, k, workgroup_id() % blocks * Gemm::COLUMNS,
      [&](u32 row) __attribute__((always_inline)) { return routing.token(tile.first + row); },
      [&](u32 row, u32 column, f32 g, f32 u) __attribute__((always_inline)) {
        store(h, (u64)(tile.first + row) * n + column, gated(g, u, tile.expert * n + column));
      });
}

template <class W, class X>
DEVICE void moe_rows_gemm(const GLOBAL X* h, const ExpertRouting routing, W weight, GLOBAL X* y, u32 n, u32 k,
                          u32 matrix_rows) {
  using Gemm = ExpertGemm<W, false, X>;
  const u32 blocks = ceil_div(n, Gemm::COLUMNS);
  ExpertTile tile;
  if (!matrix_tile(routing, blocks, matrix_rows, tile)) return;
  Gemm().run(
      h, weight, weight, tile.expert, tile.together, n, k, workgroup_id() % blocks * Gemm::COLUMNS,
      [&](u32 row) __attribute__((always_inline)) { return tile.first + row; },
      [&](u32 row, u32 column, f32 value, f32) __attribute__((always_inline)) {
        store(y, (u64)(tile.first + row) * n + column, value);
      });
}
