// Which kernel multiplies many rows of x in tiles: of NVIDIA's GPUs, or of AMD's. Both have `run`, which asks where the rows
// come from and hands out what they give, so that dense matmuls (fused_gemm.h) and experts (moe_gemm.h) share them.
#pragma once

#include "fragment_gemm.h"
#include "matrix_gemm.h"
#include "register_gemm.h"

// FEWEST: a kernel of a tile can compute no less than so many of its rows.
template <u32 M, u32 WAVES_N, u32 WAVES_K>
struct InFragments {
  static constexpr u32 FEWEST = 16;
  template <class W, class X, bool PAIRED, u32 ROWS = M>
  using Gemm = FragmentGemm<FragmentTile<M, WAVES_N, WAVES_K>, W, X, PAIRED, ROWS>;
};
template <u32 STRIPES, u32 WAVES>
struct InRegisters {
  static constexpr u32 FEWEST = 16;
  template <class W, class X, bool PAIRED, u32 ROWS = 16>
  using Gemm = RegisterGemm<STRIPES, WAVES, W, X, PAIRED>;
};
template <u32 M>
struct InMatrixTiles {
  static constexpr u32 FEWEST = 16 * MatrixShape<M>::WAVES_M;
  template <class W, class X, bool PAIRED, u32 ROWS = M>
  using Gemm = MatrixGemm<M, W, X, PAIRED, ROWS>;
};
