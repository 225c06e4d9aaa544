// Vector opcodes that look across lanes or at more than their sources: X(number, name, function).
#pragma once
#include "machine.h"
int run_no_operation(wave *w, const instruction *i);
int run_readfirstlane(wave *w, const instruction *i);    // s = the value of the first active lane
int run_readlane(wave *w, const instruction *i);         // s = the value of a lane
int run_writelane(wave *w, const instruction *i);        // one lane's value = s
int run_add_carry(wave *w, const instruction *i);        // a + b (+ carry in), carry out
int run_subtract_carry(wave *w, const instruction *i);   // a - b (- borrow in), borrow out
int run_subtract_reversed_carry(wave *w, const instruction *i);
int run_div_scale_f32(wave *w, const instruction *i);    // scales an operand of a division, says so in the mask
int run_div_scale_f64(wave *w, const instruction *i);
int run_div_fmas_f32(wave *w, const instruction *i);     // fma, and undoes the scaling where VCC says so
int run_div_fmas_f64(wave *w, const instruction *i);
int run_mad_u64_u32(wave *w, const instruction *i);      // 64-bit a * b + c, carry out
int run_mad_i64_i32(wave *w, const instruction *i);
int run_permlane16(wave *w, const instruction *i);       // any lane of the same 16
int run_permlanex16(wave *w, const instruction *i);      // any lane of the other 16
int run_permlane64(wave *w, const instruction *i);       // the other half of 64 lanes: nothing in a wave of 32
int run_swap(wave *w, const instruction *i);             // exchanges two registers
int run_movrels(wave *w, const instruction *i);          // source register + M0
int run_movreld(wave *w, const instruction *i);          // result register + M0
#define VOP1_SPECIAL(X)                          \
  X(0x00, v_nop, run_no_operation)               \
  X(0x02, v_readfirstlane_b32, run_readfirstlane) \
  X(0x42, v_movreld_b32, run_movreld)            \
  X(0x43, v_movrels_b32, run_movrels)            \
  X(0x65, v_swap_b32, run_swap)                  \
  X(0x67, v_permlane64_b32, run_permlane64)
#define VOP2_SPECIAL(X)                          \
  X(0x20, v_add_co_ci_u32, run_add_carry)        \
  X(0x21, v_sub_co_ci_u32, run_subtract_carry)   \
  X(0x22, v_subrev_co_ci_u32, run_subtract_reversed_carry) \
  X(0x3c, v_pk_fmac_f16, run_packed_fmac)
#define VOP3_SPECIAL(X)                          \
  X(0x237, v_div_fmas_f32, run_div_fmas_f32)     \
  X(0x238, v_div_fmas_f64, run_div_fmas_f64)     \
  X(0x25b, v_permlane16_b32, run_permlane16)     \
  X(0x25c, v_permlanex16_b32, run_permlanex16)   \
  X(0x2fc, v_div_scale_f32, run_div_scale_f32)   \
  X(0x2fd, v_div_scale_f64, run_div_scale_f64)   \
  X(0x2fe, v_mad_u64_u32, run_mad_u64_u32)       \
  X(0x2ff, v_mad_i64_i32, run_mad_i64_i32)       \
  X(0x300, v_add_co_u32, run_add_carry)          \
  X(0x301, v_sub_co_u32, run_subtract_carry)     \
  X(0x302, v_subrev_co_u32, run_subtract_reversed_carry) \
  X(0x360, v_readlane_b32, run_readlane)         \
  X(0x361, v_writelane_b32, run_writelane)
