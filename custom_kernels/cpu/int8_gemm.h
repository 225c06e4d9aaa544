// Many rows of 8-bit activations: W weight rows are decoded side by side once, then used for up to 128 activation rows.
#pragma once
#include "int8_gemv.h"
#include "tiles.h"
#include "transpose.h"

constexpr int CHUNK_RUNS = 8;    // columns decoded at a time, in runs: one super group
constexpr int BLOCK_ROWS = 128;  // activation rows that use one decoded tile

// W weight rows side by side: 4 columns of a row in 32 bits.
template <class Fmt>
struct Int8Tile {
  alignas(64) int32_t codes[CHUNK_RUNS * RUN / 4][W];
  alignas(64) float scale[CHUNK_RUNS * Fmt::GROUPS][W];
  alignas(64) float minimum[Fmt::MINIMUM ? CHUNK_RUNS * Fmt::GROUPS : 1][W];
};

// What the activations add to each group, the same for all weight rows.
template <class Fmt>
struct GroupSums {
  static constexpr bool ZERO = zero_of<Fmt>() != 0;
  int32_t start[ZERO ? BLOCK_ROWS : 1][CHUNK_RUNS * Fmt::GROUPS];  // minus zero * activations
  float total[Fmt::MINIMUM ? BLOCK_ROWS : 1][CHUNK_RUNS * Fmt::GROUPS];  // the activations, in float
};

// Four rows' values per group, as columns.
INLINE void store_groups(float (*out)[W], int first_row, const F v[4], int64_t runs, int stride) {
  const I bits[4] = {bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3])};
  const int lanes = int((min(runs, CHUNK_RUNS) + 3) / 4);
  store_transposed(reinterpret_cast<int32_t*>(&out[0][first_row]), stride * W, 4 * stride * W, bits, min(lanes, W / 4));
}

// Decodes runs [run, run + runs) of W rows; rows past `count` repeat the last one.
template <class Fmt>
static void fill(Int8Tile<Fmt>& tile, const Parts& weight, int64_t K, int64_t count, int64_t run, int64_t runs) {
  for (int first = 0; first < W; first += 4) {
    Parts rows[4];
    UNROLL
    for (int r = 0; r < 4; r++) rows[r] = after<Fmt>(row_of<Fmt>(weight, min(first + r, count - 1), K), run);
    for (int64_t at = 0; at < runs; at += RUNS) {
      I low[4], high[4];
      UNROLL
      for (int r = 0; r < 4; r++) {
        const Codes codes = load_codes<Fmt, false>(after<Fmt>(rows[r], at), min(runs - at, RUNS));
        low[r] = __builtin_bit_cast(I, prepared<Fmt>(codes.low));
        high[r] = __builtin_bit_cast(I, prepared<Fmt>(codes.high));
      }
      store_transposed(&tile.codes[at * 8][first], W, 8 * W, low, RUNS);
      store_transposed(&tile.codes[at * 8 + 4][first], W, 8 * W, high, RUNS);
    }
    for (int64_t at = 0; at < runs; at += W) {
      const int64_t left = min(runs - at, W);
      F scale[2][4], minimum[2][4];
      UNROLL
      for (int r = 0; r < 4; r++) {
        const Parts row = after<Fmt>(rows[r], at);
        const GroupValues values = left == W ? scales<Fmt, true>(row, W) : scales<Fmt, false>(row, left);
        scale[0][r] = values.first;
        scale[1][r] = values.second;
        if constexpr (Fmt::MINIMUM) {
          const GroupValues added = left == W ? integer_minima<Fmt, true>(row, W, values)
                                              : integer_minima<Fmt, false>(row, left, values);
          minimum[0][r] = added.first;
          minimum[1][r] = added.second;
        }
      }
      UNROLL
      for (int g = 0; g < Fmt::GROUPS; g++) {
        store_groups(&tile.scale[at * Fmt::GROUPS + g], first, scale[g], left, Fmt::GROUPS);
        if constexpr (Fmt::MINIMUM)
          store_groups(&tile.minimum[at * Fmt::GROUPS + g], first, minimum[g], left, Fmt::GROUPS);
      }
    }
  }
}

// Sums over runs [run, run + runs) of `rows` activation rows.
template <class Fmt>
static void fill(GroupSums<Fmt>& sums, const Activations& x, int64_t rows, int64_t run, int64_t runs) {
  typedef int32_t I8 __attribute__((ext_vector_type(8)));
  typedef int32_t I16 __attribute__((ext_vector_type(16)));
  typedef float F8 __attribute__((ext_vector_type(8)));
  typedef float F16 __attribute__((ext_vector_type(16)));
  for (int64_t m = 0; m < rows; m++) {
    const Activations xm = row_of(x, m);
    I16 halves;
    F8 scale;
    if (runs == CHUNK_RUNS) {
      halves = load<I16>(xm.sum + run * 2);
      scale = load<F8>(xm.scale + run);
    } else {
      for (int r = 0; r < 2 * CHUNK_RUNS; r++) halves[r] = r < 2 * runs ? xm.sum[run * 2 + r] : 0;
      for (int r = 0; r < CHUNK_RUNS; r++) scale[r] = r < runs ? xm.scale[run + r] : 0.0f;
    }
    const I8 whole = __builtin_shufflevector(halves, halves, 0, 2, 4, 6, 8, 10, 12, 14) +
                     __builtin_shufflevector(halves, halves, 1, 3, 5, 7, 9, 11, 13, 15);
    if constexpr (GroupSums<Fmt>::ZERO && Fmt::GROUPS == 2) store(sums.start[m], halves * -zero_of<Fmt>());
    if constexpr (GroupSums<Fmt>::ZERO && Fmt::GROUPS == 1) store(sums.start[m], whole * -zero_of<Fmt>());
    if constexpr (Fmt::MINIMUM && Fmt::GROUPS == 1)
      store(sums.total[m], __builtin_convertvector(whole, F8) * scale);
    if constexpr (Fmt::MINIMUM && Fmt::GROUPS == 2) {
      const auto both = __builtin_shufflevector(scale, scale, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
      store(sums.total[m], __builtin_convertvector(halves, F16) * both);
    }
  }
}

// y += tile * activations for rows [m, m + M) of the block, over the tile's runs; the first chunk starts from zero.
template <class Fmt, int M>
INLINE void multiply(const Int8Tile<Fmt>& tile, const GroupSums<Fmt>& sums, const Activations& block, int64_t m,
                     int64_t run, int64_t runs, float* y, int64_t N, int64_t count) {
  const Activations x = row_of(block, m);
  F acc[M];
  UNROLL
  for (int i = 0; i < M; i++) {
    acc[i] = 0;
    if (run > 0) acc[i] = count == W ? load<F>(y + i * N) : load_part(y + i * N, count);
  }
  for (int64_t r = 0; r < runs; r++) {
    UNROLL
    for (int g = 0; g < Fmt::GROUPS; g++) {
      constexpr int COLUMNS = Fmt::GROUP / 4;
      const int64_t group = r * Fmt::GROUPS + g;
      const F scale = load<F>(tile.scale[group]);
      UNROLL
      for (int i = 0; i < M; i++) {
        I start = 0;
        if constexpr (GroupSums<Fmt>::ZERO) start = I(sums.start[m + i][group]);
        const int8_t* xq = x.q + i * x.K + run * RUN + group * Fmt::GROUP;
        const I product = dot_columns<Fmt, COLUMNS>(start, &tile.codes[group * COLUMNS], xq);
        acc[i] = fma(to_float(product), scale * splat(x.scale[i * (x.K / RUN) + run + r]), acc[i]);
      }
    }
    UNROLL
    for (int g = 0; Fmt::MINIMUM && g < Fmt::GROUPS; g++) {
      const int64_t group = r * Fmt::GROUPS + g;
      const F minimum = load<F>(tile.minimum[group]);
      UNROLL
      for (int i = 0; i < M; i++) acc[i] = fma(minimum, splat(sums.total[m + i][group]), acc[i]);
    }
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
// The same for 16 rows, with the same results: the integers are exact and the floats are summed in that order.
template <class Fmt>
INLINE void multiply_tiles(Tiles& tiles, const Int8Tile<Fmt>& tile, const GroupSums<Fmt>& sums, const Activations& block,
                           int64_t m, int64_t run, int64_t runs, float* y, int64_t N, int64_t count) {
  constexpr int COLUMNS = Fmt::GROUP / 4;
  const Activations x = row_of(block, m);
  alignas(64) int32_t products[2][TILE_M][W];  // two, so that one group is multiplied while another one is scaled
  F acc[TILE_M];
  UNROLL
  for (int i = 0; i < TILE_M; i++) acc[i] = run > 0 ? load_part(y + i * N, count) : F(0.0f);
  for (int64_t group = 0; group < runs * Fmt::GROUPS; group++) {
    tiles.load<1>(x.q + run * RUN + group * Fmt::GROUP, x.K);
    tiles.load<2>(tile.codes[group * COLUMNS], 4 * W);
    tiles.clear();
    tiles.add_int8();
    tiles.save(products[group % 2]);
    const F scale = load<F>(tile.scale[group]);
    UNROLL
    for (int i = 0; i < TILE_M; i++) {
      I product = load<I>(products[group % 2][i]);
      if constexpr (GroupSums<Fmt>::ZERO) product += sums.start[m + i][group];
      const F of_row = splat(x.scale[i * (x.K / RUN) + run + group / Fmt::GROUPS]);
      acc[i] = fma(to_float(product), scale * of_row, acc[i]);
    }
    if (Fmt::MINIMUM && (group + 1) % Fmt::GROUPS == 0) {
      for (int64_t g = group + 1 - Fmt::GROUPS; g <= group; g++) {
        const F minimum = load<F>(tile.minimum[g]);
        UNROLL
        for (int i = 0; i < TILE_M; i++) acc[i] = fma(minimum, splat(sums.total[m + i][g]), acc[i]);
      }
    }
  }
  UNROLL
  for (int i = 0; i < TILE_M; i++) store_part(y + i * N, acc[i], count);
}

// The rows of a block that fill whole tiles; returns how many.
template <class Fmt>
static int64_t int8_whole_tiles(const Int8Tile<Fmt>& tile, const GroupSums<Fmt>& sums, const Activations& block,
                                    int64_t rows, int64_t run, int64_t runs, float* y, int64_t N, int64_t count) {
  Tiles tiles(Fmt::GROUP / 4);
  int64_t m = 0;
  for (; m + TILE_M <= rows; m += TILE_M) multiply_tiles(tiles, tile, sums, block, m, run, runs, y + m * N, N, count);
  return m;
}
#endif

// All of a workgroup's weight rows, `count`, with any number of activation rows; `use_tiles`: on the matrix unit.
template <class Fmt>
static void int8_gemm(const Activations& x, int64_t M, const Parts& weight, float* y, int64_t count, int64_t N,
                      [[maybe_unused]] bool use_tiles = false) {
  constexpr int AT_ONCE = W == 16 ? 8 : 4;
  Int8Tile<Fmt> tile;
  GroupSums<Fmt> sums;
  const int64_t all_runs = x.K / RUN;
  for (int64_t first = 0; first < M; first += BLOCK_ROWS) {
    const Activations block = row_of(x, first);
    const int64_t rows = min(M - first, BLOCK_ROWS);
    for (int64_t run = 0; run < all_runs; run += CHUNK_RUNS) {
      const int64_t runs = min(all_runs - run, CHUNK_RUNS);
      fill(sums, block, rows, run, runs);
      for (int64_t n = 0; n < count; n += W) {
        const int64_t here = min(count - n, W);
        fill(tile, row_of<Fmt>(weight, n, x.K), x.K, here, run, runs);
        float* to = y + first * N + n;
        int64_t m = 0;
#if STRIXHLO_TILES
        if (use_tiles) m = int8_whole_tiles(tile, sums, block, rows, run, runs, to, N, here);
#endif
        for (; m + AT_ONCE <= rows; m += AT_ONCE)
          multiply<Fmt, AT_ONCE>(tile, sums, block, m, run, runs, to + m * N, N, here);
        for (; m < rows; m++) multiply<Fmt, 1>(tile, sums, block, m, run, runs, to + m * N, N, here);
      }
    }
  }
}
