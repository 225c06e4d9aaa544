// Vector instructions whose lanes are independent: a table of lanes functions made from vector_ops.h, and what is common
// to all: operands, modifiers, DPP, EXEC.
#include "vector.h"
#include "arithmetic.h"
#include "packed.h"
#include "vector_ops.h"
#include "vector_special.h"

// ---------------------------------------------------------------- one function for each opcode
#define GET_F(p) ((const float *)p)[l]
#define GET_H(p) half_to_float(((const u32 *)p)[l])
#define GET_D(p) ((const double *)p)[l]
#define GET_I(p) ((const i32 *)p)[l]
#define GET_S(p) (i32)(i16)((const u32 *)p)[l]
#define GET_U(p) ((const u32 *)p)[l]
#define GET_B GET_U
#define GET_W GET_U
#define GET_G GET_U
#define GET_M GET_U
#define GET_Q(p) ((const u64 *)p)[l]
#define GET_L(p) ((const i64 *)p)[l]
#define GET_0(p) 0
#define SET_F(x) ((float *)result)[l] = (x)
#define SET_H(x) ((u32 *)result)[l] = float_to_half(x)
#define SET_D(x) ((double *)result)[l] = (x)
#define SET_U(x) ((u32 *)result)[l] = (x)
#define SET_W(x) ((u32 *)result)[l] = (x) & 0xffff
#define SET_G SET_W
#define SET_T(x) ((u32 *)result)[l] = (x) ? 1 : 0
#define SET_Q(x) ((u64 *)result)[l] = (x)
#define FUNCTION(number, name, class, R, A, B, C, meaning)                                               \
  static void lanes_##name(void *result, const void *pa, const void *pb, const void *pc) {               \
    (void)pa, (void)pb, (void)pc;                                                                        \
    for (int l = 0; l < LANES; l++) {                                                                    \
      __typeof__(GET_##A(pa)) a = GET_##A(pa);                                                           \
      __typeof__(GET_##B(pb)) b = GET_##B(pb);                                                           \
      __typeof__(GET_##C(pc)) c = GET_##C(pc);                                                           \
      (void)a, (void)b, (void)c;                                                                         \
      SET_##R(meaning);                                                                                  \
    }                                                                                                    \
  }
VOP1_OPS(FUNCTION)
VOP2_OPS(FUNCTION)
VOP3_OPS(FUNCTION)
VOPC_OPS(FUNCTION)
#define ENTRY(number, name_, class_, R, A, B, C, meaning) \
  [number] = {.name = #name_, .types = #R #A #B #C, .run = run_vector, .lanes = lanes_##name_, .class = CLASS_##class_},
#define SPECIAL(number, name_, run_) [number] = {.name = #name_, .types = "", .run = run_, .class = CLASS_vector},
opcode vop1_table[256] = {VOP1_OPS(ENTRY) VOP1_SPECIAL(SPECIAL)};
opcode vop2_table[64] = {VOP2_OPS(ENTRY) VOP2_SPECIAL(SPECIAL)};
opcode vop3_table[1024] = {VOP3_OPS(ENTRY) VOP3_SPECIAL(SPECIAL)};
opcode vopc_table[128] = {VOPC_OPS(ENTRY)};

// ---------------------------------------------------------------- sources
static const float inline_floats[9] = {0.5f, -0.5f, 1, -1, 2, -2, 4, -4, 0.15915494f};

static u64 scalar_64(const wave *w, const instruction *i, u32 source, char type) {
  if (source == LITERAL) return type == 'D' ? (u64)i->literal << 32 : type == 'L' ? (u64)(i32)i->literal : i->literal;
  if (source == 248) return 0x3fc45f306dc9c882;  // 1 / (2 pi)
  if (source >= 240 && source < 248) return double_bits(inline_floats[source - 240]);
  if (source >= 128) return (u64)(i64)(i32)w->s[source];
  return source == NULL_REG ? 0 : scalar_pair(w, source);
}
static u32 scalar_16(const wave *w, const instruction *i, u32 source, int high) {
  if (source >= 240 && source <= 248) return source == 248 ? 0x3118 : float_to_half(inline_floats[source - 240]);
  u32 word = source == LITERAL ? i->literal : source == SCC_SOURCE ? w->scc : w->s[source];
  return word >> (high ? 16 : 0) & 0xffff;
}
static u32 scalar_32(const wave *w, const instruction *i, u32 source) {
  return source == LITERAL ? i->literal : source == SCC_SOURCE ? w->scc : w->s[source];
}
static int has_float_modifiers(char type) { return type == 'F' || type == 'H' || type == 'G' || type == 'D' || type == 'B'; }

static const void *fetch_64(const wave *w, const instruction *i, int k, char type, u64 *buffer) {
  u32 source = i->source[k];
  int absolute = i->absolute >> k & 1, negate = i->negate >> k & 1;
  for (int l = 0; l < LANES; l++)
    buffer[l] = source >= VGPR ? w->v[source - VGPR][l] | (u64)w->v[source - VGPR + 1][l] << 32
                               : scalar_64(w, i, source, type);
  if (type != 'D') return buffer;
  for (int l = 0; l < LANES; l++) {
    if (absolute) buffer[l] &= ~(1ull << 63);
    if (negate) buffer[l] ^= 1ull << 63;
  }
  return buffer;
}
static const void *fetch_16(const wave *w, const instruction *i, int k, char type, u32 *buffer, const u32 *permuted) {
  u32 source = i->source[k], high = i->select >> k & 1;
  if (source >= VGPR) {
    const u32 *from = permuted ? permuted : w->v[source - VGPR];
    for (int l = 0; l < LANES; l++) buffer[l] = from[l] >> (high ? 16 : 0) & 0xffff;
  } else {
    u32 x = scalar_16(w, i, source, high);
    for (int l = 0; l < LANES; l++) buffer[l] = x;
  }
  if (!has_float_modifiers(type)) return buffer;
  if (i->absolute >> k & 1)
    for (int l = 0; l < LANES; l++) buffer[l] &= 0x7fff;
  if (i->negate >> k & 1)
    for (int l = 0; l < LANES; l++) buffer[l] ^= 0x8000;
  return buffer;
}
const void *fetch(const wave *w, const instruction *i, int k, char type, u64 *wide, const u32 *permuted) {
  u32 source = i->source[k], *buffer = (u32 *)wide;
  if (type == 'D' || type == 'Q' || type == 'L') return fetch_64(w, i, k, type, wide);
  if (type == 'H' || type == 'G' || type == 'W' || type == 'S') return fetch_16(w, i, k, type, buffer, permuted);
  if (type == 'M') {
    u32 mask = scalar_32(w, i, source);
    for (int l = 0; l < LANES; l++) buffer[l] = mask >> l & 1;
    return buffer;
  }
  int modified = ((i->negate | i->absolute) >> k & 1) && has_float_modifiers(type);
  int flushed = type == 'F' && w->flush;
  const u32 *from = permuted ? permuted : w->v[source - VGPR];
  if (source < VGPR) {
    u32 x = scalar_32(w, i, source);
    for (int l = 0; l < LANES; l++) buffer[l] = x;
  } else if (!modified && !flushed) return from;
  else memcpy(buffer, from, 4 * LANES);
  if (flushed)
    for (int l = 0; l < LANES; l++) buffer[l] = flush_f32(buffer[l]);
  if (modified) {
    u32 keep = i->absolute >> k & 1 ? 0x7fffffff : ~0u, flip = i->negate >> k & 1 ? 0x80000000 : 0;
    for (int l = 0; l < LANES; l++) buffer[l] = (buffer[l] & keep) ^ flip;
  }
  return buffer;
}

// ---------------------------------------------------------------- results
static double scaled(const instruction *i, double x, u32 scale) {
  if (scale) x *= scale == 1 ? 2 : scale == 2 ? 4 : 0.5;
  if (i->clamp) x = x > 0 ? (x < 1 ? x : 1) : 0;  // NaN becomes 0
  return x;
}
// The hardware ignores the scale where it keeps denormals, as it always does for float16 and float64 here.
static void modify_result(const wave *w, const instruction *i, char type, void *result) {
  u32 scale = w->flush ? i->scale : 0;
  for (int l = 0; l < LANES; l++) {
    if (type == 'F') ((float *)result)[l] = (float)scaled(i, ((float *)result)[l], scale);
    else if (type == 'D') ((double *)result)[l] = scaled(i, ((double *)result)[l], 0);
    else ((u32 *)result)[l] = float_to_half((float)scaled(i, half_to_float(((u32 *)result)[l]), 0));
  }
}
int finish(wave *w, const instruction *i, char type, void *result, u32 enabled) {
  if (i->scale | i->clamp) modify_result(w, i, type, result);
  u32 *value = result, *to = w->v[i->result];
  if (type == 'F' && w->flush)
    for (int l = 0; l < LANES; l++) value[l] = flush_f32(value[l]);
  if (type == 'F' || type == 'U') {
    blend(to, value, enabled);
  } else if (type == 'D' || type == 'Q') {
    for (int l = 0; l < LANES; l++)
      if (enabled >> l & 1) to[l] = (u32)((u64 *)result)[l], to[LANES + l] = ((u64 *)result)[l] >> 32;
  } else if (type == 'T') {
    u32 mask = 0;
    for (int l = 0; l < LANES; l++) mask |= value[l] << l;
    write_scalar(w, i->mask_result, mask & enabled);
  } else {
    int high = i->select >> 3 & 1;
    for (int l = 0; l < LANES; l++) value[l] = high ? (to[l] & 0xffff) | value[l] << 16 : (to[l] & 0xffff0000) | value[l];
    blend(to, value, enabled);
  }
  return NEXT;
}

// The result before its modifiers, and the lanes that may be written.
static int compute(wave *w, const instruction *i, u64 *result, u32 *enabled) {
  const char *types = i->op->types;
  u64 buffers[3][LANES];
  u32 permuted[LANES];
  *enabled = w->s[EXEC];
  if (i->dpp_kind && dpp_source(w, i, permuted, enabled)) return FAULT;
  const void *s[3] = {0};
  for (int k = 0; k < 3; k++)
    if (types[k + 1] != '0') s[k] = fetch(w, i, k, types[k + 1], buffers[k], i->dpp_kind && k == 0 ? permuted : NULL);
  i->op->lanes(result, s[0], s[1], s[2]);
  return NEXT;
}
int run_vector(wave *w, const instruction *i) {
  u64 result[LANES];
  u32 enabled;
  return compute(w, i, result, &enabled) ? FAULT : finish(w, i, i->op->types[0], result, enabled);
}
// VOPD: both read their sources before either writes.
int run_pair(wave *w, const instruction *i) {
  u64 results[2][LANES];
  u32 enabled;
  if (compute(w, i, results[0], &enabled) || compute(w, i->second, results[1], &enabled)) return FAULT;
  i->second->op->executed++;
  finish(w, i, i->op->types[0], results[0], enabled);
  return finish(w, i->second, i->second->op->types[0], results[1], enabled);
}
