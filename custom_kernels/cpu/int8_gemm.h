// Many rows of 8-bit activations: W weight rows are decoded side by side once, then used for up to 128 activation rows.
#pragma once
#include "int8_gemv.h"
#include "transpose.h"

constexpr int CHUNK_RUNS = 8;    // columns decoded at a time, in runs: one super group
constexpr int BLOCK_ROWS = 128;  // activation rows that use one decoded tile

// W weight rows side by side: 4 columns of a row in 32 bits.
template <class Fmt>
struct Int8Tile {
  alignas(64) int32_t codes[CHUNK_RUNS * RUN / 4][W];
  alignas(64) float scale[CHUNK_RUNS * Fmt::GROUPS][W];
  alignas(64) float minimum[Fmt::MINIMUM ? CHUNK_RUNS : 1][W];
};

// What the activations add to each group, the same for all weight rows.
template <class Fmt>
struct GroupSums {
  static constexpr bool ZERO = zero_of<Fmt>() != 0;
  int32_t start[ZERO ? BLOCK_ROWS : 1][CHUNK_RUNS * Fmt::GROUPS];  // minus zero * activations
  float total[Fmt::MINIMUM ? BLOCK_ROWS : 1][CHUNK_RUNS];          // the activations, in float
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
    UNROLL for (int r = 0; r < 4; r++) rows[r] = after<Fmt>(row_of<Fmt>(weight, min(first + r, count - 1), K), run);
    for (int64_t at = 0; at < runs; at += RUNS) {
      I low[4], high[4];
      UNROLL for (int r = 0; r < 4; r++) {
        const Codes codes = load_codes<Fmt, false>(after<Fmt>(rows[r], at), min(runs - at, RUNS));
        low[r] = __builtin_bit_cast(I, prepared<Fmt>(codes.low));
        high[r] = __builtin_bit_cast(I, prepared<Fmt>(codes.high));
      }
      store_transposed(&tile.codes[at * 8][first], W, 8 * W, low, RUNS);
      store_transposed(&tile.codes[at * 8 + 4][first], W, 8 * W, high, RUNS);
    }
    for (int64_t at = 0; at < runs; at += W) {
      const int64_t left = min(runs - at, W);
      F scale[2][4], minimum[4];
      UNROLL for (int r = 0; r < 4; r++) {
        const Parts row = after<Fmt>(rows[r], at & ~int64_t(7));
        const GroupValues values = scales<Fmt, false>(shifted<Fmt>(row, at & 7), left);
        scale[0][r] = values.first;
        scale[1][r] = values.second;
        if constexpr (Fmt::MINIMUM) minimum[r] = minima<Fmt, false>(shifted<Fmt>(row, at & 7), left);
      }
      UNROLL for (int g = 0; g < Fmt::GROUPS; g++)
        store_groups(&tile.scale[at * Fmt::GROUPS + g], first, scale[g], left, Fmt::GROUPS);
      if constexpr (Fmt::MINIMUM) store_groups(&tile.minimum[at], first, minimum, left, 1);
    }
  }
}
