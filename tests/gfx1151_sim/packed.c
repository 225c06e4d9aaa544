// Two halves at a time, mixed precision, dot products (see packed.h).
#include "packed.h"
#include "arithmetic.h"
#include "vector.h"

// ---------------------------------------------------------------- one function for one half of each opcode
#define GET_H(p) half_to_float(p[l])
#define GET_W(p) p[l]
#define GET_S(p) (i32)(i16)p[l]
#define GET_0(p) 0
#define SET_H(x) float_to_half(x)
#define SET_W(x) ((x) & 0xffff)
#define SET_G SET_W
#define FUNCTION(number, name, R, A, B, C, meaning)                                        \
  static void lanes_##name(void *result, const void *va, const void *vb, const void *vc) { \
    const u32 *pa = va, *pb = vb, *pc = vc;                                                \
    (void)pa, (void)pb, (void)pc;                                                          \
    for (int l = 0; l < LANES; l++) {                                                      \
      __typeof__(GET_##A(pa)) a = GET_##A(pa);                                             \
      __typeof__(GET_##B(pb)) b = GET_##B(pb);                                             \
      __typeof__(GET_##C(pc)) c = GET_##C(pc);                                             \
      (void)a, (void)b, (void)c;                                                           \
      ((u32 *)result)[l] = SET_##R(meaning);                                               \
    }                                                                                      \
  }
PACKED_OPS(FUNCTION)
#define ENTRY(number, name_, R, A, B, C, meaning) \
  [number] = {.name = #name_, .types = #R #A #B #C, .run = run_packed, .lanes = lanes_##name_, .class = CLASS_vector},
#define SPECIAL(number, name_, class_, run_) [number] = {.name = #name_, .types = "", .run = run_, .class = CLASS_##class_},
opcode vop3p_table[128] = {PACKED_OPS(ENTRY) PACKED_SPECIAL(SPECIAL)};

// A source as 32 bits, without modifiers; an inline constant has float16 bits in its low half for float types.
static void fetch_word(const wave *w, const instruction *i, int k, int is_half, u32 *out) {
  u32 source = i->source[k];
  if (is_half && source >= 240 && source <= 248) {
    static const u32 constants[9] = {0x3800, 0xb800, 0x3c00, 0xbc00, 0x4000, 0xc000, 0x4400, 0xc400, 0x3118};
    for (int l = 0; l < LANES; l++) out[l] = constants[source - 240];
    return;
  }
  u64 buffer[LANES];
  memcpy(out, fetch(w, i, k, 'U', buffer, NULL), 4 * LANES);
}
static void pick_half(const instruction *i, int k, int high_half, int is_half, const u32 *word, u32 *out) {
  int shift = (high_half ? i->select_high : i->select) >> k & 1 ? 16 : 0;
  u32 flip = is_half && (high_half ? i->negate_high : i->negate) >> k & 1 ? 0x8000 : 0;
  for (int l = 0; l < LANES; l++) out[l] = (word[l] >> shift & 0xffff) ^ flip;
}
int run_packed(wave *w, const instruction *i) {
  const char *types = i->op->types;
  u32 words[3][LANES], halves[3][LANES], low[LANES], high[LANES];
  int is_half = types[0] == 'H' || types[0] == 'G';
  for (int k = 0; k < 3; k++)
    if (types[k + 1] != '0') fetch_word(w, i, k, types[k + 1] == 'H', words[k]);
  for (int part = 0; part < 2; part++) {
    for (int k = 0; k < 3; k++)
      if (types[k + 1] != '0') pick_half(i, k, part, is_half, words[k], halves[k]);
    i->op->lanes(part ? high : low, halves[0], halves[1], halves[2]);
  }
  if (i->clamp && !is_half) return fault(w, i, "clamp of integers is not implemented");
  for (int l = 0; l < LANES; l++) {
    if (i->clamp) {
      low[l] = float_to_half(clamped(max_f32(half_to_float(low[l]), 0), 0, 1));
      high[l] = float_to_half(clamped(max_f32(half_to_float(high[l]), 0), 0, 1));
    }
    low[l] |= high[l] << 16;
  }
  blend(w->v[i->result], low, w->s[EXEC]);
  return NEXT;
}
int run_packed_fmac(wave *w, const instruction *i) {
  u32 a[LANES], b[LANES], *c = w->v[i->result], result[LANES];
  fetch_word(w, i, 0, 1, a);
  fetch_word(w, i, 1, 1, b);
  for (int l = 0; l < LANES; l++)
    result[l] = half_fma(half_to_float(a[l]), half_to_float(b[l]), half_to_float(c[l])) |
                half_fma(half_to_float(a[l] >> 16), half_to_float(b[l] >> 16), half_to_float(c[l] >> 16)) << 16;
  blend(c, result, w->s[EXEC]);
  return NEXT;
}

// ---------------------------------------------------------------- mixed precision
// Each source is float32, or (select_high) a float16 half of a register. negate_high means absolute here.
static void mix_source(wave *w, const instruction *i, int k, float *out) {
  u32 words[LANES], is_half = i->select_high >> k & 1, shift = i->select >> k & 1 ? 16 : 0;
  fetch_word(w, i, k, is_half, words);
  for (int l = 0; l < LANES; l++) {
    float x = is_half ? half_to_float(words[l] >> shift) : as_float(w->flush ? flush_f32(words[l]) : words[l]);
    if (i->negate_high >> k & 1) x = fabsf(x);
    out[l] = i->negate >> k & 1 ? -x : x;
  }
}
int run_fma_mix(wave *w, const instruction *i) {
  float s[3][LANES], result[LANES];
  u32 *to = w->v[i->result], half[LANES];
  for (int k = 0; k < 3; k++) mix_source(w, i, k, s[k]);
  for (int l = 0; l < LANES; l++) {
    result[l] = fmaf(s[0][l], s[1][l], s[2][l]);
    if (i->clamp) result[l] = clamped(max_f32(result[l], 0), 0, 1);
  }
  u32 number = i->words[0] >> 16 & 127;
  if (number == 0x20) {
    if (w->flush)
      for (int l = 0; l < LANES; l++) result[l] = as_float(flush_f32(float_bits(result[l])));
    blend(to, (u32 *)result, w->s[EXEC]);
    return NEXT;
  }
  for (int l = 0; l < LANES; l++) {
    u32 h = float_to_half(result[l]);
    half[l] = number == 0x21 ? (to[l] & 0xffff0000) | h : (to[l] & 0xffff) | h << 16;
  }
  blend(to, half, w->s[EXEC]);
  return NEXT;
}

// ---------------------------------------------------------------- dot products
float dot2_f16(u32 a, u32 b, float c) {
  return (float)((double)half_to_float(a) * half_to_float(b) + (double)half_to_float(a >> 16) * half_to_float(b >> 16) + c);
}
static int dot2(wave *w, const instruction *i, float (*convert)(u32)) {
  u32 words[2][LANES];
  u64 buffer[LANES];
  float result[LANES];
  for (int k = 0; k < 2; k++) fetch_word(w, i, k, convert == half_to_float, words[k]);
  const float *c = fetch(w, i, 2, 'F', buffer, NULL);
  for (int l = 0; l < LANES; l++) {
    double sum = 0;
    for (int part = 0; part < 2; part++) {
      double product = 1;
      for (int k = 0; k < 2; k++) {
        float x = convert(words[k][l] >> ((part ? i->select_high : i->select) >> k & 1 ? 16 : 0) & 0xffff);
        product *= (part ? i->negate_high : i->negate) >> k & 1 ? -x : x;
      }
      sum += product;
    }
    result[l] = (float)(sum + c[l]);
    if (i->clamp) result[l] = clamped(max_f32(result[l], 0), 0, 1);
  }
  blend(w->v[i->result], (u32 *)result, w->s[EXEC]);
  return NEXT;
}
int run_dot2_f32_f16(wave *w, const instruction *i) { return dot2(w, i, half_to_float); }
int run_dot2_f32_bf16(wave *w, const instruction *i) { return dot2(w, i, bfloat_to_float); }

// bits: 8 or 4 of an element. mixed: neg_lo says which source is signed; else both are unsigned.
static int dot_integers(wave *w, const instruction *i, u32 bits, int mixed) {
  u32 words[3][LANES], result[LANES];
  int is_signed[2] = {mixed && (i->negate & 1), mixed && (i->negate >> 1 & 1)};
  for (int k = 0; k < 3; k++) fetch_word(w, i, k, 0, words[k]);
  for (int l = 0; l < LANES; l++) {
    i64 sum = mixed ? (i64)(i32)words[2][l] : (i64)words[2][l];
    for (u32 e = 0; e < 32; e += bits) {
      i64 x[2];
      for (int k = 0; k < 2; k++) {
        u32 top = words[k][l] << (32 - bits - e);
        x[k] = is_signed[k] ? (i64)((i32)top >> (32 - bits)) : (i64)(top >> (32 - bits));
      }
      sum += x[0] * x[1];
    }
    if (i->clamp && mixed) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
    if (i->clamp && !mixed) sum = sum > UINT32_MAX ? UINT32_MAX : sum;
    result[l] = (u32)sum;
  }
  blend(w->v[i->result], result, w->s[EXEC]);
  return NEXT;
}
int run_dot4_i32_iu8(wave *w, const instruction *i) { return dot_integers(w, i, 8, 1); }
int run_dot4_u32_u8(wave *w, const instruction *i) { return dot_integers(w, i, 8, 0); }
int run_dot8_i32_iu4(wave *w, const instruction *i) { return dot_integers(w, i, 4, 1); }
int run_dot8_u32_u4(wave *w, const instruction *i) { return dot_integers(w, i, 4, 0); }
