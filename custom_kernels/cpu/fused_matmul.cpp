// One to three matmuls of one input with what stands before and after them: see ops/fused_matmul.py. The weights may be
// of any formats. With few rows of activations each workgroup normalizes and rounds the input itself.
#include "activation.h"
#include "f32_matmul.h"
#include "int8_matmul.h"
#include "operands.h"
#include "quantize.h"
#include "rms_norm.h"

// In the order of NAMES in fused_launches.py.
#define FORMAT_OF(name, Fmt, KIND) FORMAT_##name,
enum StoredFormat { FOR_EACH_FORMAT(FORMAT_OF) FORMAT_f32, FORMAT_f16, FORMAT_bf16 };

constexpr int64_t SCRATCH = 64 * 1024;  // bytes for the input, as in fused_launches.py, on a stack of WORKER_STACK (runtime/device.py)
constexpr int64_t TILE_ROWS = 16;        // weight rows that workgroups share out
constexpr int64_t FEW = 8, GATE_COLUMNS = 64;

// Rows [first, first + N) of a stored weight: what is computed with them goes to y float32, rows `stride` apart.
struct FusedWeight {
  int32_t format;
  bool integer;  // takes 8-bit activations
  Parts parts;
  int64_t first, N;
  const float* bias;
  float* y = nullptr;
  int64_t stride = 0;
};

// Rows of activations in float32, and rounded to 8 bits.
struct FusedInput {
  const float* x;
  Activations rounded;
  RowStore* row_store;
  bool use_tiles = false;
};

struct FusedShape {
  int64_t M, K, tile;  // tile: weight rows of a workgroup / 16
  int64_t activation;  // -1: none
  float limit, scale;
  const float* residual;
};

// y[m * N + i]: row m of the input times row n + i of the weight, i < count.
static void fused_rows(const FusedWeight& w, const FusedInput& in, int64_t M, int64_t K, int64_t n, int64_t count,
                       float* y, int64_t N) {
  n += w.first;
  switch (w.format) {
#define INTEGER(name, Fmt, KIND) \
  case FORMAT_##name:            \
    if (w.integer) return int8_matmul<Fmt>(in.rounded, M, w.parts, n, count, y, N, *in.row_store, in.use_tiles); else break;
    FOR_EACH_INTEGER_FORMAT(INTEGER)
  }
  switch (w.format) {
#define QUANTIZED(name, Fmt, KIND) \
  case FORMAT_##name:              \
    return f32_matmul(in.x, M, QuantizedWeight<Fmt>{w.parts, K}, n, count, y, N, *in.row_store, in.use_tiles);
#define DENSE(name, Type) \
  case FORMAT_##name:     \
    return f32_matmul(in.x, M, DenseWeight<Type>{reinterpret_cast<const Type::Element*>(w.parts.codes), K}, n, count, y, \
                      N, *in.row_store, in.use_tiles);
    FOR_EACH_FORMAT(QUANTIZED)
    DENSE(f32, Float32) DENSE(f16, Float16) DENSE(bf16, Bfloat16)
  }
}

// What comes after the products of columns [n, n + count): bias, activation, residual.
static void finish(const FusedWeight& w, const FusedShape& s, int64_t n, int64_t count) {
  if (!w.bias && s.activation < 0 && !s.residual) return;
  for (int64_t m = 0; m < s.M; m++) {
    for (int64_t i = n; i < n + count; i += W) {
      const int64_t here = min(n + count - i, W);
      F v = load_part(w.y + m * w.stride + i, here);
      if (w.bias) v += load_part(w.bias + i, here);
      if (s.activation >= 0) v = activated(v, F(1.0f), s.activation, s.limit);
      if (s.residual) v = load_part(s.residual + m * w.N + i, here) + v * s.scale;
      store_part(w.y + m * w.stride + i, v, here);
    }
  }
}

// up.y = activation(gate, up.y) for columns [n, n + count); gate [M, stride], from column n on.
static void join(const FusedWeight& gate_weight, const float* gate, int64_t stride, const FusedWeight& up,
                 const FusedShape& s, int64_t n, int64_t count) {
  for (int64_t m = 0; m < s.M; m++) {
    for (int64_t i = 0; i < count; i += W) {
      const int64_t here = min(count - i, W);
      float* to = up.y + m * up.N + n + i;
      F g = load_part(gate + m * stride + i, here), u = load_part(to, here);
      if (up.bias) g += load_part(gate_weight.bias + n + i, here), u += load_part(up.bias + n + i, here);
      store_part(to, activated(g, u, s.activation, s.limit), here);
    }
  }
}

// What is added to a residual stream before anything else: (base + RMSNorm(x)) * factor, which goes to `to`, or to null.
struct FusedSum {
  const float* base;
  RmsNorm norm;
  float factor;
  float* to;
};

// The norm before a matmul: an RMSNorm, or a LayerNorm whose bias may be null.
struct FusedNorm {
  RmsNorm rms;
  bool layer;
  const float* bias;
};

// Adds, normalizes and rounds the input on `scratch`, as far as there is something to do and the weights want it.
static FusedInput prepared(const float* x, int64_t M, int64_t K, const FusedSum* sum, const FusedNorm* norm, bool floats,
                           bool integers, uint8_t* scratch, RowStore& row_store) {
  float* h = reinterpret_cast<float*>(scratch);  // all rows where weights take floats, else one
  const bool layer = norm && norm->layer;
  scratch += sizeof(float) * (floats ? (sum || norm ? M * K : 0) : sum || layer ? K : 0);
  float* scale = reinterpret_cast<float*>(scratch);
  int32_t* sums = reinterpret_cast<int32_t*>(scale + M * (K / RUN));
  int8_t* q = reinterpret_cast<int8_t*>(sums + M * (K / HALF_RUN));
  for (int64_t m = 0; m < M; m++) {
    const float* row = x + m * K;
    float* kept = floats ? h + m * K : h;
    const RmsNorm* left = norm ? &norm->rms : nullptr;
    if (sum) {
      add_normed_row(sum->base + m * K, row, K, sum->norm, sum->factor, kept);
      if (sum->to)
        for (int64_t k = 0; k < K; k += W) store_part(sum->to + m * K + k, load_part(kept + k, min(K - k, W)), min(K - k, W));
      row = kept;
    }
    if (layer) layer_normalize_row(row, K, norm->rms, norm->bias, kept);
    if (!layer && floats && norm) normalize_row(row, K, norm->rms, kept);
    if (layer || (floats && norm)) {
      row = kept;
      left = nullptr;
    }
    if (!integers) continue;
    int8_t* to = q + m * K;
    float* xs = scale + m * (K / RUN);
    int32_t* xsum = sums + m * (K / HALF_RUN);
    if (left)
      quantize_row(Normalized::of(row, K, *left), K, to, xs, xsum);
    else
      quantize_row(AsItIs{row}, K, to, xs, xsum);
  }
  return {floats && (sum || norm) ? h : x, {q, scale, sums, K}, &row_store};
}

// All results side by side in y, in tiles of 16 columns: this workgroup's.
template <int COUNT>
static void fused_columns(FusedWeight (&weights)[COUNT], const FusedInput& in, const FusedShape& s, float* y,
                          int64_t wg) {
  int64_t all = 0;
  for (const FusedWeight& w : weights) all += w.N;
  for (FusedWeight& w : weights) w.y = y, w.stride = all, y += w.N;
  int64_t start = wg * s.tile * TILE_ROWS;
  int64_t left = s.tile * TILE_ROWS;
  for (int i = 0; i < COUNT; i++) {
    const FusedWeight& w = weights[i];
    const int64_t columns = (w.N + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    if (start < columns && left > 0) {
      const int64_t taken = min(left, columns - start), count = min(taken, w.N - start);
      fused_rows(w, in, s.M, s.K, start, count, w.y + start, w.stride);
      finish(w, s, start, count);
      left -= taken;
      start = 0;
    } else {
      start -= columns;
    }
  }
}

// y float32 [M, N] = activation(gate, up). gate: [M, N] for many rows, null for few.
static void fused_gated(FusedWeight (&weights)[2], const FusedInput& in, const FusedShape& s, float* y, float* gate,
                        int64_t wg) {
  FusedWeight &g = weights[0], &up = weights[1];
  up.y = y;
  const int64_t n = wg * s.tile * TILE_ROWS, end = min(n + s.tile * TILE_ROWS, up.N);
  if (gate) {
    fused_rows(g, in, s.M, s.K, n, end - n, gate + n, up.N);
    fused_rows(up, in, s.M, s.K, n, end - n, up.y + n, up.N);
    return join(g, gate + n, up.N, up, s, n, end - n);
  }
  for (int64_t i = n; i < end; i += GATE_COLUMNS) {
    const int64_t count = min(end - i, GATE_COLUMNS);
    float few[FEW * GATE_COLUMNS];
    fused_rows(g, in, s.M, s.K, i, count, few, GATE_COLUMNS);
    fused_rows(up, in, s.M, s.K, i, count, up.y + i, up.N);
    join(g, few, GATE_COLUMNS, up, s, i, count);
  }
}

// Buffers are bytes here: a format's parts have different types.
#define BYTES(name) BUFFER(const uint8_t, name)
#define TO_FLOAT(name) reinterpret_cast<const float*>(AT(name))
#define BITS_TO_FLOAT(name) __builtin_bit_cast(float, int32_t(name))
// The parts that a format has, in these places (the others are anything), its bias; format and grouping in one word.
#define WEIGHT_BUFFERS(i) \
  BYTES(codes##i), BYTES(high##i), BYTES(scale##i), BYTES(super##i), BYTES(minimum##i), BYTES(super_minimum##i), BYTES(bias##i)
#define WEIGHT_SCALARS(i) int64_t format##i, int64_t first##i, int64_t N##i
#define WEIGHT(i) \
  fused_weight(AT(codes##i), AT(high##i), AT(scale##i), AT(super##i), AT(minimum##i), AT(super_minimum##i), \
               flags & BIASED ? AT(bias##i) : nullptr, format##i, first##i, N##i)
#define RESULT(name) BUFFER(uint8_t, name)
#define TO_RESULT(name) reinterpret_cast<float*>(AT(name))

enum FusedFlags : int64_t { NORMED = 1, BIASED = 2, ADDED = 4, PREPARED = 8, SUMMED = 16, SCALED = 32, LAYER = 64, NORM_BIASED = 128 };

INLINE FusedWeight fused_weight(const uint8_t* codes, const uint8_t* high, const uint8_t* scale, const uint8_t* super,
                                const uint8_t* minimum, const uint8_t* super_minimum, const uint8_t* bias,
                                int64_t word, int64_t first, int64_t N) {
  FusedWeight w;
  w.format = int32_t(word & 63);
  w.integer = word >> 6 & 1;
  const int32_t shift = int32_t(word >> 8 & 255), second = int32_t(word >> 16 & 255), third = int32_t(word >> 24 & 255);
  w.parts = {codes,
             reinterpret_cast<const int32_t*>(high),
             scale,
             reinterpret_cast<const uint16_t*>(super),
             minimum,
             reinterpret_cast<const uint16_t*>(super_minimum),
             reinterpret_cast<const float*>(high),
             {shift, second, second, third}};
  w.first = first;
  w.N = N;
  w.bias = reinterpret_cast<const float*>(bias);
  return w;
}

// Runs `run` on the input that it prepares, which is on the stack of this function alone.
template <class Run>
__attribute__((noinline)) static void on_prepared(const float* x, int64_t M, int64_t K, const FusedSum* sum,
                                                  const FusedNorm* norm, bool floats, bool integers, RowStore& row_store,
                                                  const Run& run) {
  alignas(64) uint8_t scratch[SCRATCH];
  run(prepared(x, M, K, sum, norm, floats, integers, scratch, row_store));
}

// x: the input, or with PREPARED the normalized input and what it rounds to. The first workgroup stores the sum.
#define FUSED_BUFFERS \
  TILES_BYTES BYTES(x), BYTES(xq), BYTES(xs), BYTES(xsum), BYTES(norm), BYTES(norm_bias), BYTES(residual), BYTES(base), \
      BYTES(sum_norm), BYTES(factor)
#define FUSED_SCALARS                                                                                                \
  int64_t M, int64_t K, int64_t tile, int64_t flags, int64_t epsilon_bits, int64_t offset_bits, int64_t activation,  \
      int64_t limit_bits, int64_t scale_bits, int64_t sum_epsilon_bits, int64_t sum_offset_bits
// WORK: of `weights`, `in` and `shape`.
#define FUSED_BODY(COUNT, WORK, ...)                                                                                 \
  FusedWeight weights[COUNT] = {__VA_ARGS__};                                                                        \
  bool floats = false, integers = false;                                                                             \
  for (const FusedWeight& w : weights) integers |= w.integer, floats |= !w.integer;                                  \
  const FusedNorm before = {{TO_FLOAT(norm), BITS_TO_FLOAT(epsilon_bits), BITS_TO_FLOAT(offset_bits)},               \
                            (flags & LAYER) != 0, flags & NORM_BIASED ? TO_FLOAT(norm_bias) : nullptr};              \
  const FusedShape shape = {M, K, tile, activation, BITS_TO_FLOAT(limit_bits), BITS_TO_FLOAT(scale_bits),            \
                            flags & ADDED ? TO_FLOAT(residual) : nullptr};                                           \
  const FusedSum sums = {TO_FLOAT(base),                                                                             \
                         {TO_FLOAT(sum_norm), BITS_TO_FLOAT(sum_epsilon_bits), BITS_TO_FLOAT(sum_offset_bits)},      \
                         flags & SCALED ? *TO_FLOAT(factor) : 1.0f,                                                  \
                         wg ? nullptr : TO_RESULT(sum)};                                                             \
  RowStore row_store;                                                                                                 \
  const auto run = [&](const FusedInput& in) { WORK; };                                                              \
  if (flags & PREPARED)                                                                                              \
    run({TO_FLOAT(x), {reinterpret_cast<const int8_t*>(AT(xq)), TO_FLOAT(xs), reinterpret_cast<const int32_t*>(AT(xsum)), K}, \
         &row_store, MAY_USE_TILES}); \
  else                                                                                                               \
    on_prepared(TO_FLOAT(x), M, K, flags & SUMMED ? &sums : nullptr, flags & NORMED ? &before : nullptr, floats,      \
                integers, row_store, run);

KERNEL strixhlo_fused_matmul_1(FUSED_BUFFERS, WEIGHT_BUFFERS(0), RESULT(sum), RESULT(y), FUSED_SCALARS, WEIGHT_SCALARS(0),
                               int64_t wg) {
  FUSED_BODY(1, (fused_columns(weights, in, shape, TO_RESULT(y), wg)), WEIGHT(0))
}
KERNEL strixhlo_fused_matmul_2(FUSED_BUFFERS, WEIGHT_BUFFERS(0), WEIGHT_BUFFERS(1), RESULT(sum), RESULT(y), FUSED_SCALARS,
                               WEIGHT_SCALARS(0), WEIGHT_SCALARS(1), int64_t wg) {
  FUSED_BODY(2, (fused_columns(weights, in, shape, TO_RESULT(y), wg)), WEIGHT(0), WEIGHT(1))
}
KERNEL strixhlo_fused_matmul_3(FUSED_BUFFERS, WEIGHT_BUFFERS(0), WEIGHT_BUFFERS(1), WEIGHT_BUFFERS(2), RESULT(sum), RESULT(y),
                               FUSED_SCALARS, WEIGHT_SCALARS(0), WEIGHT_SCALARS(1), WEIGHT_SCALARS(2), int64_t wg) {
  FUSED_BODY(3, (fused_columns(weights, in, shape, TO_RESULT(y), wg)), WEIGHT(0), WEIGHT(1), WEIGHT(2))
}
KERNEL strixhlo_fused_gated_few(FUSED_BUFFERS, WEIGHT_BUFFERS(0), WEIGHT_BUFFERS(1), RESULT(sum), RESULT(y), FUSED_SCALARS,
                                WEIGHT_SCALARS(0), WEIGHT_SCALARS(1), int64_t wg) {
  FUSED_BODY(2, (fused_gated(weights, in, shape, TO_RESULT(y), nullptr, wg)), WEIGHT(0), WEIGHT(1))
}
KERNEL strixhlo_fused_gated_many(FUSED_BUFFERS, WEIGHT_BUFFERS(0), WEIGHT_BUFFERS(1), RESULT(sum), RESULT(gate), RESULT(y),
                                 FUSED_SCALARS, WEIGHT_SCALARS(0), WEIGHT_SCALARS(1), int64_t wg) {
  FUSED_BODY(2, (fused_gated(weights, in, shape, TO_RESULT(y), TO_RESULT(gate), wg)), WEIGHT(0), WEIGHT(1))
}
