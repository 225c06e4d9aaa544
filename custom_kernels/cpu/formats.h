// The quantized weight formats (see ops/formats.py) and where one weight row's parts lie.
#pragma once
#include "half.h"

constexpr int RUN = 32;  // weights packed together

// How the codes of a run lie: GGUF's low nibbles and bit planes (8 bits: signed bytes); one stream of bits, the first
// code lowest; E2M1 nibbles in natural order; E4M3 bytes.
enum Layout { PLANAR, STREAM, FP4, FP8 };
// What stands for the scales: float16; int8 per group times float16 per 256 weights; MLX's, of any real type and of 1,
// 2 or 4 runs; powers of two; E4M3 times one float32; float32 of blocks of rows and columns.
enum Scaling { HALF, SUPER, AFFINE, E8M0, E4M3, BLOCKS };

// weight = (code - ZERO) * scale + minimum. FP4: its codes are twice an E2M1 number, plus ZERO, and its scales half of
// what is stored.
template <int BITS_, int GROUP_, int ZERO_, bool MINIMUM_, Layout LAYOUT_ = PLANAR, Scaling SCALING_ = HALF>
struct Format {
  static constexpr int BITS = BITS_, GROUP = GROUP_, ZERO = ZERO_;
  static constexpr bool MINIMUM = MINIMUM_;
  static constexpr Layout LAYOUT = LAYOUT_;
  static constexpr Scaling SCALING = SCALING_;
  static constexpr int PLANES = LAYOUT == PLANAR && BITS != 8 ? BITS - 4 : 0;
  static constexpr int GROUPS = RUN / GROUP;  // groups of one run
  static constexpr int CODE_BYTES = BITS == 8 ? RUN : LAYOUT == STREAM ? BITS * RUN / 8 : RUN / 2;
  static constexpr int SCALE_BYTES = SCALING == HALF ? 2 : SCALING == BLOCKS ? 4 : 1;
};

using Q4_0 = Format<4, 32, 8, false>;
using Q4_1 = Format<4, 32, 0, true>;
using Q5_0 = Format<5, 32, 16, false>;
using Q5_1 = Format<5, 32, 0, true>;
using Q8_0 = Format<8, 32, 0, false>;
using Q4_K = Format<4, 32, 0, true, PLANAR, SUPER>;
using Q5_K = Format<5, 32, 0, true, PLANAR, SUPER>;
using Q6_K = Format<6, 16, 32, false, PLANAR, SUPER>;
using Q2_K = Format<2, 16, 0, true, STREAM, SUPER>;
using Q3_K = Format<3, 16, 4, false, STREAM, SUPER>;
using Affine2 = Format<2, 32, 0, true, STREAM, AFFINE>;
using Affine3 = Format<3, 32, 0, true, STREAM, AFFINE>;
using Affine4 = Format<4, 32, 0, true, STREAM, AFFINE>;
using Affine5 = Format<5, 32, 0, true, STREAM, AFFINE>;
using Affine6 = Format<6, 32, 0, true, STREAM, AFFINE>;
using Affine8 = Format<8, 32, 0, true, STREAM, AFFINE>;
using Mxfp4 = Format<5, 32, 12, false, FP4, E8M0>;
using Nvfp4 = Format<5, 16, 12, false, FP4, E4M3>;
using Mxfp8 = Format<8, 32, 0, false, FP8, E8M0>;
using Fp8 = Format<8, 32, 0, false, FP8, BLOCKS>;

enum Real : int32_t { REAL_F32, REAL_F16, REAL_BF16 };

// What is not known before a call. AFFINE: 2^shift runs share a scale. BLOCKS: 2^shift runs of 2^row_shift rows do; 31
// means all of them.
struct Grouping {
  int32_t shift = 0, row_shift = 0;
  int32_t scale_type = REAL_F32, minimum_type = REAL_F32;
};

// The parts of a weight, or of one row of it. Parts that the format lacks stay null.
struct Parts {
  const uint8_t* codes = nullptr;
  const int32_t* high = nullptr;
  const void* scale = nullptr;
  const uint16_t* super_scale = nullptr;
  const void* minimum = nullptr;
  const uint16_t* super_minimum = nullptr;
  const float* global_scale = nullptr;
  Grouping grouping = {};
};

INLINE const void* advance(const void* p, int64_t bytes) { return static_cast<const uint8_t*>(p) + bytes; }
INLINE int64_t bytes_of(int32_t real) { return real == REAL_F32 ? 4 : 2; }

// `parts`, moved on by so many runs. (256 weights, one super group, are 8 runs.)
template <class Fmt>
INLINE Parts after(Parts parts, int64_t runs) {
  parts.codes += runs * Fmt::CODE_BYTES;
  if constexpr (Fmt::PLANES > 0) parts.high += runs * Fmt::PLANES;
  if constexpr (Fmt::SCALING == AFFINE) {
    const int64_t groups = runs >> parts.grouping.shift;
    parts.scale = advance(parts.scale, groups * bytes_of(parts.grouping.scale_type));
    parts.minimum = advance(parts.minimum, groups * bytes_of(parts.grouping.minimum_type));
    return parts;
  }
  const int64_t groups = Fmt::SCALING == BLOCKS ? runs >> parts.grouping.shift : runs * Fmt::GROUPS;
  parts.scale = advance(parts.scale, groups * Fmt::SCALE_BYTES);
  if constexpr (Fmt::SCALING == SUPER) parts.super_scale += runs / 8;
  if constexpr (Fmt::MINIMUM) parts.minimum = advance(parts.minimum, groups * Fmt::SCALE_BYTES);
  if constexpr (Fmt::MINIMUM && Fmt::SCALING == SUPER) parts.super_minimum += runs / 8;
  return parts;
}

// A weight that holds the rows of all experts, as expert e has it: nvfp4's have a global scale each.
template <class Fmt>
INLINE Parts of_expert(Parts weight, int64_t e) {
  if constexpr (Fmt::SCALING == E4M3) weight.global_scale += e;
  return weight;
}

// Row n of a weight of K columns.
template <class Fmt>
INLINE Parts row_of(const Parts& weight, int64_t n, int64_t K) {
  const int64_t runs = K / RUN;
  if constexpr (Fmt::SCALING == BLOCKS) {
    Parts row = weight;
    const int64_t blocks = ((runs - 1) >> weight.grouping.shift) + 1;
    row.codes += n * K;
    row.scale = advance(row.scale, (n >> weight.grouping.row_shift) * blocks * Fmt::SCALE_BYTES);
    return row;
  }
  return after<Fmt>(weight, n * runs);
}
