// A mixture of experts for up to 8 tokens in two dispatches: each workgroup prepares what it needs of the input. Weights
// may be of any format; an expert has at most 8 rows, since a token goes to it once. Included after fused_matmul.cpp,
// whose weights, input and arithmetic these are.
#include "moe_route.h"

constexpr int64_t DOWN_SCRATCH = 32 * 1024;  // bytes for the rounded rows of one expert

// Sorted row s is the pair order[s], that is token order[s] / k; expert e has rows offsets[e] to offsets[e + 1].
// weights: of each pair; weighed: by what gate and up are multiplied, or null.
struct MoeOrder {
  const int32_t *order, *offsets;
  int64_t experts, k;
  const float *weights, *weighed;
};

// What each workgroup chooses for itself.
constexpr int64_t MOST_FEW_PAIRS = FEW * 16;
struct MoeChosen {
  int32_t order[MOST_FEW_PAIRS], expert[MOST_FEW_PAIRS], offsets[MOST_EXPERTS + 1];
  float weights[MOST_FEW_PAIRS];
};

// A weight as expert e has it; N: rows of one. Only nvfp4 has global scales.
INLINE void take_expert(FusedWeight& weight, int64_t e) {
  weight.first = e * weight.N;
  if (weight.format == FORMAT_nvfp4) weight.parts.global_scale += e;
}

INLINE FusedInput rows_from(const FusedInput& in, int64_t m, int64_t K) {
  return {in.x + m * K, in.rounded.q ? row_of(in.rounded, m) : in.rounded, in.row_store};
}

// Rows r and on of y, each times the weight of its pair.
INLINE void weigh(const MoeOrder& o, int64_t r, int64_t rows, float* y, int64_t stride, int64_t count) {
  for (int64_t m = 0; m < rows; m++) {
    const F by = splat(o.weighed[o.order[r + m]]);
    for (int64_t i = 0; i < count; i += W) {
      const int64_t here = min(count - i, W);
      store_part(y + m * stride + i, load_part(y + m * stride + i, here) * by, here);
    }
  }
}

// h [P, N] = activation(gate, up) for columns [n, end) of expert e. Tokens that follow each other are taken together.
static void moe_gate_up_rows(FusedWeight gate, FusedWeight up, const FusedInput& in, const MoeOrder& o,
                             const FusedShape& s, int64_t e, int64_t n, int64_t end, float* h) {
  const int64_t N = gate.N;
  take_expert(gate, e);
  take_expert(up, e);
  if (gate.bias) gate.bias += e * N, up.bias += e * N;
  up.y = h;
  alignas(64) float few[FEW * GATE_COLUMNS];
  for (; n < end; n += GATE_COLUMNS) {
    const int64_t count = min(end - n, GATE_COLUMNS);
    for (int64_t r = o.offsets[e], rows; r < o.offsets[e + 1]; r += rows) {
      const int64_t token = o.order[r] / o.k;
      rows = 1;
      while (r + rows < o.offsets[e + 1] && o.order[r + rows] / o.k == token + rows) rows++;
      const FusedInput from = rows_from(in, token, s.K);
      up.y = h + r * N;
      fused_rows(gate, from, rows, s.K, n, count, few, GATE_COLUMNS);
      fused_rows(up, from, rows, s.K, n, count, up.y + n, N);
      if (o.weighed) weigh(o, r, rows, few, GATE_COLUMNS, count), weigh(o, r, rows, up.y + n, N, count);
      FusedShape shape = s;
      shape.M = rows;
      join(gate, few, GATE_COLUMNS, up, shape, n, count);
    }
  }
}

// Tiles of 16 rows of the experts that have tokens, one expert after the other, shared out evenly.
static void moe_gate_up_few(const FusedWeight& gate, const FusedWeight& up, const FusedInput& in, const MoeOrder& o,
                            const FusedShape& s, float* h, int64_t workgroups, int64_t wg) {
  const int64_t tiles = (gate.N + TILE_ROWS - 1) / TILE_ROWS;
  int64_t all = 0;
  for (int64_t e = 0; e < o.experts; e++) all += o.offsets[e + 1] > o.offsets[e] ? tiles : 0;
  int64_t from = wg * all / workgroups, to = (wg + 1) * all / workgroups;  // from the next expert's first tile
  for (int64_t e = 0; e < o.experts && to > 0; e++) {
    if (o.offsets[e + 1] == o.offsets[e]) continue;
    const int64_t n = max(from, 0) * TILE_ROWS, end = min(min(to, tiles) * TILE_ROWS, gate.N);
    if (n < end) moe_gate_up_rows(gate, up, in, o, s, e, n, end, h);
    from -= tiles, to -= tiles;
  }
}

// sum [tokens, 64] += weight of the pair * (h * down^T + bias) for columns [n, n + count) of expert e.
static void moe_add_expert(FusedWeight down, const float* h, const MoeOrder& o, int64_t K, int64_t e, int64_t n,
                           int64_t count, float* sum, RowStore& row_store) {
  alignas(64) uint8_t scratch[DOWN_SCRATCH];
  alignas(64) float few[FEW * GATE_COLUMNS];
  const int64_t N = down.N, row_bytes = K + K / RUN * 4 + K / HALF_RUN * 4;
  const int64_t at_once = down.integer ? min(DOWN_SCRATCH / row_bytes, FEW) : FEW;
  take_expert(down, e);
  for (int64_t r = o.offsets[e], rows; r < o.offsets[e + 1]; r += rows) {
    rows = min(o.offsets[e + 1] - r, at_once);
    row_store.forget();  // other rows come to lie where the last ones did
    const FusedInput in = prepared(h + r * K, rows, K, nullptr, nullptr, false, down.integer, scratch, row_store);
    fused_rows(down, in, rows, K, n, count, few, GATE_COLUMNS);
    for (int64_t m = 0; m < rows; m++) {
      const int64_t pair = o.order[r + m];
      float* to = sum + pair / o.k * GATE_COLUMNS;
      for (int64_t i = 0; i < count; i += W) {
        const int64_t here = min(count - i, W);
        F value = load_part(few + m * GATE_COLUMNS + i, here);
        if (down.bias) value += load_part(down.bias + e * N + n + i, here);
        store_part(to + i, fma(value, splat(o.weights[pair]), load_part(to + i, here)), here);
      }
    }
  }
}

// What a shared expert gives, x [tokens, N] or null, times `scale` and the sigmoid of a column of logits.
struct GatedShared {
  const float *x, *logits;
  int64_t columns, column;
  float scale;

  INLINE_MEMBER F gate(int64_t token) const { return logistic(splat(logits[token * columns + column])) * scale; }
};

// y [tokens, N] = the weighted sum over each token's experts, in their order; columns wg * tile * 16 and on.
static void moe_down_few(const FusedWeight& down, const float* h, const MoeOrder& o, int64_t tokens, const FusedShape& s,
                         const GatedShared& shared, float* y, int64_t wg) {
  RowStore row_store;
  const int64_t N = down.N, end = min((wg + 1) * s.tile * TILE_ROWS, N);
  for (int64_t n = wg * s.tile * TILE_ROWS; n < end; n += GATE_COLUMNS) {
    const int64_t count = min(end - n, GATE_COLUMNS);
    alignas(64) float sum[FEW * GATE_COLUMNS];
    for (int64_t i = 0; i < FEW * GATE_COLUMNS; i += W) store(sum + i, F(0.0f));
    for (int64_t e = 0; e < o.experts; e++) {
      if (o.offsets[e + 1] > o.offsets[e]) moe_add_expert(down, h, o, s.K, e, n, count, sum, row_store);
    }
    for (int64_t t = 0; t < tokens; t++) {
      for (int64_t i = 0; i < count; i += W) {
        const int64_t here = min(count - i, W), at = t * N + n + i;
        F v = load_part(sum + t * GATE_COLUMNS + i, here);
        if (s.residual) v = load_part(s.residual + at, here) + v * s.scale;
        if (shared.x) v = fma(load_part(shared.x + at, here), shared.gate(t), v);
        store_part(y + at, v, here);
      }
    }
  }
}

constexpr int64_t WEIGHED = 256;  // among FusedFlags
#define TO_INT(name) reinterpret_cast<const int32_t*>(AT(name))

// One weight holds the rows of all experts; N: of one of them. h float32 [tokens * k, N].
#define GATE_UP_SCALARS                                                                                              \
  int64_t M, int64_t K, int64_t experts, int64_t k, int64_t flags, int64_t epsilon_bits, int64_t offset_bits,        \
      int64_t activation, int64_t limit_bits, int64_t workgroups
#define GATE_UP_BODY(ORDER)                                                                                          \
  const FusedWeight gate = WEIGHT(0), up = WEIGHT(1);                                                                \
  const MoeOrder order_of = ORDER;                                                                                   \
  const FusedNorm rms = {{TO_FLOAT(norm), BITS_TO_FLOAT(epsilon_bits), BITS_TO_FLOAT(offset_bits)}, false, nullptr}; \
  const FusedShape shape = {M, K, 0, activation, BITS_TO_FLOAT(limit_bits), 1.0f, nullptr};                          \
  RowStore row_store;                                                                                                 \
  const auto run = [&](const FusedInput& in) {                                                                       \
    moe_gate_up_few(gate, up, in, order_of, shape, TO_RESULT(h), workgroups, wg);                                    \
  };                                                                                                                 \
  on_prepared(TO_FLOAT(x), M, K, nullptr, flags & NORMED ? &rms : nullptr, !gate.integer || !up.integer,              \
              gate.integer || up.integer, row_store, run);

KERNEL strixhlo_moe_gate_up_few(BYTES(x), BYTES(norm), BYTES(order), BYTES(offsets), BYTES(weighed), WEIGHT_BUFFERS(0),
                                WEIGHT_BUFFERS(1), RESULT(h), GATE_UP_SCALARS, WEIGHT_SCALARS(0), WEIGHT_SCALARS(1),
                                int64_t wg) {
  GATE_UP_BODY((MoeOrder{TO_INT(order), TO_INT(offsets), experts, k, nullptr, flags & WEIGHED ? TO_FLOAT(weighed) : nullptr}))
}

// ... where `moe_route` has not run. chosen int32 [3, tokens * k]: experts and pairs of sorted rows, and the bits of each
// pair's weight, 1 where gate and up have got it.
KERNEL strixhlo_moe_gate_up_chosen(BYTES(logits), BYTES(positions), BYTES(x), BYTES(norm), BYTES(correction),
                                   WEIGHT_BUFFERS(0), WEIGHT_BUFFERS(1), RESULT(h), RESULT(chosen), GATE_UP_SCALARS,
                                   ROUTE_SCALARS, WEIGHT_SCALARS(0), WEIGHT_SCALARS(1), int64_t wg) {
  MoeChosen of;
  int32_t ids[MOST_FEW_PAIRS];
  route_rows(TO_FLOAT(logits), TO_INT(positions), TO_FLOAT(correction), ROUTE_CHOICE, M, columns, ids, of.weights);
  sort_pairs(ids, M * k, experts, of.offsets, [&](int32_t place, int64_t pair) {
    of.order[place] = int32_t(pair);
    of.expert[place] = ids[pair];
  });
  int32_t* to = reinterpret_cast<int32_t*>(TO_RESULT(chosen));
  for (int64_t p = 0; wg == 0 && p < M * k; p++) {
    to[p] = of.expert[p];
    to[M * k + p] = of.order[p];
    to[2 * M * k + p] = __builtin_bit_cast(int32_t, flags & WEIGHED ? 1.0f : of.weights[p]);
  }
  GATE_UP_BODY((MoeOrder{of.order, of.offsets, experts, k, nullptr, flags & WEIGHED ? of.weights : nullptr}))
}

// h float32 [tokens * k, K], weights float32 [tokens, k] -> y float32 [tokens, N].
KERNEL strixhlo_moe_down_few(BYTES(h), BYTES(weights), BYTES(order), BYTES(offsets), BYTES(residual), WEIGHT_BUFFERS(0),
                             RESULT(y), int64_t M, int64_t K, int64_t experts, int64_t k, int64_t flags,
                             int64_t scale_bits, int64_t tile, WEIGHT_SCALARS(0), int64_t wg) {
  const MoeOrder order_of = {TO_INT(order), TO_INT(offsets), experts, k, TO_FLOAT(weights), nullptr};
  const FusedShape shape = {M, K, tile, -1, 0.0f, BITS_TO_FLOAT(scale_bits), flags & ADDED ? TO_FLOAT(residual) : nullptr};
  moe_down_few(WEIGHT(0), TO_FLOAT(h), order_of, M, shape, {}, TO_RESULT(y), wg);
}

// ... after strixhlo_moe_gate_up_chosen, with a shared expert that is gated by a column of logits, where `shared_columns`.
KERNEL strixhlo_moe_down_chosen(BYTES(h), BYTES(chosen), BYTES(residual), BYTES(shared), BYTES(logits), WEIGHT_BUFFERS(0),
                                RESULT(y), int64_t M, int64_t K, int64_t experts, int64_t k, int64_t flags,
                                int64_t scale_bits, int64_t tile, int64_t shared_columns, int64_t shared_column,
                                int64_t shared_scale_bits, WEIGHT_SCALARS(0), int64_t wg) {
  const int32_t *expert = TO_INT(chosen), *order = expert + M * k;
  int32_t offsets[MOST_EXPERTS + 1];
  for (int64_t e = 0, row = 0; e <= experts; e++) {
    while (row < M * k && expert[row] < e) row++;
    offsets[e] = int32_t(row);
  }
  const MoeOrder order_of = {order, offsets, experts, k, reinterpret_cast<const float*>(order + M * k), nullptr};
  const FusedShape shape = {M, K, tile, -1, 0.0f, BITS_TO_FLOAT(scale_bits), flags & ADDED ? TO_FLOAT(residual) : nullptr};
  const GatedShared gated = {shared_columns ? TO_FLOAT(shared) : nullptr, TO_FLOAT(logits), shared_columns, shared_column,
                             BITS_TO_FLOAT(shared_scale_bits)};
  moe_down_few(WEIGHT(0), TO_FLOAT(h), order_of, M, shape, gated, TO_RESULT(y), wg);
}
