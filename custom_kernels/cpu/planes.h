// W runs of weights or activations side by side: the 32-bit lane 4 L + s of a plane is four columns of run s RUNS + L, so
// that all products of a run are summed in one lane, whose scale is the run's.
#pragma once
#include "dot.h"
#include "transpose.h"

constexpr int PLANE = 4 * W;           // bytes
constexpr int OF_CHUNK = W * RUN;      // bytes of W runs of 8 bits: 8 planes
static_assert(W == 4 * RUNS);

// Which columns: NATURAL: dword p of half h; PAIRS: of the even columns (h = 0) or the odd ones; QUARTERS: 4 b + p of half
// h in byte b, as two bits lie in the bytes of a stream.
enum Order { NATURAL, PAIRS, QUARTERS };
template <class Fmt>
constexpr Order ORDER = Fmt::LAYOUT == STREAM && Fmt::BITS == 2 ? QUARTERS : ALTERNATING<Fmt> ? PAIRS : NATURAL;

// of[h][p]: four columns of each run.
struct Planes {
  I of[2][4];
};

// Codes of four steps of RUNS runs each -> planes.
INLINE void transpose(const I (&v)[4], I (&planes)[4]) {
  const I a = interleave<false>(v[0], v[2]), b = interleave<false>(v[1], v[3]);
  const I c = interleave<true>(v[0], v[2]), d = interleave<true>(v[1], v[3]);
  planes[0] = interleave<false>(a, b), planes[1] = interleave<true>(a, b);
  planes[2] = interleave<false>(c, d), planes[3] = interleave<true>(c, d);
}

// A value for each of W runs -> the lanes in which planes have the runs.
INLINE F in_lanes(F v) {
#if STRIXHLO_AVX512
  return __builtin_shufflevector(v, v, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
#elif STRIXHLO_AVX2
  return __builtin_shufflevector(v, v, 0, 2, 4, 6, 1, 3, 5, 7);
#else
  return v;
#endif
}

// Two bits a weight, 8 bytes a run.
template <bool FULL>
INLINE Planes planes_of_quarters(const uint8_t* codes, int64_t runs) {
  alignas(64) uint8_t few[8 * W] = {};
  if (!FULL)
    for (int64_t r = 0; r < runs; r++) store(few + 8 * r, load<int64_t>(codes + 8 * r));
  const uint8_t* from = FULL ? codes : few;
  const I a = load<I>(from), b = load<I>(from + 4 * W);
  Planes planes;
  UNROLL
  for (int h = 0; h < 2; h++) {
    I words;  // of each run the h-th
    UNROLL
    for (int i = 0; i < W; i++) {
      const int at = 2 * (i % 4 * RUNS + i / 4) + h;
      words[i] = at < W ? a[at] : b[at - W];
    }
    UNROLL
    for (int p = 0; p < 4; p++) planes.of[h][p] = (words >> (2 * p)) & 0x03030303;
  }
  return planes;
}

// `runs` runs of weights (FULL: W), as `dot` wants them; lanes of others are anything.
template <class Fmt, bool FULL>
INLINE Planes load_planes(const Parts& row, int64_t runs) {
  if constexpr (ORDER<Fmt> == QUARTERS) return planes_of_quarters<FULL>(row.codes, runs);
  Planes planes;
  if constexpr (NIBBLES<Fmt>) {  // cheaper before they are taken apart
    I packed[4], both[4];
    UNROLL
    for (int s = 0; s < 4; s++) {
      const uint8_t* at = row.codes + s * (4 * W);
      packed[s] = FULL ? load<I>(at) : __builtin_bit_cast(I, load_lanes(at, min(max(runs - s * RUNS, 0), RUNS)));
    }
    transpose(packed, both);
    UNROLL
    for (int p = 0; p < 4; p++) {
      const Codes codes = codes_of_nibbles<Fmt>(__builtin_bit_cast(B, both[p]));
      planes.of[0][p] = __builtin_bit_cast(I, codes.low);
      planes.of[1][p] = __builtin_bit_cast(I, codes.high);
    }
  } else {
    I low[4], high[4];
    UNROLL
    for (int s = 0; s < 4; s++) {
      const int64_t left = runs - s * RUNS;
      Codes codes = {0, 0};
      if (FULL || left >= RUNS)
        codes = load_codes<Fmt, true, true>(after<Fmt>(row, RUNS * s), RUNS);
      else if (left > 0)
        codes = load_codes<Fmt, false, true>(after<Fmt>(row, RUNS * s), left);
      low[s] = __builtin_bit_cast(I, prepared<Fmt>(codes.low));
      high[s] = __builtin_bit_cast(I, prepared<Fmt>(codes.high));
    }
    transpose(low, planes.of[0]);
    transpose(high, planes.of[1]);
  }
  return planes;
}

// Of every 16 bytes 0, 4, 8, 12, then 1, 5, ...
INLINE B in_quarters(B v) {
  B result;
  UNROLL
  for (int i = 0; i < 4 * W; i++) result[i] = v[i / 16 * 16 + i % 4 * 4 + i % 16 / 4];
  return result;
}

// `runs` runs of 8-bit activations, at most W, in the order of a format's planes; what is missing is zero.
template <class Fmt>
INLINE void store_planes(const int8_t* q, int64_t runs, int8_t* to) {
  I low[4], high[4];
  UNROLL
  for (int s = 0; s < 4; s++) {
    const int64_t left = runs - s * RUNS;
    Codes natural = {0, 0};
    if (left >= RUNS)
      natural = load_natural<true>(q + s * (RUNS * RUN), RUNS);
    else if (left > 0)
      natural = load_natural<false>(q + s * (RUNS * RUN), left);
    Codes codes = ORDER<Fmt> == PAIRS ? split_pairs(natural.low, natural.high) : split_halves(natural.low, natural.high);
    if constexpr (ORDER<Fmt> == QUARTERS) codes = {in_quarters(codes.low), in_quarters(codes.high)};
    low[s] = __builtin_bit_cast(I, codes.low);
    high[s] = __builtin_bit_cast(I, codes.high);
  }
  Planes planes;
  transpose(low, planes.of[0]);
  transpose(high, planes.of[1]);
  UNROLL
  for (int h = 0; h < 2; h++) UNROLL
  for (int p = 0; p < 4; p++) store(to + (4 * h + p) * PLANE, planes.of[h][p]);
}

// start + the products of group g of each run, x being planes of activations.
template <class Fmt>
INLINE I dot_group(I start, const Planes& w, const int8_t* x, int g) {
  const auto add = [&](I sum, int h, int p) __attribute__((always_inline)) {
    return dot<Fmt>(sum, __builtin_bit_cast(B, w.of[h][p]), load<B>(x + (4 * h + p) * PLANE));
  };
  I sum = start;
  if constexpr (Fmt::GROUPS == 1) {
    I other = 0;
    UNROLL
    for (int p = 0; p < 4; p++) sum = add(sum, 0, p), other = add(other, 1, p);
    return sum + other;
  } else if constexpr (ORDER<Fmt> == PAIRS) {
    UNROLL
    for (int p = 2 * g; p < 2 * g + 2; p++) sum = add(add(sum, 0, p), 1, p);
  } else {
    UNROLL
    for (int p = 0; p < 4; p++) sum = add(sum, g, p);
  }
  return sum;
}

// Whether the zero of the codes leaves the integers as they are multiplied: exactly, and for all weight rows once.
template <class Fmt>
constexpr bool HOLDS_ZEROS = zero_of<Fmt>() != 0 && !Fmt::MINIMUM;

// Whether the products of a group with three digits would not fit 32 bits, so that the highest one is summed apart.
template <class Fmt>
constexpr bool group_overflows() {
  const int largest = Fmt::LAYOUT == FP4 ? 24 : (1 << Fmt::BITS) - 1, zero = HOLDS_ZEROS<Fmt> ? zero_of<Fmt>() : 0;
  return max(zero, largest - zero) * Fmt::GROUP > 256;
}
template <class Fmt, int DIGITS>
constexpr bool TOP_APART = DIGITS > 1 && group_overflows<Fmt>();

// Whole numbers, top * 2^16 + rest.
struct Whole {
  I top, rest;
};

// The products of group g with activations of one digit of 8 bits or three, the highest first.
template <class Fmt, int DIGITS>
INLINE Whole whole_products(Whole start, const Planes& w, const int8_t* x, int g) {
  if constexpr (DIGITS == 1) return {start.top, dot_group<Fmt>(start.rest, w, x, g)};
  const I middle = dot_group<Fmt>(I(0), w, x + OF_CHUNK, g), last = dot_group<Fmt>(start.rest, w, x + 2 * OF_CHUNK, g);
  const I rest = (middle << 8) + last;  // none waits for another one
  if constexpr (TOP_APART<Fmt, DIGITS>) return {dot_group<Fmt>(start.top, w, x, g), rest};
  return {start.top, (dot_group<Fmt>(I(0), w, x, g) << 16) + rest};
}

// What the zero adds to those sums, for all groups: as many planes.
template <class Fmt, int DIGITS>
constexpr int ZERO_PLANES = HOLDS_ZEROS<Fmt> ? Fmt::GROUPS * (TOP_APART<Fmt, DIGITS> ? 2 : 1) : 0;

template <class Fmt, int DIGITS>
INLINE void store_zeros(const int8_t* x, int8_t* to) {
  if constexpr (HOLDS_ZEROS<Fmt>) {
    Planes zero;
    UNROLL
    for (int h = 0; h < 2; h++) UNROLL
    for (int p = 0; p < 4; p++) zero.of[h][p] = __builtin_bit_cast(I, B(zero_of<Fmt>()));
    UNROLL
    for (int g = 0; g < Fmt::GROUPS; g++) {
      const Whole whole = whole_products<Fmt, DIGITS>({I(0), I(0)}, zero, x, g);
      store(to + g * PLANE, -whole.rest);
      if constexpr (TOP_APART<Fmt, DIGITS>) store(to + (Fmt::GROUPS + g) * PLANE, -whole.top);
    }
  }
}
template <class Fmt, int DIGITS>
INLINE Whole load_zeros(const int8_t* from, int g) {
  if constexpr (!HOLDS_ZEROS<Fmt>) return {I(0), I(0)};
  const I rest = load<I>(from + g * PLANE);
  if constexpr (TOP_APART<Fmt, DIGITS>) return {load<I>(from + (Fmt::GROUPS + g) * PLANE), rest};
  return {I(0), rest};
}
