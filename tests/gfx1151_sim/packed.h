// VOP3P opcodes: two halves at a time, mixed precision, dot products, matrices.
// PACKED_OPS: X(number, name, result, sources, meaning of one half); types as in vector_ops.h.
#pragma once
#include "machine.h"
#define PACKED_OPS(X)                                                              \
  X(0x00, v_pk_mad_i16, W, S, S, S, (u32)(a * b + c))                              \
  X(0x01, v_pk_mul_lo_u16, W, W, W, 0, a * b)                                      \
  X(0x02, v_pk_add_i16, W, S, S, 0, (u32)(a + b))                                  \
  X(0x03, v_pk_sub_i16, W, S, S, 0, (u32)(a - b))                                  \
  X(0x04, v_pk_lshlrev_b16, W, W, W, 0, b << (a & 15))                             \
  X(0x05, v_pk_lshrrev_b16, W, W, W, 0, b >> (a & 15))                             \
  X(0x06, v_pk_ashrrev_i16, W, W, S, 0, (u32)(b >> (a & 15)))                      \
  X(0x07, v_pk_max_i16, W, S, S, 0, (u32)max_i32(a, b))                            \
  X(0x08, v_pk_min_i16, W, S, S, 0, (u32)min_i32(a, b))                            \
  X(0x09, v_pk_mad_u16, W, W, W, W, a * b + c)                                     \
  X(0x0a, v_pk_add_u16, W, W, W, 0, a + b)                                         \
  X(0x0b, v_pk_sub_u16, W, W, W, 0, a - b)                                         \
  X(0x0c, v_pk_max_u16, W, W, W, 0, max_u32(a, b))                                 \
  X(0x0d, v_pk_min_u16, W, W, W, 0, min_u32(a, b))                                 \
  X(0x0e, v_pk_fma_f16, G, H, H, H, half_fma(a, b, c))                             \
  X(0x0f, v_pk_add_f16, H, H, H, 0, a + b)                                         \
  X(0x10, v_pk_mul_f16, H, H, H, 0, a * b)                                         \
  X(0x11, v_pk_min_f16, H, H, H, 0, min_f32(a, b))                                 \
  X(0x12, v_pk_max_f16, H, H, H, 0, max_f32(a, b))
// X(number, name, class, function)
#define PACKED_SPECIAL(X)                                                          \
  X(0x13, v_dot2_f32_f16, dot, run_dot2_f32_f16)                                   \
  X(0x16, v_dot4_i32_iu8, dot, run_dot4_i32_iu8)                                   \
  X(0x17, v_dot4_u32_u8, dot, run_dot4_u32_u8)                                     \
  X(0x18, v_dot8_i32_iu4, dot, run_dot8_i32_iu4)                                   \
  X(0x19, v_dot8_u32_u4, dot, run_dot8_u32_u4)                                     \
  X(0x1a, v_dot2_f32_bf16, dot, run_dot2_f32_bf16)                                 \
  X(0x20, v_fma_mix_f32, vector, run_fma_mix)                                      \
  X(0x21, v_fma_mixlo_f16, vector, run_fma_mix)                                    \
  X(0x22, v_fma_mixhi_f16, vector, run_fma_mix)                                    \
  X(0x40, v_wmma_f32_16x16x16_f16, wmma, run_wmma)                                 \
  X(0x41, v_wmma_f32_16x16x16_bf16, wmma, run_wmma)                                \
  X(0x42, v_wmma_f16_16x16x16_f16, wmma, run_wmma)                                 \
  X(0x43, v_wmma_bf16_16x16x16_bf16, wmma, run_wmma)                               \
  X(0x44, v_wmma_i32_16x16x16_iu8, wmma, run_wmma)                                 \
  X(0x45, v_wmma_i32_16x16x16_iu4, wmma, run_wmma)
#define DECLARE(number, name, class, function) int function(wave *w, const instruction *i);
PACKED_SPECIAL(DECLARE)
#undef DECLARE
int run_packed(wave *w, const instruction *i);
int run_packed_fmac(wave *w, const instruction *i);  // v_pk_fmac_f16, a VOP2
// a.low * b.low + a.high * b.high + c, rounded once. The hardware's rounding is not known.
float dot2_f16(u32 a, u32 b, float c);
extern opcode vop3p_table[128];
