// Norms of many rows, and what is added to a residual stream, for matmuls that do not do it themselves.
#include "activation.h"
#include "export.h"
#include "rms_norm.h"

// x float32 [M, K] -> h float32 [M, K]: rows wg * row_tile and on.
KERNEL strixhlo_norm_rows(BUFFER(const float, x), BUFFER(const float, norm), BUFFER(float, h), int64_t M, int64_t K,
                          int64_t epsilon_bits, int64_t offset_bits, int64_t row_tile, int64_t wg) {
  const RmsNorm rms = {AT(norm), __builtin_bit_cast(float, int32_t(epsilon_bits)),
                       __builtin_bit_cast(float, int32_t(offset_bits))};
  for (int64_t m = wg * row_tile; m < min((wg + 1) * row_tile, M); m++) normalize_row(AT(x) + m * K, K, rms, AT(h) + m * K);
}

// The same of a LayerNorm, with a bias where `biased`.
KERNEL strixhlo_layer_norm_rows(BUFFER(const float, x), BUFFER(const float, norm), BUFFER(const float, bias),
                                BUFFER(float, h), int64_t M, int64_t K, int64_t epsilon_bits, int64_t offset_bits,
                                int64_t biased, int64_t row_tile, int64_t wg) {
  const RmsNorm layer = {AT(norm), __builtin_bit_cast(float, int32_t(epsilon_bits)),
                         __builtin_bit_cast(float, int32_t(offset_bits))};
  for (int64_t m = wg * row_tile; m < min((wg + 1) * row_tile, M); m++)
    layer_normalize_row(AT(x) + m * K, K, layer, biased ? AT(bias) : nullptr, AT(h) + m * K);
}

// y = (base + RMSNorm(x)) * factor, of rows alike, where `based` of the RMSNorm of base: see custom_kernels/ops/add_normed.py.
KERNEL strixhlo_add_normed(BUFFER(const float, base), BUFFER(const float, x), BUFFER(const float, norm),
                           BUFFER(const float, factor), BUFFER(const float, base_norm), BUFFER(float, y), int64_t M,
                           int64_t K, int64_t epsilon_bits, int64_t offset_bits, int64_t scaled, int64_t based,
                           int64_t row_tile, int64_t wg) {
  const RmsNorm rms = {AT(norm), __builtin_bit_cast(float, int32_t(epsilon_bits)),
                       __builtin_bit_cast(float, int32_t(offset_bits))};
  const float scale = scaled ? *AT(factor) : 1.0f;
  for (int64_t m = wg * row_tile; m < min((wg + 1) * row_tile, M); m++) {
    if (based) normalize_row(AT(base) + m * K, K, {AT(base_norm), rms.epsilon, rms.offset}, AT(y) + m * K);
    add_normed_row((based ? AT(y) : AT(base)) + m * K, AT(x) + m * K, K, rms, scale, AT(y) + m * K);
  }
}

// y = base + scale * sigmoid(a column of logits) * x, of rows alike: see custom_kernels/ops/add_gated.py.
KERNEL strixhlo_add_gated(BUFFER(const float, base), BUFFER(const float, x), BUFFER(const float, logits),
                          BUFFER(float, y), int64_t M, int64_t N, int64_t columns, int64_t column, int64_t scale_bits,
                          int64_t row_tile, int64_t wg) {
  for (int64_t m = wg * row_tile; m < min((wg + 1) * row_tile, M); m++) {
    const F gate = sigmoid(splat(AT(logits)[m * columns + column])) * __builtin_bit_cast(float, int32_t(scale_bits));
    for (int64_t n = 0; n < N; n += W) {
      const int64_t at = m * N + n, here = min(N - n, W);
      store_part(AT(y) + at, fma(load_part(AT(x) + at, here), gate, load_part(AT(base) + at, here)), here);
    }
  }
}
