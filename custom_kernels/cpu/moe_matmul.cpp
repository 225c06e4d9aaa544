// Matmuls of a mixture of experts over rows that are sorted by expert: see ops/moe_matmul.py.
#include "activation.h"
#include "f32_matmul.h"
#include "operands.h"

template <class Fmt>
INLINE QuantizedWeight<Fmt> weight_of(const QuantizedWeight<Fmt>& weight, int64_t e) {
  return {of_expert<Fmt>(weight.parts, e), weight.K};
}
template <class Type>
INLINE DenseWeight<Type> weight_of(const DenseWeight<Type>& weight, int64_t) {
  return weight;
}

// Columns [n, n + count) of y float32 [P, N]: sorted row s of x times expert e's rows of the weight, for the
// experts that have rows.
template <class Weight>
INLINE void moe_rows(const float* x, const int32_t* offsets, const Weight& all, float* y,
                     int64_t experts, int64_t N, int64_t tile_n, int64_t wg, bool use_tiles) {
  const int64_t n = wg * tile_n, count = min(tile_n, N - n);
  if (count <= 0) return;
  RowStore store;
  for (int64_t e = 0; e < experts; e++) {
    const int64_t end = offsets[e + 1], row = e * N + n;
    const Weight weight = weight_of(all, e);
    for (int64_t s = offsets[e]; s < end;) {
      const float* from = x + s * weight.K;
      float* to = y + s * N + n;
      const int64_t left = end - s;
      if (left >= 16) {
        f32_gemm(from, left, weight, row, to, count, N, use_tiles), s += left;
      } else if (left >= 4) {
        f32_gemv<Weight, 4>(from, weight, row, to, count, N, store), s += 4;
      } else if (left >= 2) {
        f32_gemv<Weight, 2>(from, weight, row, to, count, N, store), s += 2;
      } else {
        f32_gemv<Weight, 1>(from, weight, row, to, count, N, store), s += 1;
      }
    }
  }
}

#define MOE_SCALARS int64_t K, int64_t experts, int64_t N, int64_t tile_n, int64_t wg
#define MOE_QUANTIZED(name, Fmt, KIND)                                                                                 \
  KERNEL strixhlo_moe_rows_##name(TILES_OPERAND BUFFER(const float, x), BUFFER(const int32_t, offsets), PARTS_OF_##KIND,              \
                                  BUFFER(float, y), SCALARS_OF_##KIND MOE_SCALARS) {                                   \
    moe_rows(AT(x), AT(offsets), QuantizedWeight<Fmt>{PARTS_AT_##KIND, K}, AT(y), experts, N, tile_n, wg, \
             MAY_USE_TILES);    \
  }
FOR_EACH_FORMAT(MOE_QUANTIZED)

#define MOE_DENSE(name, Type)                                                                                          \
  KERNEL strixhlo_moe_rows_##name(TILES_OPERAND BUFFER(const float, x), BUFFER(const int32_t, offsets),                              \
                                  BUFFER(const Type::Element, w), BUFFER(float, y), MOE_SCALARS) {                     \
    moe_rows(AT(x), AT(offsets), DenseWeight<Type>{AT(w), K}, AT(y), experts, N, tile_n, wg, \
             MAY_USE_TILES);                \
  }
MOE_DENSE(f32, Float32)
MOE_DENSE(f16, Float16)
MOE_DENSE(bf16, Bfloat16)

// sorted[s] = x[order[s] / k], where `weighed` times the weight of its pair: rows wg * row_tile and on, of those that have an expert.
KERNEL strixhlo_moe_gather(BUFFER(const float, x), BUFFER(const int32_t, order), BUFFER(const int32_t, offsets),
                           BUFFER(const float, weights), BUFFER(float, sorted), int64_t k, int64_t K, int64_t experts,
                           int64_t weighed, int64_t row_tile, int64_t wg) {
  const int64_t end = min((wg + 1) * row_tile, AT(offsets)[experts]);
  for (int64_t s = wg * row_tile; s < end; s++) {
    const float* from = AT(x) + AT(order)[s] / k * K;
    float* to = AT(sorted) + s * K;
    const float by = weighed ? AT(weights)[AT(order)[s]] : 1.0f;
    for (int64_t i = 0; i < K; i++) to[i] = from[i] * by;
  }
}

// h[s] = activation(gate[s] + bias, up[s] + bias), rows wg * row_tile and on, of those that have an expert. The
// biases are read only where `biased`.
KERNEL strixhlo_moe_activate(BUFFER(const float, gate), BUFFER(const float, up), BUFFER(const int32_t, expert),
                             BUFFER(const int32_t, offsets), BUFFER(const float, gate_bias),
                             BUFFER(const float, up_bias), BUFFER(float, h), int64_t experts, int64_t N,
                             int64_t activation, int64_t limit_bits, int64_t biased, int64_t row_tile, int64_t wg) {
  const float limit = __builtin_bit_cast(float, int32_t(limit_bits));
  const int64_t end = min((wg + 1) * row_tile, AT(offsets)[experts]);
  for (int64_t s = wg * row_tile; s < end; s++) {
    const int64_t bias = AT(expert)[s] * N;
    for (int64_t i = 0; i < N; i += W) {
      const int64_t here = min(N - i, W);
      F g = load_part(AT(gate) + s * N + i, here), u = load_part(AT(up) + s * N + i, here);
      if (biased) g += load_part(AT(gate_bias) + bias + i, here), u += load_part(AT(up_bias) + bias + i, here);
      store_part(AT(h) + s * N + i, activated(g, u, activation, limit), here);
    }
  }
}

// y[t] = sum over j of weights[t, j] * (down[places[t, j]] + bias of its expert), where `added` times scale and on top of
// the residual; tokens wg * row_tile and on.
KERNEL strixhlo_moe_combine(BUFFER(const float, down), BUFFER(const float, weights), BUFFER(const int32_t, places),
                            BUFFER(const int32_t, expert), BUFFER(const float, bias), BUFFER(const float, residual),
                            BUFFER(float, y), int64_t tokens, int64_t k, int64_t experts, int64_t N, int64_t biased,
                            int64_t added, int64_t scale_bits, int64_t row_tile, int64_t wg) {
  const F scale = splat(BITS_TO_FLOAT(scale_bits));
  for (int64_t t = wg * row_tile; t < min((wg + 1) * row_tile, tokens); t++) {
    for (int64_t i = 0; i < N; i += W) {
      const int64_t here = min(N - i, W);
      F total = 0;
      for (int64_t j = 0; j < k; j++) {
        const int64_t s = AT(places)[t * k + j], e = AT(expert)[s];
        if (e == experts) continue;
        F value = load_part(AT(down) + s * N + i, here);
        if (biased) value += load_part(AT(bias) + e * N + i, here);
        total = fma(value, splat(AT(weights)[t * k + j]), total);
      }
      if (added) total = load_part(AT(residual) + t * N + i, here) + total * scale;
      store_part(AT(y) + t * N + i, total, here);
    }
  }
}
