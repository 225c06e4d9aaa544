// Activations rounded to 8 bits: per 32 columns one scale.
#include "export.h"
#include "quantize.h"

// x float32 [M, K] -> xq int8 [M, K], xs float32 [M, K / 32], xsum int32 [M, K / 16]. K a multiple of 32. Rows:
// wg * row_tile and on.
KERNEL strixhlo_quantize_rows(BUFFER(const float, x), BUFFER(int8_t, xq), BUFFER(float, xs), BUFFER(int32_t, xsum),
                              int64_t M, int64_t K, int64_t row_tile, int64_t wg) {
  for (int64_t m = wg * row_tile; m < min((wg + 1) * row_tile, M); m++) {
    quantize_row(AsItIs{AT(x) + m * K}, K, AT(xq) + m * K, AT(xs) + m * (K / RUN), AT(xsum) + m * (K / HALF_RUN));
  }
}
