// The index of each row's largest value, a workgroup a row: see custom_kernels/ops/argmax.py.
#pragma once

#include "device.h"

inline constexpr u32 ARGMAX_THREADS = 256, ARGMAX_WAVES = ARGMAX_THREADS / WAVE;

// The best so far: of equal values the lower index; `broken` when a value was NaN or +infinity.
struct Best {
  f32 value;
  u32 index;
  u32 broken;
};

DEVICE Best better(const Best a, const Best b) {
  const bool take_b = b.value > a.value || (b.value == a.value && b.index < a.index);
  return {take_b ? b.value : a.value, take_b ? b.index : a.index, a.broken | b.broken};
}

struct ArgmaxTiles {
  LOCAL_ARRAY static inline f32 value[ARGMAX_WAVES];
  LOCAL_ARRAY static inline u32 index[ARGMAX_WAVES];
  LOCAL_ARRAY static inline u32 broken[ARGMAX_WAVES];
};

DEVICE void argmax(const GLOBAL f32* x, GLOBAL i32* y, u32 n) {
  const GLOBAL f32* row = x + (u64)workgroup_id() * n;
  Best best = {-__builtin_inff(), ~0u, 0};
  _Pragma("unroll 4") for (u32 i = thread_id(); i < n; i += ARGMAX_THREADS) {
    const f32 value = row[i];
    if (value > best.value) best = {value, i, best.broken};
    if (!(value < __builtin_inff())) best.broken = 1;
  }
  UNROLL for (u32 mask = WAVE / 2; mask; mask /= 2) {
    const u32 other = lane_id() ^ mask;
    best = better(best, {shuffle(best.value, other), shuffle_bits(best.index, other), shuffle_bits(best.broken, other)});
  }
  const u32 wave = wave_id();
  if (lane_id() == 0) {
    ArgmaxTiles::value[wave] = best.value;
    ArgmaxTiles::index[wave] = best.index;
    ArgmaxTiles::broken[wave] = best.broken;
  }
  barrier();
  if (thread_id() != 0) return;
  for (u32 w = 1; w < ARGMAX_WAVES; w++) {
    best = better(best, {ArgmaxTiles::value[w], ArgmaxTiles::index[w], ArgmaxTiles::broken[w]});
  }
  y[workgroup_id()] = best.broken ? -1 : (i32)best.index;  // no index, ~0, is -1 too
}
