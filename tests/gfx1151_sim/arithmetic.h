// Arithmetic that C has no operator for, as the hardware does it.
#pragma once
#include "half.h"

static inline u32 reverse_bits(u32 x) {
  u32 r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
  return r;
}
static inline u64 field_u64(u64 a, u32 offset, u32 width) {
  return width == 0 ? 0 : width >= 64 ? a >> offset : (a >> offset) & ((1ull << width) - 1);
}
static inline u64 field_i64(i64 a, u32 offset, u32 width, u32 bits) {
  if (width == 0) return 0;
  if (offset + width >= bits) return (u64)(a >> offset);
  return (u64)((i64)((u64)a << (64 - offset - width)) >> (64 - width));
}

// Conversions saturate, and NaN becomes 0.
static inline u32 to_u32(double x) { return x >= 4294967295.0 ? 0xffffffffu : x > 0 ? (u32)x : 0; }
static inline u32 to_i32(double x) {
  return x >= 2147483647.0 ? 0x7fffffff : x <= -2147483648.0 ? 0x80000000u : x == x ? (u32)(i32)x : 0;
}
static inline u32 to_u16(float x) { return x >= 65535 ? 65535 : x > 0 ? (u32)x : 0; }
static inline u32 to_i16(float x) {
  return x >= 32767 ? 32767 : x <= -32768 ? 0x8000 : x == x ? (u32)(i32)x & 0xffff : 0;
}

static inline float clamped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }
static inline u32 norm_i16(float x) { return to_i16(rintf(clamped(x, -1, 1) * 32767)); }
static inline u32 norm_u16(float x) { return to_u16(rintf(clamped(x, 0, 1) * 65535)); }

static inline int is_signaling_f32(u32 x) { return (x & 0x7f800000) == 0x7f800000 && (x & 0x3fffff) && !(x & 0x400000); }
static inline int is_denormal_f32(u32 x) { return !(x & 0x7f800000) && (x & 0x7fffff); }
static inline u32 flush_f32(u32 x) { return is_denormal_f32(x) ? x & 0x80000000 : x; }

// minNum and maxNum of IEEE 754-2008, with -0 < +0. Signaling NaNs become quiet (IEEE mode, as kernels run).
static inline float min_f32(float a, float b) {
  u32 x = float_bits(a), y = float_bits(b);
  if (is_signaling_f32(x)) return as_float(x | 0x400000);
  if (is_signaling_f32(y)) return as_float(y | 0x400000);
  if (a == b) return as_float(x | y);
  return a < b || b != b ? a : b;
}
static inline float max_f32(float a, float b) {
  u32 x = float_bits(a), y = float_bits(b);
  if (is_signaling_f32(x)) return as_float(x | 0x400000);
  if (is_signaling_f32(y)) return as_float(y | 0x400000);
  if (a == b) return as_float(x & y);
  return a > b || b != b ? a : b;
}
static inline double min_f64(double a, double b) {
  if (a == b) return as_double(double_bits(a) | double_bits(b));
  return a < b || b != b ? a : b;
}
static inline double max_f64(double a, double b) {
  if (a == b) return as_double(double_bits(a) & double_bits(b));
  return a > b || b != b ? a : b;
}
static inline float med3_f32(float a, float b, float c) {
  if (a != a || b != b || c != c) return min_f32(min_f32(a, b), c);
  return max_f32(min_f32(a, b), min_f32(max_f32(a, b), c));
}
static inline i32 min_i32(i32 a, i32 b) { return a < b ? a : b; }
static inline i32 max_i32(i32 a, i32 b) { return a > b ? a : b; }
static inline u32 min_u32(u32 a, u32 b) { return a < b ? a : b; }
static inline u32 max_u32(u32 a, u32 b) { return a > b ? a : b; }

// The units for these flush denormals at both ends, whatever the mode.
static inline float unit_in(float x) { return as_float(flush_f32(float_bits(x))); }
static inline float unit_out(float x) { return as_float(flush_f32(float_bits(x))); }
#define TRANSCENDENTAL(name, expression) \
  static inline float name(float y) { float x = unit_in(y); return unit_out(expression); }
TRANSCENDENTAL(exp2_unit, exp2f(x))
TRANSCENDENTAL(log2_unit, log2f(x))
TRANSCENDENTAL(rcp_unit, 1.0f / x)
TRANSCENDENTAL(rsq_unit, (float)(1.0 / sqrt((double)x)))
TRANSCENDENTAL(sqrt_unit, sqrtf(x))
TRANSCENDENTAL(sin_unit, isfinite(x) ? (float)sin(6.283185307179586 * fmod((double)x, 1.0)) : NAN)
TRANSCENDENTAL(cos_unit, isfinite(x) ? (float)cos(6.283185307179586 * fmod((double)x, 1.0)) : NAN)

static inline float fract_f32(float x) { return min_f32(x - floorf(x), 0x1.fffffep-1f); }
static inline double fract_f64(double x) { return min_f64(x - floor(x), 0x1.fffffffffffffp-1); }
static inline i32 frexp_exponent(double x) { int e = 0; if (isfinite(x) && x != 0) frexp(x, &e); return e; }
static inline double frexp_mantissa(double x) { int e; return isfinite(x) ? frexp(x, &e) : x; }
static inline double ldexp_clamped(double x, i32 e) { return ldexp(x, e < -5000 ? -5000 : e > 5000 ? 5000 : e); }
static inline float ldexp_f32(float x, i32 e) { return ldexpf(x, e < -5000 ? -5000 : e > 5000 ? 5000 : e); }

static inline u32 exponent_f32(float x) { return float_bits(x) >> 23 & 255; }
static inline u32 exponent_f64(double x) { return double_bits(x) >> 52 & 2047; }
// The last step of a division a / b: the special cases, else the quotient q with the right sign.
static inline float div_fixup_f32(float q, float b, float a) {
  u32 sign = (float_bits(a) ^ float_bits(b)) & 0x80000000;
  if (a != a) return as_float(float_bits(a) | 0x400000);
  if (b != b) return as_float(float_bits(b) | 0x400000);
  if ((a == 0 && b == 0) || (isinf(a) && isinf(b))) return as_float(0xffc00000);
  if (b == 0 || isinf(a)) return as_float(sign | 0x7f800000);
  if (a == 0 || isinf(b)) return as_float(sign);
  if ((i32)exponent_f32(a) - (i32)exponent_f32(b) < -150) return as_float(sign);
  return as_float(sign | (float_bits(q) & 0x7fffffff));
}
static inline double div_fixup_f64(double q, double b, double a) {
  u64 sign = (double_bits(a) ^ double_bits(b)) & 1ull << 63;
  if (a != a) return as_double(double_bits(a) | 1ull << 51);
  if (b != b) return as_double(double_bits(b) | 1ull << 51);
  if ((a == 0 && b == 0) || (isinf(a) && isinf(b))) return as_double(0xfff8000000000000);
  if (b == 0 || isinf(a)) return as_double(sign | 0x7ff0000000000000);
  if (a == 0 || isinf(b)) return as_double(sign);
  if ((i32)exponent_f64(a) - (i32)exponent_f64(b) < -1075) return as_double(sign);
  return as_double(sign | (double_bits(q) & ~(1ull << 63)));
}
// A step of a division whose operands v_div_scale may have scaled: the scaling is undone.
static inline float div_fmas_f32(float a, float b, float c, u32 scaled) {
  float t = fmaf(a, b, c);
  return scaled ? ldexpf(t, exponent_f32(c) > 127 ? 64 : -64) : t;
}
static inline double div_fmas_f64(double a, double b, double c, u32 scaled) {
  double t = fma(a, b, c);
  return scaled ? ldexp(t, exponent_f64(c) > 1023 ? 128 : -128) : t;
}

// Which class x is in, as one bit: signaling and quiet NaN, -inf, -normal, -denormal, -0, +0, +denormal, +normal, +inf.
static inline u32 float_class(int negative, int nan, int quiet, int infinite, int zero, int denormal) {
  if (nan) return quiet ? 2 : 1;
  int kind = infinite ? 0 : zero ? 3 : denormal ? 2 : 1;
  return 1u << (negative ? 2 + kind : 9 - kind);
}
static inline u32 class_f32(float x) {
  u32 b = float_bits(x);
  return float_class(b >> 31, x != x, b >> 22 & 1, isinf(x), x == 0, is_denormal_f32(b));
}
static inline u32 class_f16(u32 h) {
  u32 magnitude = h & 0x7fff;
  return float_class(h >> 15 & 1, magnitude > 0x7c00, h >> 9 & 1, magnitude == 0x7c00, !magnitude, magnitude < 0x400);
}
static inline u32 class_f64(double x) {
  u64 b = double_bits(x);
  return float_class(b >> 63, x != x, b >> 51 & 1, isinf(x), x == 0, exponent_f64(x) == 0);
}

// Byte i of the result is byte (selector byte i) of hi:lo, a sign, 0 or 255.
static inline u32 permute_bytes(u32 hi, u32 lo, u32 selector) {
  u64 both = (u64)hi << 32 | lo;
  u32 r = 0;
  for (int i = 0; i < 4; i++) {
    u32 s = selector >> 8 * i & 255;
    u32 byte = s > 12 ? 255 : s == 12 ? 0 : s >= 8 ? (both >> (16 * (s - 8) + 15) & 1 ? 255 : 0) : both >> 8 * s & 255;
    r |= byte << 8 * i;
  }
  return r;
}
static inline u32 sad_u8(u32 a, u32 b, u32 c) {
  for (int i = 0; i < 4; i++) { i32 d = (i32)(a >> 8 * i & 255) - (i32)(b >> 8 * i & 255); c += d < 0 ? -d : d; }
  return c;
}
