// The index of each row's largest value, a workgroup a row: see custom_kernels/ops/argmax.py.
#pragma once

#include "device.h"

inline constexpr u32 ARGMAX_THREADS = 512, ARGMAX_WAVES = ARGMAX_THREADS / WAVE;
inline constexpr u32 ARGMAX_LOADS = 16;  // of a thread under way: one workgroup waits for memory most of its time

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

// A thread's next values of a row. WHOLE: all are in it, else those from `first` on that are.
template <bool WHOLE>
DEVICE void take_values(const GLOBAL f32* row, u32 first, u32 n, Best& best) {
  f32 values[ARGMAX_LOADS];
  const GLOBAL f32* from = row + first;
  UNROLL for (u32 j = 0; j < ARGMAX_LOADS; j++) {
    const u32 ahead = j * ARGMAX_THREADS;
    values[j] = from[WHOLE || first + ahead < n ? ahead : 0];  // again: it is not larger than itself
  }
  UNROLL for (u32 j = 0; j < ARGMAX_LOADS; j++) {
    if (values[j] > best.value) best = {values[j], first + j * ARGMAX_THREADS, best.broken};
    if (!(values[j] < __builtin_inff())) best.broken = 1;
  }
}

DEVICE void argmax(const GLOBAL f32* x, GLOBAL i32* y, u32 n) {
  const GLOBAL f32* row = x + (u64)workgroup_id() * n;
  Best best = {-__builtin_inff(), ~0u, 0};
  constexpr u32 STEP = ARGMAX_LOADS * ARGMAX_THREADS;
  const u32 whole = n / STEP * STEP;
  for (u32 first = thread_id(); first < whole; first += STEP) take_values<true>(row, first, n, best);
  if (whole + thread_id() < n) take_values<false>(row, whole + thread_id(), n, best);
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
