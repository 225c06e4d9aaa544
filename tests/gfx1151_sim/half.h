// float16 and bfloat16 as bits.
#pragma once
#include "machine.h"

static inline float half_to_float(u32 h) { _Float16 x; u16 b = (u16)h; memcpy(&x, &b, 2); return (float)x; }
static inline u32 float_to_half(float f) { _Float16 x = (_Float16)f; u16 b; memcpy(&b, &x, 2); return b; }
static inline float bfloat_to_float(u32 b) { return as_float(b << 16); }
static inline u32 float_to_bfloat(float f) {  // nearest even
  u32 u = float_bits(f);
  return f != f ? (u >> 16) | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
// Towards zero; too large values become the largest finite one.
static inline u32 float_to_half_towards_zero(float f) {
  u32 h = float_to_half(f);
  if ((h & 0x7fff) == 0 || f != f) return h;
  if ((h & 0x7fff) == 0x7c00) return isinf(f) ? h : (h & 0x8000) | 0x7bff;
  return fabsf(half_to_float(h)) > fabsf(f) ? h - 1 : h;
}
// a * b + c, rounded once: the sum in double is made odd when inexact, so that the second rounding is harmless.
static inline u32 half_fma(float a, float b, float c) {
  double p = (double)a * b, s = p + c, t = s - p, error = (p - (s - t)) + (c - t);
  u64 bits = double_bits(s);
  if (error != 0 && isfinite(s) && !(bits & 1)) bits += ((error > 0) == (s > 0)) ? 1 : -1;
  _Float16 x = (_Float16)as_double(bits);
  u16 h;
  memcpy(&h, &x, 2);
  return h;
}
