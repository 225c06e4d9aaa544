// y = x * weight^T with 8-bit activations (`strixhlo_quantize_rows`), integer dot products and float32 sums over
// groups.
#include "operands.h"
#include "int8_matmul.h"

#define INT8_MATMUL(name, Fmt, KIND)                                                                                   \
  KERNEL strixhlo_qmm_##name##_int8(TILES_OPERAND BUFFER(const int8_t, xq), BUFFER(const float, xs), BUFFER(const int32_t, xsum),    \
                                    PARTS_OF_##KIND, BUFFER(float, y), int64_t M, int64_t N, int64_t K, int64_t tile_n, \
                                    SCALARS_OF_##KIND int64_t wg) {                                                    \
    const int64_t n = wg * tile_n;                                                                                     \
    RowStore row_store;                                                                                                \
    int8_matmul<Fmt>({AT(xq), AT(xs), AT(xsum), K}, M, PARTS_AT_##KIND, n, min(tile_n, N - n), AT(y) + n, N, row_store, \
                     MAY_USE_TILES);                                                                                    \
  }
FOR_EACH_INTEGER_FORMAT(INT8_MATMUL)
