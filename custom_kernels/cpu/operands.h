// The parts of each format as kernel operands, in the order of `WeightFormat.parts`, and the scalars that say how its
// groups lie: the third column of FOR_EACH_FORMAT.
#pragma once
#include "export.h"
#include "formats.h"

#define CODES BUFFER(const uint8_t, codes)
#define HIGH BUFFER(const int32_t, high)
#define HALF_PART(name) BUFFER(const uint16_t, name)
#define BYTE_PART(name) BUFFER(const int8_t, name)

// GGUF's.
#define PARTS_OF_ONE CODES, HALF_PART(scale)
#define PARTS_AT_ONE {AT(codes), nullptr, AT(scale)}
#define PARTS_OF_ONE_MIN CODES, HALF_PART(scale), HALF_PART(minimum)
#define PARTS_AT_ONE_MIN {AT(codes), nullptr, AT(scale), nullptr, AT(minimum)}
#define PARTS_OF_ONE_HIGH CODES, HIGH, HALF_PART(scale)
#define PARTS_AT_ONE_HIGH {AT(codes), AT(high), AT(scale)}
#define PARTS_OF_ONE_HIGH_MIN CODES, HIGH, HALF_PART(scale), HALF_PART(minimum)
#define PARTS_AT_ONE_HIGH_MIN {AT(codes), AT(high), AT(scale), nullptr, AT(minimum)}
#define SUPER_SCALES BYTE_PART(scale), HALF_PART(super_scale)
#define SUPER_MINIMA BYTE_PART(minimum), HALF_PART(super_minimum)
#define PARTS_OF_TWO_MIN CODES, SUPER_SCALES, SUPER_MINIMA
#define PARTS_AT_TWO_MIN {AT(codes), nullptr, AT(scale), AT(super_scale), AT(minimum), AT(super_minimum)}
#define PARTS_OF_TWO_HIGH CODES, HIGH, SUPER_SCALES
#define PARTS_AT_TWO_HIGH {AT(codes), AT(high), AT(scale), AT(super_scale)}
#define PARTS_OF_TWO_HIGH_MIN CODES, HIGH, SUPER_SCALES, SUPER_MINIMA
#define PARTS_AT_TWO_HIGH_MIN {AT(codes), AT(high), AT(scale), AT(super_scale), AT(minimum), AT(super_minimum)}

// Streams of bits are int32 words.
#define WORDS BUFFER(const int32_t, codes)
#define AT_WORDS reinterpret_cast<const uint8_t*>(AT(codes))
#define PARTS_OF_STREAM_TWO WORDS, SUPER_SCALES
#define PARTS_AT_STREAM_TWO {AT_WORDS, nullptr, AT(scale), AT(super_scale)}
#define PARTS_OF_STREAM_TWO_MIN WORDS, SUPER_SCALES, SUPER_MINIMA
#define PARTS_AT_STREAM_TWO_MIN {AT_WORDS, nullptr, AT(scale), AT(super_scale), AT(minimum), AT(super_minimum)}

// Scales and biases of any real type: an offset counts its elements.
#define PARTS_OF_AFFINE WORDS, BUFFER(const uint8_t, scale), BUFFER(const uint8_t, minimum)
#define PARTS_AT_AFFINE                                                                                      \
  {AT_WORDS, nullptr, scale_base + scale_offset * bytes_of(int32_t(scale_type)), nullptr,                    \
   minimum_base + minimum_offset * bytes_of(int32_t(minimum_type)), nullptr, nullptr,                        \
   {int32_t(shift), 0, int32_t(scale_type), int32_t(minimum_type)}}
#define SCALARS_OF_AFFINE int64_t shift, int64_t scale_type, int64_t minimum_type,

#define PARTS_OF_BYTE_SCALE CODES, BYTE_PART(scale)
#define PARTS_AT_BYTE_SCALE {AT(codes), nullptr, AT(scale)}
#define PARTS_OF_NVIDIA CODES, BYTE_PART(scale), BUFFER(const float, global_scale)
#define PARTS_AT_NVIDIA {AT(codes), nullptr, AT(scale), nullptr, nullptr, nullptr, AT(global_scale)}
#define PARTS_OF_BLOCKS CODES, BUFFER(const float, scale)
#define PARTS_AT_BLOCKS \
  {AT(codes), nullptr, AT(scale), nullptr, nullptr, nullptr, nullptr, {int32_t(shift), int32_t(row_shift)}}
#define SCALARS_OF_BLOCKS int64_t shift, int64_t row_shift,

#define SCALARS_OF_ONE
#define SCALARS_OF_ONE_MIN
#define SCALARS_OF_ONE_HIGH
#define SCALARS_OF_ONE_HIGH_MIN
#define SCALARS_OF_TWO_MIN
#define SCALARS_OF_TWO_HIGH
#define SCALARS_OF_TWO_HIGH_MIN
#define SCALARS_OF_STREAM_TWO
#define SCALARS_OF_STREAM_TWO_MIN
#define SCALARS_OF_BYTE_SCALE
#define SCALARS_OF_NVIDIA

#define FOR_EACH_INTEGER_FORMAT(DO)                                                               \
  DO(q4_0, Q4_0, ONE)                                                                             \
  DO(q4_1, Q4_1, ONE_MIN) DO(q5_0, Q5_0, ONE_HIGH) DO(q5_1, Q5_1, ONE_HIGH_MIN) DO(q8_0, Q8_0, ONE) \
  DO(q4_k, Q4_K, TWO_MIN) DO(q5_k, Q5_K, TWO_HIGH_MIN) DO(q6_k, Q6_K, TWO_HIGH)                   \
  DO(q2_k, Q2_K, STREAM_TWO_MIN) DO(q3_k, Q3_K, STREAM_TWO)                                       \
  DO(affine2, Affine2, AFFINE) DO(affine3, Affine3, AFFINE) DO(affine4, Affine4, AFFINE)          \
  DO(affine5, Affine5, AFFINE) DO(affine6, Affine6, AFFINE) DO(affine8, Affine8, AFFINE)          \
  DO(mxfp4, Mxfp4, BYTE_SCALE) DO(nvfp4, Nvfp4, NVIDIA)

// E4M3 codes have no integer dot product.
#define FOR_EACH_FORMAT(DO) FOR_EACH_INTEGER_FORMAT(DO) DO(mxfp8, Mxfp8, BYTE_SCALE) DO(fp8, Fp8, BLOCKS)
