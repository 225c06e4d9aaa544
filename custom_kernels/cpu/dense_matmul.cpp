// y = x * w^T with a dense weight [N, K] of float32, float16 or bfloat16.
#include "export.h"
#include "f32_matmul.h"

#define DENSE_MATMUL(name, Type)                                                                                 \
  KERNEL strixhlo_mm_##name(TILES_OPERAND BUFFER(const float, x), BUFFER(const Type::Element, w), BUFFER(float, y), int64_t M, \
                            int64_t N, int64_t K, int64_t tile_n, int64_t wg) {                                  \
    const int64_t n = wg * tile_n;                                                                               \
    RowStore unused;                                                                                           \
    f32_matmul(AT(x), M, DenseWeight<Type>{AT(w), K}, n, min(tile_n, N - n), AT(y) + n, N, unused, \
               MAY_USE_TILES);                      \
  }
DENSE_MATMUL(f32, Float32)
DENSE_MATMUL(f16, Float16)
DENSE_MATMUL(bf16, Bfloat16)
