// NVIDIA's matrix units on bytes, as one wave sees them: 16 rows of 32 (or 16) codes times 8 columns of signed bytes, summed
// as integers (PTX ISA, "Matrix Fragments for mma.m16n8k32", "...m16n8k16"), and the loads that give the left factor. On the
// CPU, for tests, the same by shuffles.
#pragma once

#include "mma.h"

// Lane 4 g + t holds of the left factor places 4 t to 4 t + 3 of rows g and g + 8, then those 16 places further on; of the
// right one the same places of column g; of the sums what `Products` has.
struct Counts {
  i32 of[4];
};

#if defined(__NVPTX__)

// SIGNED: whether the left factor's bytes are.
template <bool SIGNED>
DEVICE void multiply_bytes(const u32 (&a)[4], u32 b0, u32 b1, Counts& c) {
  if constexpr (SIGNED) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c.of[0]), "+r"(c.of[1]), "+r"(c.of[2]), "+r"(c.of[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c.of[0]), "+r"(c.of[1]), "+r"(c.of[2]), "+r"(c.of[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
// Of 16 places: a0 and a1 of rows g and g + 8.
template <bool SIGNED>
DEVICE void multiply_bytes(u32 a0, u32 a1, u32 b, Counts& c) {
  if constexpr (SIGNED) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c.of[0]), "+r"(c.of[1]), "+r"(c.of[2]), "+r"(c.of[3])
        : "r"(a0), "r"(a1), "r"(b));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c.of[0]), "+r"(c.of[1]), "+r"(c.of[2]), "+r"(c.of[3])
        : "r"(a0), "r"(a1), "r"(b));
  }
}

// Of rows of `stride` bytes word t of 16 bytes: `first` of row g, of row g + 8, `second` of row g, of row g + 8.
DEVICE void load_words_of_rows(const LOCAL u8* rows, u32 stride, u32 first, u32 second, u32 (&words)[4]) {
  const u32 lane = lane_id(), at = (u32)(u64)rows + lane % 16 * stride + (lane / 16 ? second : first);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(at)
               : "memory");
}

// Loads from AT bytes on where it is `mine`; else `held` stays.
template <u32 AT>
DEVICE void load_if(bool mine, const LOCAL u8* from, u32x4& held) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4+%6];}"
               : "+r"(held[0]), "+r"(held[1]), "+r"(held[2]), "+r"(held[3])
               : "r"((u32)(u64)from), "r"((u32)mine), "n"(AT)
               : "memory");
}
template <u32 AT>
DEVICE void load_if(bool mine, const LOCAL u8* from, u32x2& held) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p ld.shared.v2.u32 {%0, %1}, [%2+%4];}"
               : "+r"(held[0]), "+r"(held[1])
               : "r"((u32)(u64)from), "r"((u32)mine), "n"(AT)
               : "memory");
}

// Byte I of each of four words.
template <u32 I>
DEVICE u32 gather_bytes(const u32 (&words)[4]) {
  const u32 low = (u32)__nvvm_prmt((i32)words[0], (i32)words[1], (i32)(I * 0x11 + 0x40));
  const u32 high = (u32)__nvvm_prmt((i32)words[2], (i32)words[3], (i32)(I * 0x11 + 0x40));
  return (u32)__nvvm_prmt((i32)low, (i32)high, 0x5410);
}

#else

template <bool SIGNED>
DEVICE i32 code_at(u32 word, u32 i) {
  const u32 byte = word >> (8 * i) & 255u;
  return SIGNED ? (i32)(i8)byte : (i32)byte;
}
template <bool SIGNED, u32 HALVES>
static inline __attribute__((noinline)) void add_products_of_bytes(const u32* a, const u32* b, Counts& c) {
  const u32 g = lane_id() / 4, t = lane_id() % 4;
  for (u32 from = 0; from < 4; from++) {
    for (u32 half = 0; half < HALVES; half++) {
      u32 left[2], right[2];
      for (u32 r = 0; r < 2; r++) left[r] = shuffle_bits(a[2 * half + r], 4 * g + from);
      for (u32 e = 0; e < 2; e++) right[e] = shuffle_bits(b[half], 4 * (2 * t + e) + from);
      for (u32 i = 0; i < 16; i++) {
        c.of[i / 4] += code_at<SIGNED>(left[i / 8], i % 4) * code_at<true>(right[i / 4 % 2], i % 4);
      }
    }
  }
}
template <bool SIGNED>
DEVICE void multiply_bytes(const u32 (&a)[4], u32 b0, u32 b1, Counts& c) {
  const u32 b[2] = {b0, b1};
  add_products_of_bytes<SIGNED, 2>(a, b, c);
}
template <bool SIGNED>
DEVICE void multiply_bytes(u32 a0, u32 a1, u32 b, Counts& c) {
  const u32 a[2] = {a0, a1};
  add_products_of_bytes<SIGNED, 1>(a, &b, c);
}
DEVICE void load_words_of_rows(const LOCAL u8* rows, u32 stride, u32 first, u32 second, u32 (&words)[4]) {
  const u32 g = lane_id() / 4, t = lane_id() % 4;
  for (u32 i = 0; i < 4; i++) words[i] = *(const LOCAL u32*)(rows + (g + i % 2 * 8) * stride + (i / 2 ? second : first) + 4 * t);
}
template <u32 AT, class T>
DEVICE void load_if(bool mine, const LOCAL u8* from, T& held) { held = mine ? *(const LOCAL T*)(from + AT) : held; }
template <u32 I>
DEVICE u32 gather_bytes(const u32 (&words)[4]) {
  u32 bytes = 0;
  for (u32 i = 0; i < 4; i++) bytes |= (words[i] >> (8 * I) & 255u) << (8 * i);
  return bytes;
}

#endif
