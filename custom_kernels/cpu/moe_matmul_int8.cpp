// The matmuls of moe_matmul.cpp with 8-bit activations (`strixhlo_quantize_rows`) and integer dot products.
#include "int8_gemm.h"
#include "operands.h"

// Columns [n, n + count) of y float32 [P, N]: sorted row s of x times expert e's rows of the weight, for the
// experts that have rows. What a row gives does not depend on how many an expert has, up to 15.
template <class Fmt>
INLINE void moe_rows_int8(const Activations& x, const int32_t* offsets, const Parts& weight, float* y,
                          int64_t experts, int64_t N, int64_t tile_n, int64_t wg, bool use_tiles) {
  const int64_t n = wg * tile_n, count = min(tile_n, N - n);
  if (count <= 0) return;
  RowStore store;
  for (int64_t e = 0; e < experts; e++) {
    const int64_t end = offsets[e + 1];
    if (offsets[e] == end) continue;
    const Parts rows = row_of<Fmt>(of_expert<Fmt>(weight, e), e * N + n, x.K);
    for (int64_t s = offsets[e]; s < end;) {
      const Activations from = row_of(x, s);
      float* to = y + s * N + n;
      const int64_t left = end - s;
      if (left >= 16) {
        int8_gemm<Fmt>(from, left, rows, to, count, N, use_tiles), s += left;
      } else if (left >= 4) {
        int8_gemv<Fmt, 4>(from, rows, to, count, N, store), s += 4;
      } else if (left >= 2) {
        int8_gemv<Fmt, 2>(from, rows, to, count, N, store), s += 2;
      } else {
        int8_gemv<Fmt, 1>(from, rows, to, count, N, store), s += 1;
      }
    }
  }
}

#define MOE_INT8(name, Fmt, KIND)                                                                                       \
  KERNEL strixhlo_moe_rows_##name##_int8(TILES_OPERAND BUFFER(const int8_t, xq), BUFFER(const float, xs), BUFFER(const int32_t, xsum), \
                                         BUFFER(const int32_t, offsets), PARTS_OF_##KIND, BUFFER(float, y),             \
                                         SCALARS_OF_##KIND MOE_SCALARS) {                                               \
    moe_rows_int8<Fmt>({AT(xq), AT(xs), AT(xsum), K}, AT(offsets), PARTS_AT_##KIND, AT(y), experts, N,   \
                       tile_n, wg, MAY_USE_TILES);                                                                                     \
  }
FOR_EACH_INTEGER_FORMAT(MOE_INT8)
