// y = x * weight^T with float32 activations and sums; the weight quantized.
#include "f32_matmul.h"
#include "operands.h"

#define F32_MATMUL(name, Fmt, KIND)                                                                               \
  KERNEL strixhlo_qmm_##name##_f32(TILES_OPERAND BUFFER(const float, x), PARTS_OF_##KIND, BUFFER(float, y), int64_t M, int64_t N, \
                                   int64_t K, int64_t tile_n, SCALARS_OF_##KIND int64_t wg) {                     \
    const int64_t n = wg * tile_n;                                                                                \
    const QuantizedWeight<Fmt> weight = {PARTS_AT_##KIND, K};                                                     \
    RowStore row_store;                                                                                            \
    f32_matmul(AT(x), M, weight, n, min(tile_n, N - n), AT(y) + n, N, row_store, MAY_USE_TILES);                                    \
  }
FOR_EACH_FORMAT(F32_MATMUL)
