// Rounds new keys and values to the pool's type and writes them to their pool rows; a row outside of the pool is dropped.
#pragma once

#include "cache.h"

inline constexpr u32 APPEND_THREADS = 256;

template <class T>
DEVICE void kv_append(GLOBAL T* k_pool, GLOBAL T* v_pool, const GLOBAL f32* k, const GLOBAL f32* v, const GLOBAL i32* rows,
                      u32 layer, u32 pool_rows, u32 width, u32 tokens) {
  const u32 element = workgroup_id() * APPEND_THREADS + thread_id();
  if (element >= tokens * width) return;
  const u32 row = (u32)rows[element / width];  // a negative row becomes a large one
  if (row >= pool_rows) return;
  const u64 to = ((u64)layer * pool_rows + row) * width + element % width;
  k_pool[to] = cache_element<T>(k[element]);
  v_pool[to] = cache_element<T>(v[element]);
}
