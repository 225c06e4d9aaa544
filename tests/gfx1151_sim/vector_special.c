// Vector instructions that look across lanes, carry, or divide; and DPP.
#include "vector_special.h"
#include "arithmetic.h"
#include "vector.h"

int run_no_operation(wave *w, const instruction *i) { (void)w, (void)i; return NEXT; }

// A source that is the same in all lanes: an SGPR, a constant; of a VGPR, lane `lane`.
static u32 scalar_source(const wave *w, const instruction *i, int k, u32 lane) {
  u64 buffer[LANES];
  return ((const u32 *)fetch(w, i, k, 'U', buffer, NULL))[lane];
}
int run_readfirstlane(wave *w, const instruction *i) {
  u32 exec = w->s[EXEC];
  write_scalar(w, i->result, scalar_source(w, i, 0, exec ? (u32)__builtin_ctz(exec) : 0));
  return NEXT;
}
int run_readlane(wave *w, const instruction *i) {
  u32 lane = scalar_source(w, i, 1, 0) & 31;
  write_scalar(w, i->result, scalar_source(w, i, 0, lane));
  return NEXT;
}
int run_writelane(wave *w, const instruction *i) {
  w->v[i->result][scalar_source(w, i, 1, 0) & 31] = scalar_source(w, i, 0, 0);
  return NEXT;
}

// ---------------------------------------------------------------- carry
// source[2] is the mask of carries in, NULL_REG when there are none.
static int carry(wave *w, const instruction *i, int add, int reversed) {
  u64 buffers[2][LANES];
  u32 result[LANES], out = 0, in = i->source[2] == NULL_REG ? 0 : w->s[i->source[2]], exec = w->s[EXEC];
  u32 permuted[LANES];
  if (i->dpp_kind && dpp_source(w, i, permuted, &exec)) return FAULT;
  const u32 *a = fetch(w, i, 0, 'U', buffers[0], i->dpp_kind ? permuted : NULL), *b = fetch(w, i, 1, 'U', buffers[1], NULL);
  if (reversed) { const u32 *t = a; a = b; b = t; }
  for (int l = 0; l < LANES; l++) {
    u64 t = add ? (u64)a[l] + b[l] + (in >> l & 1) : (u64)a[l] - b[l] - (in >> l & 1);
    result[l] = (u32)t;
    out |= (u32)(t >> 32 & 1) << l;
  }
  blend(w->v[i->result], result, exec);
  write_scalar(w, i->mask_result, out & exec);
  return NEXT;
}
int run_add_carry(wave *w, const instruction *i) { return carry(w, i, 1, 0); }
int run_subtract_carry(wave *w, const instruction *i) { return carry(w, i, 0, 0); }
int run_subtract_reversed_carry(wave *w, const instruction *i) { return carry(w, i, 0, 1); }

static int multiply_add_64(wave *w, const instruction *i, int is_signed) {
  u64 buffers[3][LANES], result[LANES];
  u32 out = 0;
  const u32 *a = fetch(w, i, 0, 'U', buffers[0], NULL), *b = fetch(w, i, 1, 'U', buffers[1], NULL);
  const u64 *c = fetch(w, i, 2, is_signed ? 'L' : 'Q', buffers[2], NULL);
  for (int l = 0; l < LANES; l++) {
    u64 product = is_signed ? (u64)((i64)(i32)a[l] * (i32)b[l]) : (u64)a[l] * b[l];
    result[l] = product + c[l];
    u32 overflow = is_signed ? (~(product ^ c[l]) & (product ^ result[l])) >> 63 : result[l] < product;
    out |= overflow << l;
  }
  finish(w, i, 'Q', result, w->s[EXEC]);
  write_scalar(w, i->mask_result, out & w->s[EXEC]);
  return NEXT;
}
int run_mad_u64_u32(wave *w, const instruction *i) { return multiply_add_64(w, i, 0); }
int run_mad_i64_i32(wave *w, const instruction *i) { return multiply_add_64(w, i, 1); }

// ---------------------------------------------------------------- division
// x is the denominator b or the numerator a, whichever shall be scaled. *flag: the quotient will need scaling back.
static float scale_f32(float x, float b, float a, u32 *flag) {
  int is_b = float_bits(x) == float_bits(b), is_a = float_bits(x) == float_bits(a);
  double inverse = 1.0 / b, quotient = (double)a / b;
  int tiny_inverse = fabs(inverse) < 0x1p-126 && inverse != 0, tiny_quotient = fabs(quotient) < 0x1p-126 && quotient != 0;
  *flag = 0;
  if (a == 0 || b == 0) return NAN;
  if ((i32)exponent_f32(a) - (i32)exponent_f32(b) >= 96) { *flag = 1; return is_b ? ldexpf(x, 64) : x; }
  if (is_denormal_f32(float_bits(b))) return ldexpf(x, 64);
  if (tiny_inverse && tiny_quotient) { *flag = 1; return is_b ? ldexpf(x, 64) : x; }
  if (tiny_inverse) return ldexpf(x, -64);
  if (tiny_quotient) { *flag = 1; return is_a ? ldexpf(x, 64) : x; }
  return exponent_f32(a) <= 23 ? ldexpf(x, 64) : x;
}
static double scale_f64(double x, double b, double a, u32 *flag) {
  int is_b = double_bits(x) == double_bits(b), is_a = double_bits(x) == double_bits(a);
  double inverse = 1.0 / b, quotient = a / b;
  int tiny_inverse = fabs(inverse) < 0x1p-1022 && inverse != 0;
  int tiny_quotient = fabs(quotient) < 0x1p-1022 && quotient != 0;
  *flag = 0;
  if (a == 0 || b == 0) return NAN;
  if ((i32)exponent_f64(a) - (i32)exponent_f64(b) >= 768) { *flag = 1; return is_b ? ldexp(x, 128) : x; }
  if (exponent_f64(b) == 0) return ldexp(x, 128);
  if (tiny_inverse && tiny_quotient) { *flag = 1; return is_b ? ldexp(x, 128) : x; }
  if (tiny_inverse) return ldexp(x, -128);
  if (tiny_quotient) { *flag = 1; return is_a ? ldexp(x, 128) : x; }
  return exponent_f64(a) <= 53 ? ldexp(x, 128) : x;
}
int run_div_scale_f32(wave *w, const instruction *i) {
  u64 buffers[3][LANES];
  u32 out = 0, flag;
  float result[LANES];
  const float *x = fetch(w, i, 0, 'F', buffers[0], NULL), *b = fetch(w, i, 1, 'F', buffers[1], NULL);
  const float *a = fetch(w, i, 2, 'F', buffers[2], NULL);
  for (int l = 0; l < LANES; l++) { result[l] = scale_f32(x[l], b[l], a[l], &flag); out |= flag << l; }
  finish(w, i, 'F', result, w->s[EXEC]);
  write_scalar(w, i->mask_result, out & w->s[EXEC]);
  return NEXT;
}
int run_div_scale_f64(wave *w, const instruction *i) {
  u64 buffers[3][LANES];
  u32 out = 0, flag;
  double result[LANES];
  const double *x = fetch(w, i, 0, 'D', buffers[0], NULL), *b = fetch(w, i, 1, 'D', buffers[1], NULL);
  const double *a = fetch(w, i, 2, 'D', buffers[2], NULL);
  for (int l = 0; l < LANES; l++) { result[l] = scale_f64(x[l], b[l], a[l], &flag); out |= flag << l; }
  finish(w, i, 'D', result, w->s[EXEC]);
  write_scalar(w, i->mask_result, out & w->s[EXEC]);
  return NEXT;
}
int run_div_fmas_f32(wave *w, const instruction *i) {
  u64 buffers[3][LANES];
  float result[LANES];
  const float *a = fetch(w, i, 0, 'F', buffers[0], NULL), *b = fetch(w, i, 1, 'F', buffers[1], NULL);
  const float *c = fetch(w, i, 2, 'F', buffers[2], NULL);
  for (int l = 0; l < LANES; l++) result[l] = div_fmas_f32(a[l], b[l], c[l], w->s[VCC] >> l & 1);
  return finish(w, i, 'F', result, w->s[EXEC]);
}
int run_div_fmas_f64(wave *w, const instruction *i) {
  u64 buffers[3][LANES];
  double result[LANES];
  const double *a = fetch(w, i, 0, 'D', buffers[0], NULL), *b = fetch(w, i, 1, 'D', buffers[1], NULL);
  const double *c = fetch(w, i, 2, 'D', buffers[2], NULL);
  for (int l = 0; l < LANES; l++) result[l] = div_fmas_f64(a[l], b[l], c[l], w->s[VCC] >> l & 1);
  return finish(w, i, 'D', result, w->s[EXEC]);
}

// ---------------------------------------------------------------- other lanes
static int permlane(wave *w, const instruction *i, u32 other_row) {
  u64 buffer[LANES];
  u32 old[LANES], *to = w->v[i->result], exec = w->s[EXEC], fetch_inactive = i->select & 1, bound = i->select >> 1 & 1;
  u64 selector = scalar_source(w, i, 1, 0) | (u64)scalar_source(w, i, 2, 0) << 32;
  memcpy(old, fetch(w, i, 0, 'U', buffer, NULL), sizeof old);
  for (u32 l = 0; l < LANES; l++) {
    if (!(exec >> l & 1)) continue;
    u32 from = ((l & 16) ^ other_row) | (selector >> 4 * (l & 15) & 15);
    if (exec >> from & 1 || fetch_inactive) to[l] = old[from];
    else if (bound) to[l] = 0;
  }
  return NEXT;
}
int run_permlane16(wave *w, const instruction *i) { return permlane(w, i, 0); }
int run_permlanex16(wave *w, const instruction *i) { return permlane(w, i, 16); }
int run_permlane64(wave *w, const instruction *i) {
  blend(w->v[i->result], w->v[i->source[0] - VGPR], w->s[EXEC]);
  return NEXT;
}
int run_swap(wave *w, const instruction *i) {
  u32 *a = w->v[i->result], *b = w->v[i->source[0] - VGPR], old[LANES];
  memcpy(old, a, sizeof old);
  blend(a, b, w->s[EXEC]);
  blend(b, old, w->s[EXEC]);
  return NEXT;
}
int run_movrels(wave *w, const instruction *i) {
  u32 from = i->source[0] - VGPR + w->s[M0];
  if (from >= VGPRS) return fault(w, i, "reads VGPR %u", from);
  blend(w->v[i->result], w->v[from], w->s[EXEC]);
  return NEXT;
}
int run_movreld(wave *w, const instruction *i) {
  u64 buffer[LANES];
  u32 to = i->result + w->s[M0];
  if (to >= VGPRS) return fault(w, i, "writes VGPR %u", to);
  blend(w->v[to], fetch(w, i, 0, 'U', buffer, NULL), w->s[EXEC]);
  return NEXT;
}

// ---------------------------------------------------------------- DPP
// The lane that lane l reads, -1 for none, -2 for a control that this chip does not have.
static int dpp_lane(const instruction *i, int l) {
  if (i->dpp_kind != 16) return (l & ~7) | (i->dpp >> (8 + 3 * (l & 7)) & 7);
  int control = i->dpp >> 8 & 511, n = control & 15, k = l & 15, row = l & ~15;
  switch (control >> 4) {
    case 0 ... 15: return (l & ~3) | (control >> 2 * (l & 3) & 3);  // quad_perm
    case 0x10: return k + n < 16 ? l + n : -1;                      // row_shl
    case 0x11: return k >= n ? l - n : -1;                          // row_shr
    case 0x12: return row | ((k - n) & 15);                         // row_ror
    case 0x14: return n ? (l & ~7) | (7 - (l & 7)) : row | (15 - k);  // row_half_mirror, row_mirror
    case 0x15: return row | n;                                      // row_share
    case 0x16: return row | (k ^ n);                                // row_xmask
    default: return -2;
  }
}
int dpp_source(wave *w, const instruction *i, u32 *permuted, u32 *enabled) {
  const u32 *from = w->v[i->source[0] - VGPR];
  u32 exec = w->s[EXEC], is_16 = i->dpp_kind == 16, fetch_inactive = is_16 ? i->dpp >> 18 & 1 : i->dpp_kind == 9;
  u32 bound = !is_16 || (i->dpp >> 19 & 1);
  *enabled = exec;
  for (int l = 0; l < LANES; l++) {
    int lane = dpp_lane(i, l);
    if (lane == -2) return fault(w, i, "a DPP control that is not known");
    if (is_16 && (!(i->dpp >> (28 + (l >> 4)) & 1) || !(i->dpp >> (24 + (l >> 2 & 3)) & 1))) *enabled &= ~(1u << l);
    int valid = lane >= 0 && (exec >> lane & 1 || fetch_inactive);
    if (!valid && !bound) *enabled &= ~(1u << l);
    permuted[l] = valid ? from[lane] : 0;
  }
  return NEXT;
}
