// Any number of rows of 8-bit activations times rows of a quantized weight.
#pragma once
#include "int8_gemm.h"

// y[m * N + i] = row m of x times weight row n + i, i < count. K: a multiple of 32, of 256 for two-level formats.
template <class Fmt>
static void int8_matmul(const Activations& x, int64_t M, const Parts& weight, int64_t n, int64_t count, float* y,
                        int64_t N, RowStore& store, bool use_tiles = false) {
  if (count <= 0) return;
  const Parts rows = row_of<Fmt>(weight, n, x.K);
  if (M >= 16) return int8_gemm<Fmt>(x, M, rows, y, count, N, use_tiles);
  for (int64_t m = 0; m < M;) {
    const Activations xm = row_of(x, m);
    float* to = y + m * N;
    const int64_t left = M - m;
    if (left >= 4) {
      int8_gemv<Fmt, 4>(xm, rows, to, count, N, store), m += 4;
    } else if (left >= 2) {
      int8_gemv<Fmt, 2>(xm, rows, to, count, N, store), m += 2;
    } else {
      int8_gemv<Fmt, 1>(xm, rows, to, count, N, store), m += 1;
    }
  }
}
