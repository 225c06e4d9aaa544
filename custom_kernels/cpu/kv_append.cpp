// Keys and values of new tokens into the rows of the KV pools that the host chose.
#include "e4m3.h"
#include "export.h"
#include "half.h"

INLINE void write(float* to, const float* from, int64_t n) {
  for (int64_t i = 0; i < n; i++) to[i] = from[i];
}
INLINE void store_narrow(uint16_t* to, F values) { store_half(to, values); }
INLINE void store_narrow(uint8_t* to, F values) { store(to, e4m3_of_floats(values)); }

template <class T>
INLINE void write(T* to, const float* from, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store_narrow(to + i, load<F>(from + i));
  if (i < n) {
    T last[W];
    store_narrow(last, load_part(from + i, n - i));
    for (int64_t j = 0; i + j < n; j++) to[i + j] = last[j];
  }
}

// Pools [layers, pool_rows, width] are updated in place; k, v float32 [T, width]; rows int32 [T], distinct where they
// are in the pool: a negative one, or one past the pool, is dropped. float16 rounds to nearest even, overflow to
// infinity; E4M3 (fp8) rounds to nearest even, overflow to 448. Tokens: wg * token_tile and on.
template <class T>
INLINE void kv_append(T* k_pool, T* v_pool, const float* k, const float* v, const int32_t* rows, int64_t layer,
                      int64_t pool_rows, int64_t width, int64_t first, int64_t end) {
  for (int64_t t = first; t < end; t++) {
    const int64_t row = rows[t];
    if (row < 0 || row >= pool_rows) continue;
    const int64_t at = (layer * pool_rows + row) * width;
    write(k_pool + at, k + t * width, width);
    write(v_pool + at, v + t * width, width);
  }
}

#define KV_APPEND(name, T)                                                                                             \
  KERNEL strixhlo_kv_append_##name(BUFFER(T, k_pool), BUFFER(T, v_pool), BUFFER(const float, k),                       \
                                   BUFFER(const float, v), BUFFER(const int32_t, rows), int64_t layer,                 \
                                   int64_t pool_rows, int64_t width, int64_t tokens, int64_t token_tile, int64_t wg) { \
    kv_append(AT(k_pool), AT(v_pool), AT(k), AT(v), AT(rows), layer, pool_rows, width, wg * token_tile,                \
              min((wg + 1) * token_tile, tokens));                                                                     \
  }
KV_APPEND(fp8kv, uint8_t)
KV_APPEND(f16kv, uint16_t)
KV_APPEND(f32kv, float)
