// Sixteen rows of activations that bfloat16 holds exactly, times weights, on the matrix unit. A weight is the sum of as
// many bfloat16 terms as it takes: float32 of three, float16 of two.
#pragma once
#include "f32_weights.h"
#include "tiles.h"

#if STRIXHLO_TILES
template <class Weight>
constexpr int TERMS = 3;
template <>
constexpr int TERMS<DenseWeight<Bfloat16>> = 1;
template <>
constexpr int TERMS<DenseWeight<Float16>> = 2;

constexpr int TILE_DEPTH = 16, TILE_COLUMNS = 32;  // pairs of columns; columns

// W float32 as the high halves of their bits, pairs side by side: a and b are columns k and k + 1.
INLINE I pairs_of(I a, I b) { return ((a >> 16) & 0xffff) | (b & int32_t(0xffff0000)); }

// COLUMNS columns of 16 weight rows, two columns of a row in 32 bits, as TERMS bfloat16 each.
template <int TERMS, int COLUMNS>
struct WeightTerms {
  alignas(64) int32_t pairs[TERMS][COLUMNS / 2][W];

  // columns: rows of W weights. False where one is infinite or NaN, which several terms cannot stand for.
  INLINE_MEMBER bool fill(const float (*columns)[W], int64_t count) {
    I broken = 0;
    for (int64_t k = 0; k < COLUMNS && k < (count + TILE_COLUMNS - 1) / TILE_COLUMNS * TILE_COLUMNS; k += 2) {
      F a = k < count ? load<F>(columns[k]) : F(0.0f), b = k + 1 < count ? load<F>(columns[k + 1]) : F(0.0f);
      broken |= (bits_of(a) & 0x7fffffff) >= 0x7f800000;
      broken |= (bits_of(b) & 0x7fffffff) >= 0x7f800000;
      UNROLL
      for (int t = 0; t < TERMS; t++) {
        const I high_a = bits_of(a) & int32_t(0xffff0000), high_b = bits_of(b) & int32_t(0xffff0000);
        store(pairs[t][k / 2], pairs_of(high_a, high_b));
        a -= float_of(high_a), b -= float_of(high_b);
      }
    }
    return TERMS == 1 || sum_of(broken) == 0;
  }

 private:
  INLINE_MEMBER static int32_t sum_of(I v) {
    int32_t any = 0;
    for (int i = 0; i < W; i++) any |= v[i];
    return any;
  }
};

// COLUMNS columns of 16 rows of activations as bfloat16.
template <int COLUMNS>
struct RowTiles {
  alignas(64) uint16_t rows[TILE_M][COLUMNS];

  // False where bfloat16 does not hold them, or, where `finite` is asked for, one is infinite or NaN.
  INLINE_MEMBER bool fill(const float* x, int64_t K, int64_t count, bool finite) {
    for (int m = 0; m < TILE_M; m++) {
      I low = 0, broken = 0;
      for (int64_t k = 0; k < (count + TILE_COLUMNS - 1) / TILE_COLUMNS * TILE_COLUMNS; k += W) {
        const I bits = bits_of(load_part(x + m * K + k, max(min(count - k, W), 0)));
        low |= bits & 0xffff;
        broken |= (bits & 0x7fffffff) >= 0x7f800000;
        store(&rows[m][k], __builtin_convertvector(bits >> 16, S));
      }
      for (int i = 0; i < W; i++)
        if (low[i] || (finite && broken[i])) return false;
    }
    return true;
  }
};

// y [16, W] += rows * weights over `count` columns; `first` starts from zero.
template <int TERMS, int COLUMNS>
INLINE void multiply_bf16_tiles(const WeightTerms<TERMS, COLUMNS>& weights, const RowTiles<COLUMNS>& x, int64_t columns,
                           bool first, float* y, int64_t N, int64_t count) {
  alignas(64) float sums[TILE_M][W];
  {
    Tiles tiles(TILE_DEPTH);
    tiles.clear();
    for (int64_t k = 0; k < columns; k += TILE_COLUMNS) {
      tiles.load<1>(&x.rows[0][k], COLUMNS * 2);
      UNROLL
      for (int t = 0; t < TERMS; t++) {
        tiles.load<2>(weights.pairs[t][k / 2], 4 * W);
        tiles.add_bf16();
      }
    }
    tiles.save(sums);
  }
  for (int m = 0; m < TILE_M; m++) {
    F total = load<F>(sums[m]);
    if (!first) total += load_part(y + m * N, count);
    store_part(y + m * N, total, count);
  }
}
#endif
