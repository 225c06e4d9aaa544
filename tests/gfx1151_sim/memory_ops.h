// Memory opcodes. TRANSFERS are common to global, flat, scratch and buffer accesses:
// X(number, name after the prefix, bytes, stores, sign extension, half: 1 low and 2 high 16 bits of the register only)
#pragma once
#include "machine.h"
#define TRANSFERS(X)                   \
  X(0x10, load_u8, 1, 0, 0, 0)         \
  X(0x11, load_i8, 1, 0, 1, 0)         \
  X(0x12, load_u16, 2, 0, 0, 0)        \
  X(0x13, load_i16, 2, 0, 1, 0)        \
  X(0x14, load_b32, 4, 0, 0, 0)        \
  X(0x15, load_b64, 8, 0, 0, 0)        \
  X(0x16, load_b96, 12, 0, 0, 0)       \
  X(0x17, load_b128, 16, 0, 0, 0)      \
  X(0x18, store_b8, 1, 1, 0, 0)        \
  X(0x19, store_b16, 2, 1, 0, 0)       \
  X(0x1a, store_b32, 4, 1, 0, 0)       \
  X(0x1b, store_b64, 8, 1, 0, 0)       \
  X(0x1c, store_b96, 12, 1, 0, 0)      \
  X(0x1d, store_b128, 16, 1, 0, 0)     \
  X(0x1e, load_d16_u8, 1, 0, 0, 1)     \
  X(0x1f, load_d16_i8, 1, 0, 1, 1)     \
  X(0x20, load_d16_b16, 2, 0, 0, 1)    \
  X(0x21, load_d16_hi_u8, 1, 0, 0, 2)  \
  X(0x22, load_d16_hi_i8, 1, 0, 1, 2)  \
  X(0x23, load_d16_hi_b16, 2, 0, 0, 2) \
  X(0x24, store_d16_hi_b8, 1, 1, 0, 2) \
  X(0x25, store_d16_hi_b16, 2, 1, 0, 2)
// X(number, name, bytes, meaning): m is memory's value, x (and y, for a comparison) the registers'; the new m.
#define ATOMICS(X)                                                               \
  X(0x33, atomic_swap_b32, 4, x)                                                 \
  X(0x34, atomic_cmpswap_b32, 4, m == y ? x : m)                                 \
  X(0x35, atomic_add_u32, 4, m + x)                                              \
  X(0x36, atomic_sub_u32, 4, m - x)                                              \
  X(0x38, atomic_min_i32, 4, (i32)m < (i32)x ? m : x)                            \
  X(0x39, atomic_min_u32, 4, (u32)m < (u32)x ? m : x)                            \
  X(0x3a, atomic_max_i32, 4, (i32)m > (i32)x ? m : x)                            \
  X(0x3b, atomic_max_u32, 4, (u32)m > (u32)x ? m : x)                            \
  X(0x3c, atomic_and_b32, 4, m & x)                                              \
  X(0x3d, atomic_or_b32, 4, m | x)                                               \
  X(0x3e, atomic_xor_b32, 4, m ^ x)                                              \
  X(0x3f, atomic_inc_u32, 4, m >= x ? 0 : m + 1)                                 \
  X(0x40, atomic_dec_u32, 4, m == 0 || m > x ? x : m - 1)                        \
  X(0x41, atomic_swap_b64, 8, x)                                                 \
  X(0x42, atomic_cmpswap_b64, 8, m == y ? x : m)                                 \
  X(0x43, atomic_add_u64, 8, m + x)                                              \
  X(0x44, atomic_sub_u64, 8, m - x)                                              \
  X(0x46, atomic_min_u64, 8, m < x ? m : x)                                      \
  X(0x48, atomic_max_u64, 8, m > x ? m : x)                                      \
  X(0x49, atomic_and_b64, 8, m & x)                                              \
  X(0x4a, atomic_or_b64, 8, m | x)                                               \
  X(0x4b, atomic_xor_b64, 8, m ^ x)                                              \
  X(0x51, atomic_min_f32, 4, float_bits(min_f32(as_float((u32)m), as_float((u32)x)))) \
  X(0x52, atomic_max_f32, 4, float_bits(max_f32(as_float((u32)m), as_float((u32)x)))) \
  X(0x56, atomic_add_f32, 4, float_bits(as_float((u32)m) + as_float((u32)x)))
// X(number, name, bytes, stores, sign extension, half, places: 2 for the forms with two offsets, stride of these)
#define LDS_TRANSFERS(X)                              \
  X(0x0d, ds_store_b32, 4, 1, 0, 0, 1, 0)             \
  X(0x0e, ds_store_2addr_b32, 4, 1, 0, 0, 2, 4)       \
  X(0x0f, ds_store_2addr_stride64_b32, 4, 1, 0, 0, 2, 256) \
  X(0x1e, ds_store_b8, 1, 1, 0, 0, 1, 0)              \
  X(0x1f, ds_store_b16, 2, 1, 0, 0, 1, 0)             \
  X(0x36, ds_load_b32, 4, 0, 0, 0, 1, 0)              \
  X(0x37, ds_load_2addr_b32, 4, 0, 0, 0, 2, 4)        \
  X(0x38, ds_load_2addr_stride64_b32, 4, 0, 0, 0, 2, 256) \
  X(0x39, ds_load_i8, 1, 0, 1, 0, 1, 0)               \
  X(0x3a, ds_load_u8, 1, 0, 0, 0, 1, 0)               \
  X(0x3b, ds_load_i16, 2, 0, 1, 0, 1, 0)              \
  X(0x3c, ds_load_u16, 2, 0, 0, 0, 1, 0)              \
  X(0x4d, ds_store_b64, 8, 1, 0, 0, 1, 0)             \
  X(0x4e, ds_store_2addr_b64, 8, 1, 0, 0, 2, 8)       \
  X(0x4f, ds_store_2addr_stride64_b64, 8, 1, 0, 0, 2, 512) \
  X(0x76, ds_load_b64, 8, 0, 0, 0, 1, 0)              \
  X(0x77, ds_load_2addr_b64, 8, 0, 0, 0, 2, 8)        \
  X(0x78, ds_load_2addr_stride64_b64, 8, 0, 0, 0, 2, 512) \
  X(0xa0, ds_store_b8_d16_hi, 1, 1, 0, 2, 1, 0)       \
  X(0xa1, ds_store_b16_d16_hi, 2, 1, 0, 2, 1, 0)      \
  X(0xa2, ds_load_u8_d16, 1, 0, 0, 1, 1, 0)           \
  X(0xa3, ds_load_u8_d16_hi, 1, 0, 0, 2, 1, 0)        \
  X(0xa4, ds_load_i8_d16, 1, 0, 1, 1, 1, 0)           \
  X(0xa5, ds_load_i8_d16_hi, 1, 0, 1, 2, 1, 0)        \
  X(0xa6, ds_load_u16_d16, 2, 0, 0, 1, 1, 0)          \
  X(0xa7, ds_load_u16_d16_hi, 2, 0, 0, 2, 1, 0)       \
  X(0xde, ds_store_b96, 12, 1, 0, 0, 1, 0)            \
  X(0xdf, ds_store_b128, 16, 1, 0, 0, 1, 0)           \
  X(0xfe, ds_load_b96, 12, 0, 0, 0, 1, 0)             \
  X(0xff, ds_load_b128, 16, 0, 0, 0, 1, 0)
// X(number, name, returns the old value, meaning) on 32 bits, as ATOMICS
#define LDS_ATOMICS(X)                                                 \
  X(0x00, ds_add_u32, 0, m + x)                                        \
  X(0x01, ds_sub_u32, 0, m - x)                                        \
  X(0x05, ds_min_i32, 0, (i32)m < (i32)x ? m : x)                      \
  X(0x06, ds_max_i32, 0, (i32)m > (i32)x ? m : x)                      \
  X(0x07, ds_min_u32, 0, (u32)m < (u32)x ? m : x)                      \
  X(0x08, ds_max_u32, 0, (u32)m > (u32)x ? m : x)                      \
  X(0x09, ds_and_b32, 0, m & x)                                        \
  X(0x0a, ds_or_b32, 0, m | x)                                         \
  X(0x0b, ds_xor_b32, 0, m ^ x)                                        \
  X(0x15, ds_add_f32, 0, float_bits(as_float((u32)m) + as_float((u32)x))) \
  X(0x20, ds_add_rtn_u32, 1, m + x)                                    \
  X(0x21, ds_sub_rtn_u32, 1, m - x)                                    \
  X(0x25, ds_min_rtn_i32, 1, (i32)m < (i32)x ? m : x)                  \
  X(0x26, ds_max_rtn_i32, 1, (i32)m > (i32)x ? m : x)                  \
  X(0x27, ds_min_rtn_u32, 1, (u32)m < (u32)x ? m : x)                  \
  X(0x28, ds_max_rtn_u32, 1, (u32)m > (u32)x ? m : x)                  \
  X(0x29, ds_and_rtn_b32, 1, m & x)                                    \
  X(0x2a, ds_or_rtn_b32, 1, m | x)                                     \
  X(0x2b, ds_xor_rtn_b32, 1, m ^ x)                                    \
  X(0x2d, ds_storexchg_rtn_b32, 1, x)                                  \
  X(0x79, ds_add_rtn_f32, 1, float_bits(as_float((u32)m) + as_float((u32)x)))

typedef struct { u8 bytes, stores, sign, half, places; u16 stride; } transfer;
extern opcode global_table[128], flat_table[128], scratch_table[128], buffer_table[256], lds_table[256], smem_table[256];

// Between registers and memory at address[lane], which was checked: for stores, the words of a register range; for
// loads, the register range.
void gather_stored(const wave *w, u32 from, const transfer *t, u32 words[4][LANES]);
void place_loaded(wave *w, u32 to, const transfer *t, u32 mask, u32 words[4][LANES]);
// LDS: checks each access against the workgroup's LDS and for races.
int run_lds(wave *w, const instruction *i);
int run_lds_atomic(wave *w, const instruction *i);
int run_bpermute(wave *w, const instruction *i);  // reads any lane
int run_permute(wave *w, const instruction *i);   // writes any lane
int run_swizzle(wave *w, const instruction *i);   // reads a lane by a fixed pattern
