// Weights as float32 vectors: one way to read each quantized format, and each dense dtype.
#pragma once
#include "formats.h"

constexpr int PER_RUN = RUN / W;  // vectors of one run

// Reads a quantized weight exactly as `formats.dequantize` defines it.
template <class Fmt>
struct QuantizedWeight {
  using Row = Parts;
  Parts parts;
  int64_t K;

  INLINE_MEMBER Row row(int64_t n) const { return row_of<Fmt>(parts, n, K); }
  INLINE_MEMBER static void load_run(const Row& start, int64_t run, int64_t, F (&w)[PER_RUN]) {
    const Parts at = after<Fmt>(start, run);
    float scale[Fmt::GROUPS];
    UNROLL for (int g = 0; g < Fmt::GROUPS; g++) scale[g] = value_of(at.scale, at.super_scale, g);
    float minimum = 0;
    if constexpr (Fmt::MINIMUM) minimum = value_of(at.minimum, at.super_minimum, 0);
#if STRIXHLO_AVX512
    if constexpr (Fmt::BITS == 4) {  // the 16 weights that a group can have, picked by code
      F table = to_float(lane_index() - Fmt::ZERO) * scale[0];
      if constexpr (Fmt::MINIMUM) table = fma(to_float(lane_index()), splat(scale[0]), splat(minimum));
      const __m512i packed = _mm512_cvtepu8_epi32(load<__m128i>(at.codes));
      w[0] = _mm512_permutexvar_ps(packed, table);  // looks at the low 4 bits only
      w[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(packed, 4), table);
      return;
    }
#endif
    UNROLL for (int i = 0; i < PER_RUN; i++) {
      const F code = to_float(codes<Fmt>(at, i));
      const F of_group = splat(scale[i * Fmt::GROUPS / PER_RUN]);
      w[i] = Fmt::MINIMUM ? fma(code, of_group, splat(minimum)) : code * of_group;
    }
  }

 private:
  // Codes minus zero of weights i * W .. of a run.
  template <class>
  INLINE_MEMBER static I codes(const Parts& at, int i) {
    typedef uint8_t U __attribute__((ext_vector_type(W)));
    typedef int8_t C __attribute__((ext_vector_type(W)));
    const int first = i * W;
    if constexpr (Fmt::BITS == 8) return __builtin_convertvector(load<C>(at.codes + first), I);
    I code = __builtin_convertvector(load<U>(at.codes + first % 16), I);
    code = first < 16 ? code & 15 : code >> 4;
    UNROLL for (int p = 0; p < Fmt::PLANES; p++) code |= ((I(at.high[p]) >> (lane_index() + first)) & 1) << (4 + p);
    return code - Fmt::ZERO;
  }
  INLINE_MEMBER static float value_of(const void* values, const uint16_t* super, int g) {
    if constexpr (Fmt::SUPER) return float(static_cast<const int8_t*>(values)[g]) * float_of_half(super[0]);
    return float_of_half(static_cast<const uint16_t*>(values)[g]);
  }
};

struct Float32 {
  using Element = float;
  INLINE_MEMBER static F load_all(const float* p) { return load<F>(p); }
  INLINE_MEMBER static F load_some(const float* p, int64_t n) { return load_part(p, n); }
};
struct Float16 {
  using Element = uint16_t;
  INLINE_MEMBER static F load_all(const uint16_t* p) { return load_half(p); }
  INLINE_MEMBER static F load_some(const uint16_t* p, int64_t n) { return load_half_part(p, n); }
};
struct Bfloat16 {
  using Element = uint16_t;
  INLINE_MEMBER static F load_all(const uint16_t* p) { return load_bfloat(p); }
  INLINE_MEMBER static F load_some(const uint16_t* p, int64_t n) { return load_bfloat_part(p, n); }
};

// Reads a dense weight [N, K] of any K.
template <class Type>
struct DenseWeight {
  using Row = const typename Type::Element*;
  Row base;
  int64_t K;

  INLINE_MEMBER Row row(int64_t n) const { return base + n * K; }
  // The first `columns` weights of a run; zeros after them.
  INLINE_MEMBER static void load_run(const Row& start, int64_t run, int64_t columns, F (&w)[PER_RUN]) {
    const Row at = start + run * RUN;
    UNROLL for (int i = 0; i < PER_RUN; i++)
      w[i] = columns >= (i + 1) * W ? Type::load_all(at + i * W) : Type::load_some(at + i * W, max(min(columns - i * W, W), 0));
  }
};
