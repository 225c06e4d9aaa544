// What a wave of register_gemm.h keeps under way for itself: codes, and with them the scales that lie side by side, a
// stage of 16 rows and 128 columns at a time, stripe by stripe, then the stripes of its next piece of columns.
//
// Pointers move from stage to stage, and how many rows a stripe has left is known by its number: addresses cost
// instructions.
#pragma once

#include "async_copy.h"
#include "code_pairs.h"
#include "stripe.h"
#include "stripe_scales.h"

// Of a piece of a row: ARRAYS of scales and minima, EACH bytes of each that lie side by side. EACH 0: they do not, or
// are too few bytes for a copy, and lanes load them.
template <class W>
struct ScalesBeside {
  static constexpr u32 EACH = 0, ARRAYS = 0;
};
template <u32 BITS, u32 GROUP, u32 ZERO, bool HAS_MINIMUM>
struct ScalesBeside<Quantized<BITS, GROUP, ZERO, HAS_MINIMUM, 0>> {
  static constexpr u32 EACH = 256 / GROUP, ARRAYS = HAS_MINIMUM ? 2 : 1;
};
template <u32 BITS, u32 GROUP, class S, class B>
struct ScalesBeside<Affine<BITS, GROUP, S, B>> {
  static constexpr u32 BYTES = sizeof(S) * 128 / GROUP, ARRAYS = 2;
  static constexpr u32 EACH = sizeof(S) == sizeof(B) && BYTES >= 4 ? BYTES : 0;
};
template <bool NVIDIA>
struct ScalesBeside<Fp4<NVIDIA>> {
  static constexpr u32 EACH = NVIDIA ? 8 : 4, ARRAYS = 1;
};
template <>
struct ScalesBeside<Fp8<BLOCKS_OF_32>> {
  static constexpr u32 EACH = 4, ARRAYS = 1;
};

template <class W, class C, u32 STRIPES, u32 WAVES, bool PAIRED>
struct RegisterFeed {
  // Rows of a tensor in a stripe. Whole rows to a copy, or, where those are not 64 or 128 bytes, all chunks of a row by
  // two lanes.
  static constexpr u32 ROWS = PAIRED ? STRIPE / 2 : STRIPE, HIGH = C::CHUNKS - C::FIRST;
  static constexpr bool EVEN = C::CHUNKS == 4 || C::CHUNKS == 8;
  static constexpr u32 OF_COPY = EVEN ? WAVE / C::CHUNKS : STRIPE, COPIES = (C::CHUNKS + 1) / 2;
  static constexpr u32 STARTS = EVEN && PAIRED ? 2 : 1;
  using Beside = ScalesBeside<W>;
  static constexpr u32 EACH = Beside::EACH, ARRAYS = Beside::ARRAYS, SCALES_AT = STRIPE * C::STRIDE;
  static constexpr bool SCALED = EACH != 0;
  static constexpr u32 STAGE = SCALES_AT + STRIPE * ARRAYS * EACH;  // bytes of local memory

  const GLOBAL u8* codes[STARTS];  // of rows 0 to 7 and 8 to 15, if those are of two tensors
  const GLOBAL u8* high;
  const GLOBAL u8* scales;
  u32 of_row, of_high, of_scales;   // bytes of a row
  u32 rows, scaled;                 // there from the lane's first row on: with codes, with scales
  u32 to, to_scales;                // where in a stage the lane's copies go

  // first_a: of the first tensor's rows in the tile, end_a: of all of them; first_b, end_b: of rows 8 to 15's.
  MEMBER void start(const W& a, const W& b, u32 first_a, u32 end_a, u32 first_b, u32 end_b, u32 k, u32 piece) {
    const u32 lane = lane_id();
    const u32 row = EVEN ? lane / C::CHUNKS : lane % STRIPE, chunk = EVEN ? lane % C::CHUNKS : lane / STRIPE;
    const auto place = [&](u32 of) __attribute__((always_inline)) { return of < 8 ? first_a + of : first_b + of - 8; };
    const auto left = [&](u32 of) __attribute__((always_inline)) {
      const u32 end = of < 8 ? end_a : end_b, at = place(of);
      return at < end ? end - at : 0u;
    };
    of_row = k / 8 * C::FIRST;
    of_high = k / 8 * HIGH;
    UNROLL for (u32 i = 0; i < STARTS; i++) {
      const u32 first = row + 8 * i;
      const W& tensor = first < 8 ? a : b;
      const u64 at = (u64)place(first) * of_row + piece * (C::FIRST * 16) + chunk * 16;
      codes[i] = (const GLOBAL u8*)tensor.parts.codes + at;
    }
    if constexpr (HIGH > 0) {
      const W& tensor = row < 8 ? a : b;
      high = (const GLOBAL u8*)tensor.parts.high + ((u64)place(row) * of_high + piece * (HIGH * 16) + chunk * 16);
    }
    rows = left(row);
    to = row * C::STRIDE + chunk * 16;
    if constexpr (SCALED) {
      const u32 of = lane % STRIPE, array = ARRAYS == 2 ? lane / STRIPE : 0;
      const W& tensor = of < 8 ? a : b;
      const GLOBAL u8* const from = (const GLOBAL u8*)(array ? tensor.parts.minimum : tensor.parts.scale);
      of_scales = k / PIECE * EACH;
      scales = from + ((u64)place(of) * of_scales + piece * EACH);
      scaled = left(of);
      to_scales = (of * ARRAYS + array) * EACH;
    }
  }

  // Copies to a stage of what the pointers are at: stripe `s`. Rows that are not there become zeros.
  MEMBER void ask(u32 s, LOCAL u8* stage) const {
    copies<0>(s, stage + to);
    if constexpr (SCALED) copy_row_async<EACH, SCALES_AT>(stage + to_scales, scales, scaled, s * ROWS);
  }
  template <u32 I>
  MEMBER void copies(u32 s, LOCAL u8* at) const {
    if constexpr (I < COPIES) {
      if constexpr (EVEN) {
        constexpr u32 START = STARTS == 2 ? I / (COPIES / 2) : 0, LATER = I % (COPIES / STARTS) * OF_COPY;
        copy_row_async<16, I * OF_COPY * C::STRIDE>(at, codes[START] + LATER * of_row, rows, s * ROWS + LATER);
      } else {
        const GLOBAL u8* from = codes[0] + I * 32;
        if (HIGH > 0 && 2 * I >= C::FIRST) from = high + (2 * I - C::FIRST) * 16;
        if (2 * I + 1 < C::CHUNKS || lane_id() < STRIPE) copy_row_async<16, I * 32>(at, from, rows, s * ROWS);
      }
      copies<I + 1>(s, at);
    }
  }

  // On to the next stage: of the next stripe, or, after the `last`, of the first one and the wave's next piece, from the
  // first columns on where it would be behind the last ones: `round`.
  MEMBER void next(bool last, bool round) {
    UNROLL for (u32 i = 0; i < STARTS; i++) codes[i] += moved(last, round, of_row, C::FIRST * 16);
    if constexpr (HIGH > 0) high += moved(last, round, of_high, HIGH * 16);
    if constexpr (SCALED) scales += moved(last, round, of_scales, EACH);
  }
  DEVICE long long moved(bool last, bool round, u32 row, u32 piece) {
    if (!last) return (long long)(ROWS * row);
    return (long long)(WAVES * piece) - (long long)((STRIPES - 1) * ROWS * row + (round ? row : 0));
  }

  // Scales of a row of a stage, as `ask` of stripe_scales.h leaves them.
  DEVICE void load_scales(const LOCAL u8* stage, u32 row, SpanScales<W>& found) {
    const LOCAL u32* from = (const LOCAL u32*)(stage + SCALES_AT + row * (ARRAYS * EACH));
    u32 words[ARRAYS * EACH / 4];
    load_words(from, words);
    UNROLL for (u32 i = 0; i < EACH / 4; i++) {
      found.scale.words[i] = words[i];
      if constexpr (ARRAYS == 2) found.minimum.words[i] = words[EACH / 4 + i];
    }
  }
  template <u32 COUNT>
  DEVICE void load_words(const LOCAL u32* from, u32 (&words)[COUNT]) {
    if constexpr (COUNT >= 4) {
      UNROLL for (u32 i = 0; i < COUNT / 4; i++) {
        const u32x4 v = ((const LOCAL u32x4*)from)[i];
        UNROLL for (u32 j = 0; j < 4; j++) words[4 * i + j] = v[j];
      }
    } else if constexpr (COUNT == 2) {
      const u32x2 v = *(const LOCAL u32x2*)from;
      words[0] = v[0], words[1] = v[1];
    } else {
      words[0] = *from;
    }
  }
};
