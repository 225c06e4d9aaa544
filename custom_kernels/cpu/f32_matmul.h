// y = x * weight^T in float32, for any weight that can be read as float32 vectors (f32_weights.h).
#pragma once
#include "bf16_tiles.h"
#include "digits.h"

// All of a workgroup's weight rows, `count`.
template <class Weight, int M>
INLINE void f32_gemv(const float* x, const Weight& weight, int64_t n, float* y, int64_t count, int64_t N,
                     [[maybe_unused]] RowStore& store) {
#if STRIXHLO_VNNI
  if constexpr (BY_DIGITS<Weight>) return few_rows_gemv<typename Weight::Of, M>(x, weight, n, y, count, N, store);
#endif
  for (int64_t i = 0; i < count; i += W) f32_rows<Weight, M>(x, weight, n + i, min(count - i, W), y + i, N);
}

constexpr int F32_CHUNK_RUNS = 8;

// W weight rows side by side: row k holds column k of each.
struct F32Tile {
  alignas(64) float columns[F32_CHUNK_RUNS * RUN][W];
};

// Columns [run * 32, + columns) of W rows from the n-th; rows past `count` repeat the last one.
template <class Weight>
static void fill(F32Tile& tile, const Weight& weight, int64_t n, int64_t count, int64_t run, int64_t columns) {
  for (int first = 0; first < W; first += 4) {
    typename Weight::Row rows[4];
    typename Weight::Groups groups[4];
    UNROLL
    for (int r = 0; r < 4; r++) rows[r] = weight.row(n + min(first + r, count - 1));
    for (int64_t at = 0; at * RUN < columns; at++) {
      F w[4][PER_RUN];
      UNROLL
      for (int r = 0; r < 4; r++) {
        if (at % W == 0) Weight::load_groups(rows[r], run + at, min((columns - at * RUN) / RUN, W), groups[r]);
        Weight::load_run(rows[r], run + at, groups[r], at % W, min(columns - at * RUN, RUN), w[r]);
      }
      UNROLL
      for (int i = 0; i < PER_RUN; i++) {
        const I bits[4] = {bits_of(w[0][i]), bits_of(w[1][i]), bits_of(w[2][i]), bits_of(w[3][i])};
        int32_t* to = reinterpret_cast<int32_t*>(&tile.columns[at * RUN + i * W][first]);
        store_transposed(to, W, 4 * W, bits, W / 4);
      }
    }
  }
}

// y += tile * activations for M rows of x (already moved to the tile's first column); `first` starts from zero.
template <int M>
INLINE void multiply(const F32Tile& tile, const float* x, int64_t K, int64_t columns, bool first, float* y, int64_t N,
                     int64_t count) {
  F acc[M];
  UNROLL
  for (int i = 0; i < M; i++) {
    acc[i] = 0;
    if (!first) acc[i] = count == W ? load<F>(y + i * N) : load_part(y + i * N, count);
  }
  for (int64_t k = 0; k < columns; k++) {
    const F w = load<F>(tile.columns[k]);
    UNROLL
    for (int i = 0; i < M; i++) acc[i] = fma(w, splat(x[i * K + k]), acc[i]);
  }
  UNROLL
  for (int i = 0; i < M; i++) {
    if (count == W)
      store(y + i * N, acc[i]);
    else
      store_part(y + i * N, acc[i], count);
  }
}

#if STRIXHLO_TILES
// Rows of a block whose activations bfloat16 holds, in sixteens, as long as they follow each other; returns how many.
template <class Weight>
static int64_t bf16_whole_tiles(const F32Tile& tile, const float* x, int64_t K, int64_t rows, int64_t columns,
                                    bool first, float* y, int64_t N, int64_t count) {
  WeightTerms<TERMS<Weight>, F32_CHUNK_RUNS * RUN> terms;
  RowTiles<F32_CHUNK_RUNS * RUN> of_rows;
  bool filled = false;
  int64_t m = 0;
  for (; m + TILE_M <= rows; m += TILE_M) {
    if (!of_rows.fill(x + m * K, K, columns, TERMS<Weight> > 1)) break;
    if (!filled && !terms.fill(tile.columns, columns)) break;
    filled = true;
    multiply_bf16_tiles(terms, of_rows, columns, first, y + m * N, N, count);
  }
  return m;
}
#endif

template <class Weight>
static void f32_gemm(const float* x, int64_t M, const Weight& weight, int64_t n, float* y, int64_t count, int64_t N,
                     [[maybe_unused]] bool use_tiles = false) {
  constexpr int AT_ONCE = 8, BLOCK = 64;
  const int64_t K = weight.K;
  F32Tile tile;
  for (int64_t block = 0; block < M; block += BLOCK) {
    const int64_t end = min(block + BLOCK, M);
    for (int64_t k = 0; k < K; k += F32_CHUNK_RUNS * RUN) {
      const int64_t columns = min(K - k, F32_CHUNK_RUNS * RUN);
      for (int64_t i = 0; i < count; i += W) {
        const int64_t here = min(count - i, W);
        fill(tile, weight, n + i, here, k / RUN, columns);
        int64_t m = block;
#if STRIXHLO_TILES
        if (use_tiles)
          m += bf16_whole_tiles<Weight>(tile, x + m * K + k, K, end - m, columns, k == 0, y + m * N + i, N, here);
#endif
        for (; m + AT_ONCE <= end; m += AT_ONCE)
          multiply<AT_ONCE>(tile, x + m * K + k, K, columns, k == 0, y + m * N + i, N, here);
        for (; m < end; m++) multiply<1>(tile, x + m * K + k, K, columns, k == 0, y + m * N + i, N, here);
      }
    }
  }
}

// y[m * N + i] = row m of x times weight row n + i, i < count.
template <class Weight>
static void f32_matmul(const float* x, int64_t M, const Weight& weight, int64_t n, int64_t count, float* y, int64_t N,
                       RowStore& store, bool use_tiles = false) {
  if (count <= 0) return;
  if (M >= 16) return f32_gemm(x, M, weight, n, y, count, N, use_tiles);
  for (int64_t m = 0; m < M;) {
    const float* xm = x + m * weight.K;
    float* to = y + m * N;
    const int64_t left = M - m;
    if (W == 16 && left >= 8) {  // narrower builds have too few registers
      f32_gemv<Weight, W == 16 ? 8 : 4>(xm, weight, n, to, count, N, store), m += 8;
    } else if (left >= 4) {
      f32_gemv<Weight, 4>(xm, weight, n, to, count, N, store), m += 4;
    } else if (left >= 2) {
      f32_gemv<Weight, 2>(xm, weight, n, to, count, N, store), m += 2;
    } else {
      f32_gemv<Weight, 1>(xm, weight, n, to, count, N, store), m += 1;
    }
  }
}
