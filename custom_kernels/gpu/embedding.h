// Rows of a weight of any format: see custom_kernels/ops/embedding.py. A thread decodes one run of one token's row.
#pragma once

#include "weights.h"

inline constexpr u32 EMBEDDING_THREADS = 128;

// tokens [t] -> y [t, k]; the weight has n rows.
template <class W, class X>
DEVICE void embedding(const GLOBAL i32* tokens, W weight, GLOBAL X* y, u32 t, u32 n, u32 k, f32 scale) {
  weight.runs = k / W::RUN;
  const u32 item = workgroup_id() * EMBEDDING_THREADS + thread_id();
  if (item >= t * weight.runs) return;
  const u32 token = item / weight.runs, run = item % weight.runs;
  const i32 row = tokens[token];
  const typename W::Run stored = weight.load(row < 0 ? 0 : smaller((u32)row, n - 1), run);
  UNROLL for (u32 i = 0; i < W::RUN / 4; i++) {
    f32 w[4];
    decode<W>(stored, i, w);
    const f32x4 four = {w[0], w[1], w[2], w[3]};
    store4(y, ((u64)token * k + run * W::RUN) / 4 + W::place(i), four * scale);
  }
}
