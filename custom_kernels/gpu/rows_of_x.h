// Rows of x as the columns of stripes.h. Each piece of 128 numbers is multiplied by a power of two that its largest
// decides. For whole codes it becomes whole numbers below 2^21, as three signed bytes, of float16 and bfloat16 below
// 2^14, as two: that is x to 2^-21, and to 2^-14, of its piece's largest. For float16 codes the largest comes below
// 2^15, and x is a float16 number (the first term) and what is left (the second): x to 22 bits, or to 2^-40 of its
// piece's largest; a float16 or bfloat16 number is its first term. A piece of numbers from 2^117 on may give infinity;
// of one that has an infinity nothing else is kept, and one that has a NaN is NaN.
#pragma once

#include "stripes.h"

DEVICE u32 larger(u32 a, u32 b) { return a > b ? a : b; }

// The largest of each half of a wave.
DEVICE u32 largest_of_half(u32 value) {
  const bool upper = lane_id() >= WAVE / 2;
  const u32 low = largest_of_wave(upper ? 0u : value), high = largest_of_wave(upper ? value : 0u);
  return upper ? high : low;
}

// The larger magnitude, and NaN if either is.
DEVICE f32 larger_magnitude(f32 a, f32 b) {
#if defined(__NVPTX__)
  return __nvvm_fmax_nan_f(__builtin_fabsf(a), __builtin_fabsf(b));
#else
  const u32 of_a = __builtin_bit_cast(u32, a) & 0x7fffffffu, of_b = __builtin_bit_cast(u32, b) & 0x7fffffffu;
  return __builtin_bit_cast(f32, larger(of_a, of_b));
#endif
}

// A row's eight numbers of a lane, times `factor`, as its codes are ordered, into local memory.
//
// Whole numbers: 2^23 + 2^22 is added, so that the sum is rounded to one, and 0x8080, so that the lowest two bytes are
// signed bytes once their top bit is turned; the third one has seven bits, and is stored twice as large.
template <class S>
DEVICE void put_bytes(LOCAL u8* to, const f32 (&v)[8], f32 factor) {
  constexpr f32 MAGIC_NUMBER = 12582912.0f + 0x8080;
  u32 digits[3][2];
  UNROLL for (u32 i = 0; i < 2; i++) {
    u32 words[4];
    UNROLL for (u32 c = 0; c < 4; c++) {
      const u32 from = S::C::ORDER == EVEN_ODD ? 2 * c + i : 4 * i + c;
      words[c] = __builtin_bit_cast(u32, multiply_add(v[from], factor, MAGIC_NUMBER));
    }
    digits[0][i] = gather_bytes<0>(words) ^ 0x80808080u;
    digits[1][i] = gather_bytes<1>(words) ^ 0x80808080u;
    if constexpr (S::WIDE) digits[2][i] = ((gather_bytes<2>(words) << 1) & 0xfefefefeu) ^ 0x80808080u;
  }
  if constexpr (S::WIDE) {
    *(LOCAL u32x4*)to = (u32x4){digits[2][0], digits[2][1], digits[0][0], digits[0][1]};
    *(LOCAL u32x4*)(to + S::OF_COLUMN) = (u32x4){digits[1][0], digits[1][1], digits[0][0], digits[0][1]};
  } else {
    *(LOCAL u32x2*)to = (u32x2){digits[1][0], digits[1][1]};
    *(LOCAL u32x2*)(to + S::OF_COLUMN) = (u32x2){digits[0][0], digits[0][1]};
  }
}
template <class S>
DEVICE void put_halves(LOCAL u8* to, const f32 (&v)[8], f32 factor) {
  u32x4 terms[2];
  UNROLL for (u32 p = 0; p < 4; p++) {
    const u32 a = S::C::ORDER == NEIGHBOURS ? p : S::C::ORDER == ADJACENT ? 2 * p : p / 2 * 4 + p % 2;
    const u32 b = a + (S::C::ORDER == NEIGHBOURS ? 4 : S::C::ORDER == ADJACENT ? 1 : 2);
    const f32 low = v[a] * factor, high = v[b] * factor;
    terms[0][p] = half_pair(low, high);
    if constexpr (S::WIDE) terms[1][p] = half_pair(low - low_half(terms[0][p]), high - high_half(terms[0][p]));
  }
  *(LOCAL u32x4*)to = terms[0];
  if constexpr (S::WIDE) *(LOCAL u32x4*)(to + S::OF_COLUMN) = terms[1];
}

// What lane `place` of four multiplies of block `block` of piece `piece` of what is in local memory, of row `row`: four
// columns, and four more, if they are `there`. Half a wave has a piece, and the wave meets.
template <class S>
DEVICE void put_x(u32 row, u32 piece, u32 block, u32 place, f32x4 four, f32x4 more, bool there) {
  using C = S::C;
  constexpr u32 INFINITE = 0x7f800000u;
  // Exponents that leave `unit` and `factor` one.
  constexpr u32 SMALLEST = S::INTEGER ? 21u << 23 : 24u << 23;
  constexpr u32 LARGEST = S::INTEGER ? INFINITE : (268u - C::EXPONENT) << 23;
  constexpr u32 BEFORE = S::INTEGER ? S::WIDE ? 274 : 267 : 268;
  f32 v[8] = {four[0], four[1], four[2], four[3], more[0], more[1], more[2], more[3]};
  f32 most = 0.0f;
  UNROLL for (u32 c = 0; c < 8; c++) most = larger_magnitude(most, v[c]);
  const u32 largest = largest_of_half(__builtin_bit_cast(u32, most)), found = largest & INFINITE;
  const u32 exponent = larger(smaller(found, LARGEST), SMALLEST);
  constexpr u32 APART = S::INTEGER ? (S::WIDE ? 12 : 13) + C::EXPONENT : 14 - C::EXPONENT;
  u32 factor = (BEFORE << 23) - exponent, unit = exponent - (APART << 23);
  if (found == INFINITE) {
    factor = 127u << 23;
    unit = largest;  // infinity or NaN
    UNROLL for (u32 c = 0; c < 8; c++) {
      const bool infinite = (__builtin_bit_cast(u32, v[c]) & 0x7fffffffu) == INFINITE;
      v[c] = infinite ? __builtin_copysignf(1.0f, v[c]) : 0.0f;
    }
  }
  if (there && lane_id() % (WAVE / 2) == 0) S::unit(piece, row) = __builtin_bit_cast(f32, unit);
  const u32 of_block = piece * BLOCKS + block;
  if constexpr (S::W::MINIMUM) {
    const f32x4 given[2] = {four, more};
    f32 total[2];
    UNROLL for (u32 i = 0; i < 2; i++) total[i] = (given[i][0] + given[i][1]) + (given[i][2] + given[i][3]);
    if constexpr (S::GROUPS == 1) total[0] += total[1];
    UNROLL for (u32 s = 0; s < S::GROUPS; s++) {
      UNROLL for (u32 mask = 1; mask < 4; mask *= 2) total[s] += shuffle(total[s], lane_id() ^ mask);
      if (there && place == 0) S::sum_of_x(of_block, s, row) = total[s];
    }
  }
  if (!there) return;
  LOCAL u8* to = S::x_of(of_block, row) + place * S::OF_PLACE;
  if constexpr (S::INTEGER) {
    put_bytes<S>(to, v, __builtin_bit_cast(f32, factor));
  } else {
    put_halves<S>(to, v, __builtin_bit_cast(f32, factor));
  }
}

// What was loaded is asked for here, not later: the compiler would move loads of what nobody writes to where they are
// needed.
#if defined(__NVPTX__)
DEVICE void asked(u32x4& v) { asm volatile("" : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3])); }
DEVICE void asked(u32x2& v) { asm volatile("" : "+r"(v[0]), "+r"(v[1])); }
#else
DEVICE void asked(u32x4&) {}
DEVICE void asked(u32x2&) {}
#endif
DEVICE void asked(f32x4& v) {
  u32x4 bits = __builtin_bit_cast(u32x4, v);
  asked(bits);
  v = __builtin_bit_cast(f32x4, bits);
}
DEVICE void asked(f16x4& v) {
  u32x2 bits = __builtin_bit_cast(u32x2, v);
  asked(bits);
  v = __builtin_bit_cast(f16x4, bits);
}

// Puts what the stages of a wave take of the first m rows of x into local memory; zeros where k ends. At: load(row, i),
// float4 number i of row `row`, of a row that is there, as `Raw`; finish(raw, row, i), as numbers.
//
// Half a wave has a piece. Which one depends on the piece alone, and pieces come in their order, so that what a thread
// adds up of a row, and the sum of all threads, is the same for any number of rows; only halves of a wave may change
// places.
template <class S, class At>
struct PutRows {
  using C = S::C;
  using Raw = At::Raw;
  static constexpr u32 M = S::M, OF_PIECE = PIECE / 8;
  static constexpr bool APART = C::ORDER == LINEAR || C::ORDER == ADJACENT;  // a lane's columns
  // A chunk of a piece a wave: half a wave has even rows, the other one odd ones.
  static constexpr bool BY_ROWS = S::CHUNK * S::TOGETHER == 1;
  static constexpr u32 OF_Z = S::TOGETHER == 2 ? 1 : 2;  // stages that both halves have at a time
  // Whose loads are under way together.
  static constexpr u32 ROWS = M < 4 ? M : 4, MOST = (sizeof(Raw) <= 16 ? 8 : 4) / ROWS;
  static constexpr u32 PIECES = BY_ROWS || MOST == 0 ? 1 : MOST;
  static constexpr u32 STAGES = PIECES * OF_Z;
  static constexpr bool EARLY = M <= 4 && !BY_ROWS;
  struct Held {
    Raw of[PIECES][ROWS][2];
  };
  At at;
  u32 m, k;

  // What a thread has of a piece: its number in local memory, a lane's columns as float4s.
  struct Item {
    u32 piece, block, of_x;
    bool there, inside;
  };
  MEMBER Item item_of(u32 first, u32 z, u32 until) const {
    const u32 j = lane_id() % OF_PIECE, half = lane_id() / OF_PIECE;
    const u32 piece = ((z - first) * S::SHARING + wave_id()) * S::TOGETHER + (S::TOGETHER == 2 ? half : 0);
    const u32 block = S::block_of_x(first, piece, j / 4);
    return {piece, j / 4, block * 8 + j % 4 * (APART ? 1 : 2), z < until, block < k / BLOCK};
  }
  MEMBER u32 stage(u32 z, u32 i) const { return z + i * OF_Z + (OF_Z == 2 ? lane_id() / OF_PIECE : 0); }
  MEMBER void load(const Item& item, u32 row, Raw (&v)[2]) {
    UNROLL for (u32 h = 0; h < 2; h++) {
      if (item.there && item.inside && row < m) v[h] = at.load(row, item.of_x + (APART ? 4 * h : h));
      asked(v[h]);
    }
  }
  MEMBER void put(const Item& item, u32 row, const Raw (&raw)[2]) {
    f32x4 v[2] = {};
    UNROLL for (u32 h = 0; h < 2; h++) {
      if (item.there && item.inside && row < m) v[h] = at.finish(raw[h], row, item.of_x + (APART ? 4 * h : h));
    }
    put_x<S>(row, item.piece, item.block, lane_id() % 4, v[0], v[1], item.there && row < m);
  }

  MEMBER void by_rows(u32 first, u32 until) {
    const u32 half = lane_id() / OF_PIECE ^ first % 2;
    const Item item = item_of(first, first, until);
    UNROLL for (u32 start = 0; start < M; start += 2 * ROWS) {
      if (start >= m) continue;
      Raw v[ROWS][2] = {};
      UNROLL for (u32 r = 0; r < ROWS; r++) {
        UNROLL for (u32 s = 0; s < 2; s++) {  // rows as constants
          if (half == s) load(item, start + 2 * r + s, v[r]);
        }
      }
      UNROLL for (u32 r = 0; r < ROWS; r++) {
        f32x4 four[2] = {};
        UNROLL for (u32 s = 0; s < 2; s++) {
          if (half == s && item.there && item.inside && start + 2 * r + s < m) {
            UNROLL for (u32 h = 0; h < 2; h++) {
              four[h] = at.finish(v[r][h], start + 2 * r + s, item.of_x + (APART ? 4 * h : h));
            }
          }
        }
        const u32 row = start + 2 * r + half;
        put_x<S>(row, item.piece, item.block, lane_id() % 4, four[0], four[1], item.there && row < m);
      }
    }
  }

  // Of rows `start` to start + ROWS - 1, and of those pieces that count: `begin` to `end` - 1.
  MEMBER void load(u32 z, u32 until, Held& held, u32 start = 0, u32 begin = 0, u32 end = PIECES) {
    UNROLL for (u32 i = 0; i < PIECES; i++) {
      if (i < begin || i >= end) continue;
      UNROLL for (u32 r = 0; r < ROWS; r++) {
        UNROLL for (u32 h = 0; h < 2; h++) held.of[i][r][h] = Raw{};
        load(item_of(0, stage(z, i), until), start + r, held.of[i][r]);
      }
    }
  }
  MEMBER void put(u32 first, u32 z, u32 until, const Held& held, u32 start = 0, u32 begin = 0, u32 end = PIECES) {
    UNROLL for (u32 i = 0; i < PIECES; i++) {
      if (i < begin || i >= end || z + i * OF_Z >= until) continue;  // the same for the whole wave
      const Item item = item_of(first, stage(z, i), until);
      UNROLL for (u32 r = 0; r < ROWS; r++) {
        if (start + r < m) put(item, start + r, held.of[i][r]);
      }
    }
  }
  // Fewer at a time: the registers are not free for more then.
  MEMBER void load_and_put(u32 first, u32 z, u32 until) {
#if defined(__NVPTX__)
    asm volatile("" : "+r"(z));  // addresses are made here: else they wait in registers while the wave multiplies
#endif
    if constexpr (BY_ROWS) {
      by_rows(first, until);
    } else {
      constexpr u32 AT_ONCE = PIECES > 1 ? PIECES / 2 : 1;
      UNROLL for (u32 begin = 0; begin < PIECES; begin += AT_ONCE) {
        UNROLL for (u32 start = 0; start < M; start += ROWS) {
          if (start >= m || z + begin * OF_Z >= until) continue;
          Held held;
          load(z, until, held, start, begin, begin + AT_ONCE);
          put(first, z, until, held, start, begin, begin + AT_ONCE);
        }
      }
    }
  }
};

// Rows of x as they are.
template <class X>
struct RowsOfX {
  using Raw = Four<X>;
  const GLOBAL X* x;
  u32 k;
  MEMBER Raw load(u32 row, u32 i) const { return ask4(x, (u64)row * (k / 4) + i); }
  MEMBER f32x4 finish(Raw raw, u32, u32) const { return widen4(raw); }
};
