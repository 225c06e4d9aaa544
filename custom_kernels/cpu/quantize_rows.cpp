// Activations rounded to 8 bits: per 32 columns one scale.
#include "export.h"
#include "formats.h"

typedef int8_t C __attribute__((ext_vector_type(W)));

// Largest magnitude, as the bits of a float: an order that puts infinity above every number, and NaN above infinity.
INLINE int32_t largest_bits(const float* x) {
  I most = 0;
  UNROLL
  for (int i = 0; i < RUN / W; i++) most = __builtin_elementwise_max(most, bits_of(load<F>(x + i * W)) & 0x7fffffff);
  return __builtin_reduce_max(most);
}

// One group of 32. A scale below the normal floats stands for zero; infinity or NaN anywhere makes the scale NaN.
INLINE void quantize_group(const float* x, int8_t* xq, float* xs, int32_t* xsum) {
  const int32_t most = largest_bits(x);
  float scale = __builtin_bit_cast(float, most) / 127.0f;
  float inverse = 1.0f / scale;
  if (scale < 0x1p-126f) scale = inverse = 0.0f;
  const bool finite = most < 0x7f800000;
  *xs = finite ? scale : __builtin_nanf("");
  I sums[RUN / 16] = {};
  UNROLL
  for (int i = 0; i < RUN / W; i++) {
    // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits.
    const F magic = 0x1.8p23f;
    I q = bits_of(load<F>(x + i * W) * inverse + magic) - bits_of(magic);
    if (!finite) q = 0;
    store(xq + i * W, __builtin_convertvector(q, C));
    sums[i * W / 16] += q;
  }
  UNROLL
  for (int i = 0; i < RUN / 16; i++) xsum[i] = __builtin_reduce_add(sums[i]);
}

// x float32 [M, K] -> xq int8 [M, K], xs float32 [M, K / 32], xsum int32 [M, K / 16] (sums of xq). K a multiple of 32.
// x is about xq * xs: xs = max |x| / 127, xq = x * (1 / xs), rounded to nearest even. Rows: wg * row_tile and on.
KERNEL strixhlo_quantize_rows(BUFFER(const float, x), BUFFER(int8_t, xq), BUFFER(float, xs), BUFFER(int32_t, xsum),
                              int64_t M, int64_t K, int64_t row_tile, int64_t wg) {
  const int64_t first = wg * row_tile, groups = (min(first + row_tile, M) - first) * (K / RUN);
  const float* x = AT(x) + first * K;
  int8_t* xq = AT(xq) + first * K;
  float* xs = AT(xs) + first * (K / RUN);
  int32_t* xsum = AT(xsum) + first * (K / 16);
  for (int64_t g = 0; g < groups; g++) quantize_group(x + g * RUN, xq + g * RUN, xs + g, xsum + g * 2);
}
