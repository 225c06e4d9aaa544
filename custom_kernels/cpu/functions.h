// exp, tanh and the largest lane. There is no libm here.
#pragma once
#include "vector.h"

// exp(x) for x <= 88, relative error under 2e-7; results below the normal floats (x < -87.3, -inf) are 0. NaN stays
// NaN.
INLINE F exp(F x) {
  const F magic = 0x1.8p23f;  // adding it rounds to an integer
  const F shifted = fma(x, F(0x1.715476p+0f), magic);
  const I n = bits_of(shifted) - bits_of(magic);
  const F whole = shifted - magic;
  F r = fma(whole, F(-0x1.63p-1f), x);  // ln 2 in two parts: the first times `whole` is exact
  r = fma(whole, F(0x1.bd0106p-13f), r);
  F e = 1.0f / 5040;  // Taylor: |r| <= ln 2 / 2
  e = fma(e, r, F(1.0f / 720));
  e = fma(e, r, F(1.0f / 120));
  e = fma(e, r, F(1.0f / 24));
  e = fma(e, r, F(1.0f / 6));
  e = fma(e, r, F(0.5f));
  e = fma(e, r, F(1.0f));
  e = fma(e, r, F(1.0f));
  e *= float_of((n + 127) << 23);
  return x < -87.3f ? F(0.0f) : e;
}

// tanh(x), relative error under 3e-7.
INLINE F tanh(F x) {
  const F a = __builtin_elementwise_abs(x);
  const F z = x * x;
  F p = 0.00221836f;  // least squares over [0, 0.65]
  p = fma(p, z, F(-0.00827613f));
  p = fma(p, z, F(0.02174755f));
  p = fma(p, z, F(-0.05395656f));
  p = fma(p, z, F(0.13333292f));
  p = fma(p, z, F(-0.33333333f));
  const F small = fma(x * z, p, x);
  const F e = exp(__builtin_elementwise_min(a + a, F(20.0f)));
  const F large = 1.0f - 2.0f / (e + 1.0f);
  const F big = x < 0.0f ? -large : large;
  const F result = a < 0.625f ? small : big;
  return x != x ? x : result;
}

INLINE float largest(F v) {
#if STRIXHLO_AVX512
  auto eight = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
  const auto upper = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  eight = upper > eight ? upper : eight;
#elif STRIXHLO_AVX2
  const auto eight = v;
#endif
#if STRIXHLO_PLAIN
  auto four = v;
#else
  auto four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3);
  const auto above = __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  four = above > four ? above : four;
#endif
  const float a = four[0] > four[1] ? four[0] : four[1], b = four[2] > four[3] ? four[2] : four[3];
  return a > b ? a : b;
}
