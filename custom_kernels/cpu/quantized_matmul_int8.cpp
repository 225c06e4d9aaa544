// y = x * weight^T with 8-bit activations (`strixhlo_quantize_rows`), integer dot products and float32 sums over
// groups.
#include "operands.h"
#include "int8_gemm.h"

// y float32 [M, N], output columns wg * tile_n and on. K: a multiple of 32, of 256 for two-level formats.
template <class Fmt>
static void int8_matmul(const Activations& x, const Parts& weight, float* y, int64_t M, int64_t N, int64_t tile_n,
                        int64_t wg) {
  const int64_t n = wg * tile_n, count = min(tile_n, N - n);
  if (count <= 0) return;
  const Parts rows = row_of<Fmt>(weight, n, x.K);
  if (M >= 16) return int8_gemm<Fmt>(x, M, rows, y + n, count, N);
  for (int64_t m = 0; m < M;) {
    const Activations xm = row_of(x, m);
    float* to = y + m * N + n;
    const int64_t left = M - m;
    if (left >= 8) {
      int8_gemv<Fmt, 8>(xm, rows, to, count, N), m += 8;
    } else if (left >= 4) {
      int8_gemv<Fmt, 4>(xm, rows, to, count, N), m += 4;
    } else if (left >= 2) {
      int8_gemv<Fmt, 2>(xm, rows, to, count, N), m += 2;
    } else {
      int8_gemv<Fmt, 1>(xm, rows, to, count, N), m += 1;
    }
  }
}

#define INT8_MATMUL(name, Fmt, KIND)                                                                                   \
  KERNEL strixhlo_qmm_##name##_int8(BUFFER(const int8_t, xq), BUFFER(const float, xs), BUFFER(const int32_t, xsum),    \
                                    PARTS_OF_##KIND, BUFFER(float, y), int64_t M, int64_t N, int64_t K, int64_t tile_n, \
                                    SCALARS_OF_##KIND int64_t wg) {                                                    \
    int8_matmul<Fmt>({AT(xq), AT(xs), AT(xsum), K}, PARTS_AT_##KIND, AT(y), M, N, tile_n, wg);                         \
  }
FOR_EACH_INTEGER_FORMAT(INT8_MATMUL)
