// Weights as float32 vectors: one way to read each quantized format, and each dense dtype.
#pragma once
#include "bit_stream.h"
#include "codes.h"
#include "group_scales.h"

constexpr int PER_RUN = RUN / W;  // vectors of one run

// Reads a quantized weight exactly as `formats.dequantize` defines it.
template <class Fmt>
struct QuantizedWeight {
  using Of = Fmt;
  using Row = Parts;
  static constexpr bool RAGGED = false;  // K is a multiple of 32
  // Whether a run adds something after the scale. (Codes of a stream count from 0: minus zero is a minimum.)
  static constexpr bool ADDS = Fmt::MINIMUM || (Fmt::LAYOUT == STREAM && Fmt::ZERO != 0);
  // Whether codes are cheaper to unpack as bytes, many runs at once.
  static constexpr bool AS_BYTES = (Fmt::LAYOUT == PLANAR && Fmt::PLANES > 0) || (Fmt::LAYOUT == STREAM && Fmt::BITS > 4 && Fmt::BITS < 8);
  // What W runs of a row share, decoded at once. codes: minus zero, in the order of `Codes`.
  struct Groups {
    alignas(64) float scale[Fmt::GROUPS][W], minimum[Fmt::GROUPS][W];
    alignas(64) int8_t codes[AS_BYTES ? W * RUN : 1];
  };
  Parts parts;
  int64_t K;

  INLINE_MEMBER Row row(int64_t n) const { return row_of<Fmt>(parts, n, K); }
  INLINE_MEMBER static void load_groups(const Row& start, int64_t run, int64_t runs, Groups& groups) {
    const Parts at = after<Fmt>(start, run);
    const GroupValues scale = runs == W ? scales<Fmt, true>(at, W) : scales<Fmt, false>(at, runs);
    GroupValues minimum = {scale.first * float(-Fmt::ZERO), scale.second * float(-Fmt::ZERO)};
    if constexpr (Fmt::MINIMUM) minimum = runs == W ? minima<Fmt, true>(at, W) : minima<Fmt, false>(at, runs);
    store(groups.scale[0], scale.first);
    if constexpr (ADDS) store(groups.minimum[0], minimum.first);
    if constexpr (Fmt::GROUPS == 2) store(groups.scale[1], scale.second);
    if constexpr (Fmt::GROUPS == 2 && ADDS) store(groups.minimum[1], minimum.second);
    prefetch(advance(at.scale, PREFETCH / 8));
    if constexpr (Fmt::MINIMUM) prefetch(advance(at.minimum, PREFETCH / 8));
    if constexpr (AS_BYTES) {
      for (int64_t r = 0; r < runs; r += RUNS) {
        const Parts from = after<Fmt>(at, r);
        const Codes codes = runs - r >= RUNS ? load_codes<Fmt, true>(from, RUNS) : load_codes<Fmt, false>(from, runs - r);
        store(groups.codes + r * RUN, codes.low - B(Fmt::ZERO));
        store(groups.codes + r * RUN + 4 * W, codes.high - B(Fmt::ZERO));
      }
    }
  }
  // Run `run`, the i-th of the groups'.
  INLINE_MEMBER static void load_run(const Row& start, int64_t run, const Groups& groups, int64_t i, int64_t,
                                     F (&w)[PER_RUN]) {
    const uint8_t* at = start.codes + run * Fmt::CODE_BYTES;
    const int32_t* high = Fmt::PLANES > 0 ? start.high + run * Fmt::PLANES : nullptr;
    prefetch(at + PREFETCH);
    if constexpr (Fmt::PLANES > 0) prefetch(advance(high, PREFETCH / 4));
    F scale[PER_RUN], minimum[PER_RUN];
    UNROLL
    for (int v = 0; v < PER_RUN; v++) {
      const int group = v * Fmt::GROUPS / PER_RUN;
      scale[v] = splat(groups.scale[group][i]);
      minimum[v] = ADDS ? splat(groups.minimum[group][i]) : F(0.0f);
    }
    if constexpr (AS_BYTES)
      decode_bytes(groups.codes + i / RUNS * (RUNS * RUN) + i % RUNS * 16, scale, minimum, w);
    else if constexpr (Fmt::LAYOUT == PLANAR)
      decode_planar(at, high, scale, minimum, w);
    else if constexpr (Fmt::LAYOUT == STREAM)
      decode_stream(at, scale, minimum, w);
    else if constexpr (Fmt::LAYOUT == FP4)
      decode_fp4(at, scale, w);
    else
      UNROLL
    for (int v = 0; v < PER_RUN; v++) w[v] = floats_of_e4m3(load<Bytes>(at + v * W)) * scale[v];
  }

 private:
  using Values = F[PER_RUN];

  // at: the first half of the run; the second one is 4 W bytes further.
  INLINE_MEMBER static void decode_bytes(const int8_t* at, const Values& scale, const Values& minimum, Values& w) {
    typedef int8_t C __attribute__((ext_vector_type(W)));
    UNROLL
    for (int v = 0; v < PER_RUN; v++) {
      const int first = v * W;
      const F code = __builtin_convertvector(load<C>(at + first / 16 * (4 * W) + first % 16), F);
      w[v] = Fmt::MINIMUM ? fma(code, scale[v], minimum[v]) : code * scale[v];
    }
  }

  INLINE_MEMBER static void decode_planar(const uint8_t* at, const int32_t* high, const Values& scale,
                                          const Values& minimum, Values& w) {
#if STRIXHLO_AVX512
    if constexpr (Fmt::BITS == 4) {  // the 16 weights that a group can have, picked by code
      const F values = to_float(lane_index() - Fmt::ZERO);
      const F table = Fmt::MINIMUM ? fma(values, scale[0], minimum[0]) : values * scale[0];
      const __m512i packed = _mm512_cvtepu8_epi32(load<__m128i>(at));
      w[0] = _mm512_permutexvar_ps(packed, table);  // looks at the low 4 bits only
      w[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(packed, 4), table);
      return;
    }
#endif
    UNROLL
    for (int v = 0; v < PER_RUN; v++) {
      const F code = to_float(codes(at, high, v));
      w[v] = Fmt::MINIMUM ? fma(code, scale[v], minimum[v]) : code * scale[v];
    }
  }

  INLINE_MEMBER static void decode_stream(const uint8_t* at, const Values& scale, const Values& minimum, Values& w) {
    constexpr int LARGEST = (1 << Fmt::BITS) - 1;
    UNROLL
    for (int v = 0; v < PER_RUN; v++) {
      const I code = stream_codes<Fmt::BITS>(at, v);
#if STRIXHLO_AVX512
      if constexpr (Fmt::BITS <= 4) {  // as above; whatever is above a short code picks the same weight
        const F table = fma(to_float(lane_index() & LARGEST), scale[v], minimum[v]);
        w[v] = _mm512_permutexvar_ps(__builtin_bit_cast(__m512i, code), table);
        continue;
      }
#endif
      w[v] = fma(to_float(code & LARGEST), scale[v], minimum[v]);
    }
  }

  // The scales are half of what is stored, so that the table holds whole numbers.
  INLINE_MEMBER static void decode_fp4(const uint8_t* at, const Values& scale, Values& w) {
    UNROLL
    for (int v = 0; v < PER_RUN; v++) {
      const I code = stream_codes<4>(at, v);
#if STRIXHLO_AVX512
      const F table = F{0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12} * scale[v];
      w[v] = _mm512_permutexvar_ps(__builtin_bit_cast(__m512i, code), table);
#elif STRIXHLO_AVX2
      const F table = F{0, 1, 2, 3, 4, 6, 8, 12} * scale[v];  // picked by the low 3 bits
      const F magnitude = _mm256_permutevar8x32_ps(table, __builtin_bit_cast(__m256i, code));
      w[v] = float_of(bits_of(magnitude) ^ ((code & 8) << 28));
#else
      constexpr float NUMBERS[16] = {0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12};
      UNROLL
      for (int i = 0; i < W; i++) w[v][i] = NUMBERS[code[i] & 15];
      w[v] *= scale[v];
#endif
    }
  }

  // Codes minus zero of weights v * W .. of a planar run.
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
    for (int64_t line = 0; line < BYTES; line += 64) prefetch(advance(at, line + PREFETCH));
    UNROLL
    for (int v = 0; v < PER_RUN; v++) {
      const int64_t left = columns - v * W;
      w[v] = left >= W ? Type::load_all(at + v * W) : Type::load_some(at + v * W, max(left, 0));
    }
  }
};
