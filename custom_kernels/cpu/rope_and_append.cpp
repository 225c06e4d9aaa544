// Norms, rotation and cache rows of new tokens: see custom_kernels/ops/rope_and_append.py for what it computes.
#include "e4m3.h"
#include "export.h"
#include "half.h"

constexpr int64_t MOST_HEAD_DIM = 1024;
enum Norm : int64_t { NO_NORM, RMS_NORM, LAYER_NORM, WHOLE_NORM };

struct AppendShape {
  int64_t layer, pool_rows, tokens, sequences, blocks, block_size, heads, kv_heads, head_dim, fused;
  int64_t half, context, interleaved;  // half: pairs that are rotated, 0 for none; context: rows of the table
  int64_t norm, weight_stride;         // from one head's weight to the next one's
  float epsilon, offset;
  int64_t norm_values, scale_context;  // scale_context: of the query scale, 0 for none
};

INLINE void write(float* to, const float* from, int64_t n) {
  for (int64_t i = 0; i < n; i++) to[i] = from[i];
}
INLINE void store_narrow(uint16_t* to, F values) { store_half(to, values); }
INLINE void store_narrow(Bfloat* to, F values) { store_bfloat(to, values); }
INLINE void store_narrow(uint8_t* to, F values) { store(to, e4m3_of_floats(values)); }

// float16 and bfloat16 round to nearest even, overflow to infinity; E4M3 (fp8) rounds to nearest even, overflow to 448.
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

INLINE float sum_of(const float* x, int64_t n) {
  F total = 0.0f;
  int64_t i = 0;
  for (; i + W <= n; i += W) total += load<F>(x + i);
  if (i < n) total += load_part(x + i, n - i);
  return sum(total);
}
// Of the squares of x - mean.
INLINE float sum_of_squares(const float* x, int64_t n, float mean) {
  F total = 0.0f;
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    const F d = load<F>(x + i) - mean;
    total = fma(d, d, total);
  }
  if (i < n) {
    const F d = lane_index() < I(int32_t(n - i)) ? load_part(x + i, n - i) - mean : F(0.0f);
    total = fma(d, d, total);
  }
  return sum(total);
}

// One over the root mean square of n values.
INLINE float inverse_rms(const AppendShape& s, const float* x, int64_t n, float mean = 0.0f) {
  return 1.0f / __builtin_sqrtf(sum_of_squares(x, n, mean) / float(n) + s.epsilon);
}

// A head x [n] -> y, normalized; weight: nullptr for none; whole: the scale of a norm of all heads together.
INLINE void normalize(const AppendShape& s, int64_t norm, const float* x, const float* weight, float whole, float* y) {
  const int64_t n = s.head_dim;
  const float mean = norm == LAYER_NORM ? sum_of(x, n) / float(n) : 0.0f;
  const float scale = norm == WHOLE_NORM ? whole : inverse_rms(s, x, n, mean);
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    const F v = (load<F>(x + i) - mean) * scale;
    store(y + i, weight ? v * (load<F>(weight + i) + s.offset) : v);
  }
  for (; i < n; i++) y[i] = (x[i] - mean) * scale * (weight ? weight[i] + s.offset : 1.0f);
}

// The pairs of y by a row of the table: cos [half], sin [half], and what is not read here.
INLINE void rotate(const AppendShape& s, float* __restrict y, const float* __restrict angles) {
  const float *cos = angles, *sin = angles + s.half;
  int64_t i = 0;
  if (s.interleaved) {
    for (; i < s.half; i++) {
      const float a = y[2 * i], b = y[2 * i + 1];
      y[2 * i] = a * cos[i] - b * sin[i];
      y[2 * i + 1] = a * sin[i] + b * cos[i];
    }
    return;
  }
  for (; i + W <= s.half; i += W) {
    const F a = load<F>(y + i), b = load<F>(y + s.half + i), c = load<F>(cos + i), d = load<F>(sin + i);
    store(y + i, a * c - b * d);
    store(y + s.half + i, a * d + b * c);
  }
  for (; i < s.half; i++) {
    const float a = y[i], b = y[s.half + i];
    y[i] = a * cos[i] - b * sin[i];
    y[s.half + i] = a * sin[i] + b * cos[i];
  }
}

INLINE void prepare(const AppendShape& s, const float* x, const float* weight, float whole, const float* angles,
                    float* y) {
  if (s.norm != NO_NORM)
    normalize(s, s.norm, x, weight, whole, y);
  else
    write(y, x, s.head_dim);
  if (s.half) rotate(s, y, angles);
}

// The row of a token in the pools, -1 for none.
INLINE int64_t row_of_token(const AppendShape& s, const int32_t* block_table, int64_t t, int64_t position) {
  const int64_t block = position / s.block_size, sequence = t / (s.tokens / s.sequences);
  if (block >= s.blocks) return -1;
  const int64_t row = int64_t(block_table[sequence * s.blocks + block]) * s.block_size + position % s.block_size;
  return row < s.pool_rows ? row : -1;
}

template <class T>
INLINE void rope_and_append(const AppendShape& s, T* k_pool, T* v_pool, const int32_t* block_table,
                            const int32_t* positions, const float* q, const float* k, const float* v,
                            const float* table, const float* q_weight, const float* k_weight, const float* query_scale,
                            float* q_out, int64_t first, int64_t end) {
  const int64_t d = s.head_dim, q_width = s.heads * d, width = s.kv_heads * d, all = q_width + 2 * width;
  const int64_t q_stride = s.fused ? all : q_width, stride = s.fused ? all : width;
  if (s.fused) {
    k += q_width;
    v += q_width + width;
  }
  float head[MOST_HEAD_DIM];
  for (int64_t t = first; t < end; t++) {
    const int64_t position = positions[t];
    float* out = q_out + t * q_width;
    if (position < 0) {
      for (int64_t i = 0; i < q_width; i++) out[i] = 0.0f;
      continue;
    }
    const float* angles = s.half ? table + min(position, s.context - 1) * 4 * s.half : nullptr;
    const float whole_q = s.norm == WHOLE_NORM ? inverse_rms(s, q + t * q_stride, q_width) : 0.0f;
    for (int64_t h = 0; h < s.heads; h++)
      prepare(s, q + t * q_stride + h * d, q_weight + h * s.weight_stride, whole_q, angles, out + h * d);
    if (s.scale_context) {
      const float factor = query_scale[min(position, s.scale_context - 1)];
      for (int64_t i = 0; i < q_width; i++) out[i] *= factor;
    }
    const int64_t row = row_of_token(s, block_table, t, position);
    if (row < 0) continue;
    const int64_t at = (s.layer * s.pool_rows + row) * width;
    const float whole_k = s.norm == WHOLE_NORM ? inverse_rms(s, k + t * stride, width) : 0.0f;
    for (int64_t h = 0; h < s.kv_heads; h++) {
      prepare(s, k + t * stride + h * d, k_weight + h * s.weight_stride, whole_k, angles, head);
      write(k_pool + at + h * d, head, d);
    }
    if (!s.norm_values) {
      write(v_pool + at, v + t * stride, width);
      continue;
    }
    for (int64_t h = 0; h < s.kv_heads; h++) {
      normalize(s, RMS_NORM, v + t * stride + h * d, nullptr, 0.0f, head);
      write(v_pool + at + h * d, head, d);
    }
  }
}

// One workgroup: tokens wg * token_tile and on. Tokens of different rows in the pools do not meet.
#define ROPE_AND_APPEND(name, T)                                                                                      \
  KERNEL strixhlo_rope_and_append_##name(                                                                             \
      BUFFER(T, k_pool), BUFFER(T, v_pool), BUFFER(const int32_t, block_table), BUFFER(const int32_t, positions),     \
      BUFFER(const float, q), BUFFER(const float, k), BUFFER(const float, v), BUFFER(const float, table),             \
      BUFFER(const float, q_weight), BUFFER(const float, k_weight), BUFFER(const float, query_scale),                 \
      BUFFER(float, q_out), int64_t layer, int64_t pool_rows, int64_t tokens, int64_t sequences, int64_t blocks,      \
      int64_t block_size, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t fused, int64_t half,             \
      int64_t context, int64_t interleaved, int64_t norm, int64_t weight_stride, int64_t epsilon, int64_t offset,     \
      int64_t norm_values, int64_t scale_context, int64_t token_tile, int64_t wg) {                                   \
    const AppendShape shape = {layer,       pool_rows,                                                                \
                               tokens,      sequences,                                                                \
                               blocks,      block_size,                                                               \
                               heads,       kv_heads,                                                                 \
                               head_dim,    fused,                                                                    \
                               half,        context,                                                                  \
                               interleaved, norm,                                                                     \
                               weight_stride, __builtin_bit_cast(float, int32_t(epsilon)),                            \
                               __builtin_bit_cast(float, int32_t(offset)), norm_values,                               \
                               scale_context};                                                                        \
    rope_and_append(shape, AT(k_pool), AT(v_pool), AT(block_table), AT(positions), AT(q), AT(k), AT(v), AT(table),    \
                    AT(q_weight), AT(k_weight), AT(query_scale), AT(q_out), wg * token_tile,                          \
                    min((wg + 1) * token_tile, tokens));                                                              \
  }
ROPE_AND_APPEND(fp8kv, uint8_t)
ROPE_AND_APPEND(f16kv, uint16_t)
ROPE_AND_APPEND(bf16kv, Bfloat)
ROPE_AND_APPEND(f32kv, float)
