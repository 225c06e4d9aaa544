// A mixture of experts for few tokens, with 8-bit activations: what follows each matmul is done where its tile is made.
// Tiles are of 32 columns; an expert has at most 8 rows, since a token goes to it once. Included after moe_matmul.cpp.
#include "activation.h"
#include "int8_gemm.h"
#include "operands.h"

constexpr int64_t MOE_FEW = 8, MOE_MOST_PAIRS = 128;

// `count` <= 32 columns of y [rows, 32]: rows of x from sorted row s on (all the same one where `shared`) times `weight`.
template <class Fmt>
INLINE void moe_few(const Activations& x, bool shared, int64_t s, int64_t rows, const Parts& weight, float* y,
                    int64_t count) {
  for (int64_t r = 0; r < rows;) {
    const Activations from = shared ? x : row_of(x, s + r);
    float* to = y + r * RUN;
    const int64_t left = shared ? 1 : rows - r;
    if (left >= 8) {
      int8_gemv<Fmt, 8>(from, weight, to, count, RUN), r += 8;
    } else if (left >= 4) {
      int8_gemv<Fmt, 4>(from, weight, to, count, RUN), r += 4;
    } else if (left >= 2) {
      int8_gemv<Fmt, 2>(from, weight, to, count, RUN), r += 2;
    } else {
      int8_gemv<Fmt, 1>(from, weight, to, count, RUN), r += 1;
    }
  }
}

// What becomes of gate and up, float32 [P, N] and [E, N].
struct MoeActivate {
  const float *gate, *gate_bias, *up_bias;  // biases: null where there are none
  int64_t activation;
  float limit;
};

// h [P, N] = activation(gate, x * weight^T).
template <class Fmt>
INLINE void moe_up(const Activations& x, bool shared, const int32_t* offsets, const Parts& weight,
                   const MoeActivate& how, float* h, int64_t experts, int64_t N, int64_t tile_n, int64_t wg) {
  const int64_t end = min((wg + 1) * tile_n, N);
  alignas(64) float up[MOE_FEW][RUN];
  for (int64_t e = 0; e < experts; e++) {
    const int64_t s = offsets[e], rows = offsets[e + 1] - s;
    for (int64_t n = wg * tile_n; rows > 0 && n < end; n += RUN) {
      const int64_t count = min(end - n, RUN), bias = e * N + n;
      moe_few<Fmt>(x, shared, s, rows, row_of<Fmt>(weight, e * N + n, x.K), up[0], count);
      for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < count; i += W) {
          const int64_t at = (s + r) * N + n + i, here = min(count - i, W);
          F g = load_part(how.gate + at, here), u = load_part(&up[r][i], here);
          if (how.gate_bias) g += load_part(how.gate_bias + bias + i, here), u += load_part(how.up_bias + bias + i, here);
          store_part(h + at, activated(g, u, how.activation, how.limit), here);
        }
      }
    }
  }
}

// The experts of each token: of the pair (t, j) its sorted row, its weight.
struct MoeMix {
  const float *weights, *bias;  // bias [E, N]: null where there is none
  const int32_t *places, *expert;
  int64_t tokens, k;
};

// y[t] = sum over j of weights[t, j] * (x[places[t, j]] * weight^T + bias of its expert).
template <class Fmt>
INLINE void moe_down_few(const Activations& x, const int32_t* offsets, const Parts& weight, const MoeMix& mix, float* y,
                         int64_t experts, int64_t N, int64_t tile_n, int64_t wg) {
  const int64_t end = min((wg + 1) * tile_n, N);
  alignas(64) float down[MOE_MOST_PAIRS][RUN];
  for (int64_t n = wg * tile_n; n < end; n += RUN) {
    const int64_t count = min(end - n, RUN);
    for (int64_t e = 0; e < experts; e++) {
      const int64_t s = offsets[e], rows = offsets[e + 1] - s;
      if (rows > 0) moe_few<Fmt>(x, false, s, rows, row_of<Fmt>(weight, e * N + n, x.K), down[s], count);
    }
    for (int64_t t = 0; t < mix.tokens; t++) {
      for (int64_t i = 0; i < count; i += W) {
        const int64_t here = min(count - i, W);
        F total = 0;
        for (int64_t j = 0; j < mix.k; j++) {
          const int64_t s = mix.places[t * mix.k + j], e = mix.expert[s];
          if (e == experts) continue;
          F value = load_part(&down[s][i], here);
          if (mix.bias) value += load_part(mix.bias + e * N + n + i, here);
          total = fma(value, splat(mix.weights[t * mix.k + j]), total);
        }
        store_part(y + t * N + n + i, total, here);
      }
    }
  }
}

// The biases are read only where `biased`.
#define MOE_FEW_ROWS(name, Fmt, KIND)                                                                                   \
  KERNEL strixhlo_moe_up_##name(BUFFER(const int8_t, xq), BUFFER(const float, xs), BUFFER(const int32_t, xsum),         \
                                BUFFER(const int32_t, offsets), PARTS_OF_##KIND, BUFFER(const float, gate),             \
                                BUFFER(const float, gate_bias), BUFFER(const float, up_bias), BUFFER(float, h),         \
                                SCALARS_OF_##KIND int64_t activation, int64_t limit_bits, int64_t biased, MOE_SCALARS) { \
    const MoeActivate how = {AT(gate), biased ? AT(gate_bias) : nullptr, biased ? AT(up_bias) : nullptr, activation,    \
                             __builtin_bit_cast(float, int32_t(limit_bits))};                                           \
    moe_up<Fmt>({AT(xq), AT(xs), AT(xsum), K}, x_stride == 0, AT(offsets), PARTS_AT_##KIND, how, AT(h), experts, N,     \
                tile_n, wg);                                                                                            \
  }                                                                                                                     \
  KERNEL strixhlo_moe_down_##name(BUFFER(const int8_t, hq), BUFFER(const float, hs), BUFFER(const int32_t, hsum),       \
                                  BUFFER(const int32_t, offsets), PARTS_OF_##KIND, BUFFER(const float, weights),        \
                                  BUFFER(const int32_t, places), BUFFER(const int32_t, expert),                         \
                                  BUFFER(const float, bias), BUFFER(float, y), SCALARS_OF_##KIND int64_t tokens,        \
                                  int64_t k, int64_t biased, MOE_SCALARS) {                                             \
    (void)x_stride;                                                                                                     \
    const MoeMix mix = {AT(weights), biased ? AT(bias) : nullptr, AT(places), AT(expert), tokens, k};                   \
    moe_down_few<Fmt>({AT(hq), AT(hs), AT(hsum), K}, AT(offsets), PARTS_AT_##KIND, mix, AT(y), experts, N, tile_n, wg); \
  }
FOR_EACH_INTEGER_FORMAT(MOE_FEW_ROWS)
