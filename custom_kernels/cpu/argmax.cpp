// The index of each row's largest value: see custom_kernels/ops/argmax.py.
#include "export.h"

// x float32 [rows, n], y int32 [rows]. One workgroup: one row.
KERNEL strixhlo_argmax(BUFFER(const float, x), BUFFER(int32_t, y), int64_t n, int64_t wg) {
  const float* row = AT(x) + wg * n;
  F best = -__builtin_inff();
  I at = 0, bad = 0;
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    const F v = load<F>(row + i);
    const I higher = v > best;
    best = higher ? v : best;
    at = higher ? lane_index() + int32_t(i) : at;
    bad |= ~(v < F(__builtin_inff()));
  }
  float top = -__builtin_inff();
  int32_t index = -1;
  bool broken = false;
  for (int lane = 0; lane < W; lane++) {
    broken |= bad[lane] != 0;
    if (best[lane] > top || (best[lane] == top && index >= 0 && at[lane] < index)) {
      top = best[lane];
      index = at[lane];
    }
  }
  for (; i < n; i++) {
    broken |= !(row[i] < __builtin_inff());
    if (row[i] > top) {
      top = row[i];
      index = int32_t(i);
    }
  }
  AT(y)[wg] = broken ? -1 : index;
}
