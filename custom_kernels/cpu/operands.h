// The parts of each format as kernel operands, in the order of `WeightFormat.parts`.
#pragma once
#include "export.h"
#include "formats.h"

#define CODES BUFFER(const uint8_t, codes)
#define HIGH BUFFER(const int32_t, high)
#define HALF(name) BUFFER(const uint16_t, name)
#define BYTE(name) BUFFER(const int8_t, name)

#define PARTS_OF_Q4_0 CODES, HALF(scale)
#define PARTS_AT_Q4_0 {AT(codes), nullptr, AT(scale), nullptr, nullptr, nullptr}
#define PARTS_OF_Q4_1 CODES, HALF(scale), HALF(minimum)
#define PARTS_AT_Q4_1 {AT(codes), nullptr, AT(scale), nullptr, AT(minimum), nullptr}
#define PARTS_OF_Q5_0 CODES, HIGH, HALF(scale)
#define PARTS_AT_Q5_0 {AT(codes), AT(high), AT(scale), nullptr, nullptr, nullptr}
#define PARTS_OF_Q5_1 CODES, HIGH, HALF(scale), HALF(minimum)
#define PARTS_AT_Q5_1 {AT(codes), AT(high), AT(scale), nullptr, AT(minimum), nullptr}
#define PARTS_OF_Q8_0 CODES, HALF(scale)
#define PARTS_AT_Q8_0 {AT(codes), nullptr, AT(scale), nullptr, nullptr, nullptr}
#define PARTS_OF_Q4_K CODES, BYTE(scale), HALF(super_scale), BYTE(minimum), HALF(super_minimum)
#define PARTS_AT_Q4_K {AT(codes), nullptr, AT(scale), AT(super_scale), AT(minimum), AT(super_minimum)}
#define PARTS_OF_Q5_K CODES, HIGH, BYTE(scale), HALF(super_scale), BYTE(minimum), HALF(super_minimum)
#define PARTS_AT_Q5_K {AT(codes), AT(high), AT(scale), AT(super_scale), AT(minimum), AT(super_minimum)}
#define PARTS_OF_Q6_K CODES, HIGH, BYTE(scale), HALF(super_scale)
#define PARTS_AT_Q6_K {AT(codes), AT(high), AT(scale), AT(super_scale), nullptr, nullptr}

#define FOR_EACH_FORMAT(DO) \
  DO(q4_0, Q4_0)            \
  DO(q4_1, Q4_1) DO(q5_0, Q5_0) DO(q5_1, Q5_1) DO(q8_0, Q8_0) DO(q4_k, Q4_K) DO(q5_k, Q5_K) DO(q6_k, Q6_K)
