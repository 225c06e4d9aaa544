// Weights as float32 vectors: one way to read each quantized format, and each dense dtype.
#pragma once
#include "formats.h"

constexpr int PER_RUN = RUN / W;  // vectors of one run

// Reads a quantized weight exactly as `formats.dequantize` defines it.
template <class Fmt>
struct QuantizedWeight {
  using Row = Parts;
  static constexpr bool RAGGED = false;  // K is a multiple of 32
  // What W runs of a row share, decoded at once.
  struct Groups {
    alignas(64) float scale[Fmt::GROUPS][W], minimum[W];
  };
  Parts parts;
  int64_t K;

  INLINE_MEMBER Row row(int64_t n) const { return row_of<Fmt>(parts, n, K); }
  INLINE_MEMBER static void load_groups(const Row& start, int64_t run, int64_t runs, Groups& groups) {
    const Parts at = after<Fmt>(start, run);
    const GroupValues scale = runs == W ? scales<Fmt, true>(at, W) : scales<Fmt, false>(at, runs);
    store(groups.scale[0], scale.first);
    if constexpr (Fmt::GROUPS == 2) store(groups.scale[1], scale.second);
    if constexpr (Fmt::MINIMUM)
      store(groups.minimum, runs == W ? minima<Fmt, true>(at, W) : minima<Fmt, false>(at, runs));
    __builtin_prefetch(advance(at.scale, PREFETCH / 8));
    if constexpr (Fmt::MINIMUM) __builtin_prefetch(advance(at.minimum, PREFETCH / 8));
  }
  // Run `run`, the i-th of the groups'.
  INLINE_MEMBER static void load_run(const Row& start, int64_t run, const Groups& groups, int64_t i, int64_t,
                                     F (&w)[PER_RUN]) {
    const uint8_t* at = start.codes + run * Fmt::CODE_BYTES;
    const int32_t* high = Fmt::PLANES > 0 ? start.high + run * Fmt::PLANES : nullptr;
    __builtin_prefetch(at + PREFETCH);
    if constexpr (Fmt::PLANES > 0) __builtin_prefetch(advance(high, PREFETCH / 4));
    const F minimum = Fmt::MINIMUM ? splat(groups.minimum[i]) : F(0.0f);
#if STRIXHLO_AVX512
    if constexpr (Fmt::BITS == 4) {  // the 16 weights that a group can have, picked by code
      const F values = to_float(lane_index() - Fmt::ZERO), scale = splat(groups.scale[0][i]);
      const F table = Fmt::MINIMUM ? fma(values, scale, minimum) : values * scale;
      const __m512i packed = _mm512_cvtepu8_epi32(load<__m128i>(at));
      w[0] = _mm512_permutexvar_ps(packed, table);  // looks at the low 4 bits only
      w[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(packed, 4), table);
      return;
    }
#endif
    UNROLL
    for (int v = 0; v < PER_RUN; v++) {
      const F code = to_float(codes(at, high, v)), scale = splat(groups.scale[v * Fmt::GROUPS / PER_RUN][i]);
      w[v] = Fmt::MINIMUM ? fma(code, scale, minimum) : code * scale;
    }
  }

 private:
  // Codes minus zero of weights v * W .. of a run.
  INLINE_MEMBER static I codes(const uint8_t* at, const int32_t* high, int v) {
    typedef uint8_t U __attribute__((ext_vector_type(W)));
    typedef int8_t C __attribute__((ext_vector_type(W)));
    const int first = v * W;
    if constexpr (Fmt::BITS == 8) return __builtin_convertvector(load<C>(at + first), I);
    I code = __builtin_convertvector(load<U>(at + first % 16), I);
    code = first < 16 ? code & 15 : code >> 4;
    UNROLL
    for (int p = 0; p < Fmt::PLANES; p++) code |= ((I(high[p]) >> (lane_index() + first)) & 1) << (4 + p);
    return code - Fmt::ZERO;
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
  static constexpr bool RAGGED = true;
  struct Groups {};
  Row base;
  int64_t K;

  INLINE_MEMBER Row row(int64_t n) const { return base + n * K; }
  INLINE_MEMBER static void load_groups(const Row&, int64_t, int64_t, Groups&) {}
  // The first `columns` weights of a run; zeros after them.
  INLINE_MEMBER static void load_run(const Row& start, int64_t run, const Groups&, int64_t, int64_t columns,
                                     F (&w)[PER_RUN]) {
    constexpr int64_t BYTES = RUN * sizeof(*start);
    const Row at = start + run * RUN;
    UNROLL
    for (int64_t line = 0; line < BYTES; line += 64) __builtin_prefetch(advance(at, line + PREFETCH));
    UNROLL
    for (int v = 0; v < PER_RUN; v++) {
      const int64_t left = columns - v * W;
      w[v] = left >= W ? Type::load_all(at + v * W) : Type::load_some(at + v * W, max(left, 0));
    }
  }
};
