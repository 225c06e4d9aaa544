// Scalar ALU opcodes: X(number, name, result bits, bits of a, bits of b, meaning).
// a, b: sources; d: result (its old value at first); scc: read and written. Signed values: i32, i64 casts.
#define SF(x) as_float(x)
#define FS(x) float_bits(x)
#define SOP2_OPS(X)                                                                                             \
  X(0x00, s_add_u32, 32, 32, 32, d = a + b; scc = d < a)                                                        \
  X(0x01, s_sub_u32, 32, 32, 32, d = a - b; scc = b > a)                                                        \
  X(0x02, s_add_i32, 32, 32, 32, d = a + b; scc = (~(a ^ b) & (a ^ d)) >> 31)                                   \
  X(0x03, s_sub_i32, 32, 32, 32, d = a - b; scc = ((a ^ b) & (a ^ d)) >> 31)                                    \
  X(0x04, s_addc_u32, 32, 32, 32, u64 t = (u64)a + b + scc; d = (u32)t; scc = t >> 32)                          \
  X(0x05, s_subb_u32, 32, 32, 32, u64 t = (u64)b + scc; scc = t > a; d = a - (u32)t)                            \
  X(0x06, s_absdiff_i32, 32, 32, 32, d = a - b; if ((i32)d < 0) d = -d; scc = d != 0)                           \
  X(0x08, s_lshl_b32, 32, 32, 32, d = a << (b & 31); scc = d != 0)                                              \
  X(0x09, s_lshl_b64, 64, 64, 32, d = a << (b & 63); scc = d != 0)                                              \
  X(0x0a, s_lshr_b32, 32, 32, 32, d = a >> (b & 31); scc = d != 0)                                              \
  X(0x0b, s_lshr_b64, 64, 64, 32, d = a >> (b & 63); scc = d != 0)                                              \
  X(0x0c, s_ashr_i32, 32, 32, 32, d = (i32)a >> (b & 31); scc = d != 0)                                         \
  X(0x0d, s_ashr_i64, 64, 64, 32, d = (i64)a >> (b & 63); scc = d != 0)                                         \
  X(0x0e, s_lshl1_add_u32, 32, 32, 32, u64 t = ((u64)a << 1) + b; d = (u32)t; scc = t >> 32 != 0)               \
  X(0x0f, s_lshl2_add_u32, 32, 32, 32, u64 t = ((u64)a << 2) + b; d = (u32)t; scc = t >> 32 != 0)               \
  X(0x10, s_lshl3_add_u32, 32, 32, 32, u64 t = ((u64)a << 3) + b; d = (u32)t; scc = t >> 32 != 0)               \
  X(0x11, s_lshl4_add_u32, 32, 32, 32, u64 t = ((u64)a << 4) + b; d = (u32)t; scc = t >> 32 != 0)               \
  X(0x12, s_min_i32, 32, 32, 32, scc = (i32)a < (i32)b; d = scc ? a : b)                                        \
  X(0x13, s_min_u32, 32, 32, 32, scc = a < b; d = scc ? a : b)                                                  \
  X(0x14, s_max_i32, 32, 32, 32, scc = (i32)a >= (i32)b; d = scc ? a : b)                                       \
  X(0x15, s_max_u32, 32, 32, 32, scc = a >= b; d = scc ? a : b)                                                 \
  X(0x16, s_and_b32, 32, 32, 32, d = a & b; scc = d != 0)                                                       \
  X(0x17, s_and_b64, 64, 64, 64, d = a & b; scc = d != 0)                                                       \
  X(0x18, s_or_b32, 32, 32, 32, d = a | b; scc = d != 0)                                                        \
  X(0x19, s_or_b64, 64, 64, 64, d = a | b; scc = d != 0)                                                        \
  X(0x1a, s_xor_b32, 32, 32, 32, d = a ^ b; scc = d != 0)                                                       \
  X(0x1b, s_xor_b64, 64, 64, 64, d = a ^ b; scc = d != 0)                                                       \
  X(0x1c, s_nand_b32, 32, 32, 32, d = ~(a & b); scc = d != 0)                                                   \
  X(0x1d, s_nand_b64, 64, 64, 64, d = ~(a & b); scc = d != 0)                                                   \
  X(0x1e, s_nor_b32, 32, 32, 32, d = ~(a | b); scc = d != 0)                                                    \
  X(0x1f, s_nor_b64, 64, 64, 64, d = ~(a | b); scc = d != 0)                                                    \
  X(0x20, s_xnor_b32, 32, 32, 32, d = ~(a ^ b); scc = d != 0)                                                   \
  X(0x21, s_xnor_b64, 64, 64, 64, d = ~(a ^ b); scc = d != 0)                                                   \
  X(0x22, s_and_not1_b32, 32, 32, 32, d = a & ~b; scc = d != 0)                                                 \
  X(0x23, s_and_not1_b64, 64, 64, 64, d = a & ~b; scc = d != 0)                                                 \
  X(0x24, s_or_not1_b32, 32, 32, 32, d = a | ~b; scc = d != 0)                                                  \
  X(0x25, s_or_not1_b64, 64, 64, 64, d = a | ~b; scc = d != 0)                                                  \
  X(0x26, s_bfe_u32, 32, 32, 32, d = field_u64(a, b & 31, b >> 16 & 127); scc = d != 0)                         \
  X(0x27, s_bfe_i32, 32, 32, 32, d = field_i64((i64)(i32)a, b & 31, b >> 16 & 127, 32); scc = d != 0)           \
  X(0x28, s_bfe_u64, 64, 64, 32, d = field_u64(a, b & 63, b >> 16 & 127); scc = d != 0)                         \
  X(0x29, s_bfe_i64, 64, 64, 32, d = field_i64(a, b & 63, b >> 16 & 127, 64); scc = d != 0)                     \
  X(0x2a, s_bfm_b32, 32, 32, 32, d = ((1u << (a & 31)) - 1) << (b & 31))                                        \
  X(0x2b, s_bfm_b64, 64, 32, 32, d = ((1ull << (a & 63)) - 1) << (b & 63))                                      \
  X(0x2c, s_mul_i32, 32, 32, 32, d = a * b)                                                                     \
  X(0x2d, s_mul_hi_u32, 32, 32, 32, d = (u64)a * b >> 32)                                                       \
  X(0x2e, s_mul_hi_i32, 32, 32, 32, d = (u32)((i64)(i32)a * (i32)b >> 32))                                      \
  X(0x30, s_cselect_b32, 32, 32, 32, d = scc ? a : b)                                                           \
  X(0x31, s_cselect_b64, 64, 64, 64, d = scc ? a : b)                                                           \
  X(0x32, s_pack_ll_b32_b16, 32, 32, 32, d = (a & 0xffff) | b << 16)                                            \
  X(0x33, s_pack_lh_b32_b16, 32, 32, 32, d = (a & 0xffff) | (b & 0xffff0000))                                   \
  X(0x34, s_pack_hh_b32_b16, 32, 32, 32, d = a >> 16 | (b & 0xffff0000))                                        \
  X(0x35, s_pack_hl_b32_b16, 32, 32, 32, d = a >> 16 | b << 16)                                                 \
  X(0x40, s_add_f32, F, F, F, d = FS(SF(a) + SF(b)))                                                           \
  X(0x41, s_sub_f32, F, F, F, d = FS(SF(a) - SF(b)))                                                           \
  X(0x42, s_min_f32, F, F, F, d = FS(min_f32(SF(a), SF(b))))                                                   \
  X(0x43, s_max_f32, F, F, F, d = FS(max_f32(SF(a), SF(b))))                                                   \
  X(0x44, s_mul_f32, F, F, F, d = FS(SF(a) * SF(b)))                                                           \
  X(0x45, s_fmaak_f32, F, F, F, d = FS(fmaf(SF(a), SF(b), SF(literal))))                                       \
  X(0x46, s_fmamk_f32, F, F, F, d = FS(fmaf(SF(a), SF(literal), SF(b))))                                       \
  X(0x47, s_fmac_f32, F, F, F, d = FS(fmaf(SF(a), SF(b), SF(d))))                                              \
  X(0x48, s_cvt_pk_rtz_f16_f32, 32, 32, 32,                                                                     \
    d = float_to_half_towards_zero(SF(a)) | float_to_half_towards_zero(SF(b)) << 16)                            \
  X(0x49, s_add_f16, 32, 32, 32, d = float_to_half(half_to_float(a) + half_to_float(b)))                        \
  X(0x4a, s_sub_f16, 32, 32, 32, d = float_to_half(half_to_float(a) - half_to_float(b)))                        \
  X(0x4b, s_min_f16, 32, 32, 32, d = float_to_half(min_f32(half_to_float(a), half_to_float(b))))                \
  X(0x4c, s_max_f16, 32, 32, 32, d = float_to_half(max_f32(half_to_float(a), half_to_float(b))))                \
  X(0x4d, s_mul_f16, 32, 32, 32, d = float_to_half(half_to_float(a) * half_to_float(b)))                        \
  X(0x4e, s_fmac_f16, 32, 32, 32, d = half_fma(half_to_float(a), half_to_float(b), half_to_float(d)))
// saveexec: the result receives EXEC, and EXEC the operation of it (e) with a.
#define SAVE(expression) d = e; e = (expression); scc = (u32)e != 0
#define SOP1_OPS(X)                                                                                             \
  X(0x00, s_mov_b32, 32, 32, 0, d = a)                                                                          \
  X(0x01, s_mov_b64, 64, 64, 0, d = a)                                                                          \
  X(0x02, s_cmov_b32, 32, 32, 0, if (scc) d = a)                                                                \
  X(0x03, s_cmov_b64, 64, 64, 0, if (scc) d = a)                                                                \
  X(0x04, s_brev_b32, 32, 32, 0, d = reverse_bits(a))                                                           \
  X(0x05, s_brev_b64, 64, 64, 0, d = (u64)reverse_bits((u32)a) << 32 | reverse_bits(a >> 32))                   \
  X(0x08, s_ctz_i32_b32, 32, 32, 0, d = a ? __builtin_ctz(a) : -1)                                              \
  X(0x09, s_ctz_i32_b64, 32, 64, 0, d = a ? __builtin_ctzll(a) : -1)                                            \
  X(0x0a, s_clz_i32_u32, 32, 32, 0, d = a ? __builtin_clz(a) : -1)                                              \
  X(0x0b, s_clz_i32_u64, 32, 64, 0, d = a ? __builtin_clzll(a) : -1)                                            \
  X(0x0c, s_cls_i32, 32, 32, 0, u32 t = a ^ (i32)a >> 31; d = t ? __builtin_clz(t) : -1)                        \
  X(0x0d, s_cls_i32_i64, 32, 64, 0, u64 t = a ^ (i64)a >> 63; d = t ? __builtin_clzll(t) : -1)                  \
  X(0x0e, s_sext_i32_i8, 32, 32, 0, d = (i32)(i8)a)                                                             \
  X(0x0f, s_sext_i32_i16, 32, 32, 0, d = (i32)(i16)a)                                                           \
  X(0x10, s_bitset0_b32, 32, 32, 0, d &= ~(1u << (a & 31)))                                                     \
  X(0x11, s_bitset0_b64, 64, 32, 0, d &= ~(1ull << (a & 63)))                                                   \
  X(0x12, s_bitset1_b32, 32, 32, 0, d |= 1u << (a & 31))                                                        \
  X(0x13, s_bitset1_b64, 64, 32, 0, d |= 1ull << (a & 63))                                                      \
  X(0x15, s_abs_i32, 32, 32, 0, d = (i32)a < 0 ? -a : a; scc = d != 0)                                          \
  X(0x16, s_bcnt0_i32_b32, 32, 32, 0, d = 32 - __builtin_popcount(a); scc = d != 0)                             \
  X(0x17, s_bcnt0_i32_b64, 32, 64, 0, d = 64 - __builtin_popcountll(a); scc = d != 0)                           \
  X(0x18, s_bcnt1_i32_b32, 32, 32, 0, d = __builtin_popcount(a); scc = d != 0)                                  \
  X(0x19, s_bcnt1_i32_b64, 32, 64, 0, d = __builtin_popcountll(a); scc = d != 0)                                \
  X(0x1e, s_not_b32, 32, 32, 0, d = ~a; scc = d != 0)                                                           \
  X(0x1f, s_not_b64, 64, 64, 0, d = ~a; scc = d != 0)                                                           \
  X(0x20, s_and_saveexec_b32, 32, 32, 0, SAVE(a & e))                                                           \
  X(0x22, s_or_saveexec_b32, 32, 32, 0, SAVE(a | e))                                                            \
  X(0x24, s_xor_saveexec_b32, 32, 32, 0, SAVE(a ^ e))                                                           \
  X(0x26, s_nand_saveexec_b32, 32, 32, 0, SAVE(~(a & e)))                                                       \
  X(0x28, s_nor_saveexec_b32, 32, 32, 0, SAVE(~(a | e)))                                                        \
  X(0x2a, s_xnor_saveexec_b32, 32, 32, 0, SAVE(~(a ^ e)))                                                       \
  X(0x2c, s_and_not0_saveexec_b32, 32, 32, 0, SAVE(~a & e))                                                     \
  X(0x2e, s_or_not0_saveexec_b32, 32, 32, 0, SAVE(~a | e))                                                      \
  X(0x30, s_and_not1_saveexec_b32, 32, 32, 0, SAVE(a & ~e))                                                     \
  X(0x32, s_or_not1_saveexec_b32, 32, 32, 0, SAVE(a | ~e))                                                      \
  X(0x34, s_and_not0_wrexec_b32, 32, 32, 0, e = ~a & e; d = e; scc = d != 0)                                    \
  X(0x36, s_and_not1_wrexec_b32, 32, 32, 0, e = a & ~e; d = e; scc = d != 0)                                    \
  X(0x60, s_ceil_f32, F, F, 0, d = FS(ceilf(SF(a))))                                                           \
  X(0x61, s_floor_f32, F, F, 0, d = FS(floorf(SF(a))))                                                         \
  X(0x62, s_trunc_f32, F, F, 0, d = FS(truncf(SF(a))))                                                         \
  X(0x63, s_rndne_f32, F, F, 0, d = FS(rintf(SF(a))))                                                          \
  X(0x64, s_cvt_f32_i32, 32, 32, 0, d = FS((float)(i32)a))                                                      \
  X(0x65, s_cvt_f32_u32, 32, 32, 0, d = FS((float)a))                                                           \
  X(0x66, s_cvt_i32_f32, 32, F, 0, d = to_i32(SF(a)))                                                           \
  X(0x67, s_cvt_u32_f32, 32, F, 0, d = to_u32(SF(a)))                                                           \
  X(0x68, s_cvt_f16_f32, 32, F, 0, d = float_to_half(SF(a)))                                                    \
  X(0x69, s_cvt_f32_f16, 32, 32, 0, d = FS(half_to_float(a)))                                                   \
  X(0x6a, s_cvt_hi_f32_f16, 32, 32, 0, d = FS(half_to_float(a >> 16)))                                          \
  X(0x6b, s_ceil_f16, 32, 32, 0, d = float_to_half(ceilf(half_to_float(a))))                                    \
  X(0x6c, s_floor_f16, 32, 32, 0, d = float_to_half(floorf(half_to_float(a))))                                  \
  X(0x6d, s_trunc_f16, 32, 32, 0, d = float_to_half(truncf(half_to_float(a))))                                  \
  X(0x6e, s_rndne_f16, 32, 32, 0, d = float_to_half(rintf(half_to_float(a))))
#define FLOAT_COMPARES(X, base, suffix, get)                                                                    \
  X(base + 1, s_cmp_lt_##suffix, 0, 32, 32, scc = get(a) < get(b))                                              \
  X(base + 2, s_cmp_eq_##suffix, 0, 32, 32, scc = get(a) == get(b))                                             \
  X(base + 3, s_cmp_le_##suffix, 0, 32, 32, scc = get(a) <= get(b))                                             \
  X(base + 4, s_cmp_gt_##suffix, 0, 32, 32, scc = get(a) > get(b))                                              \
  X(base + 5, s_cmp_lg_##suffix, 0, 32, 32, scc = get(a) < get(b) || get(a) > get(b))                           \
  X(base + 6, s_cmp_ge_##suffix, 0, 32, 32, scc = get(a) >= get(b))                                             \
  X(base + 7, s_cmp_o_##suffix, 0, 32, 32, scc = get(a) == get(a) && get(b) == get(b))                          \
  X(base + 8, s_cmp_u_##suffix, 0, 32, 32, scc = get(a) != get(a) || get(b) != get(b))                          \
  X(base + 9, s_cmp_nge_##suffix, 0, 32, 32, scc = !(get(a) >= get(b)))                                         \
  X(base + 10, s_cmp_nlg_##suffix, 0, 32, 32, scc = !(get(a) < get(b) || get(a) > get(b)))                      \
  X(base + 11, s_cmp_ngt_##suffix, 0, 32, 32, scc = !(get(a) > get(b)))                                         \
  X(base + 12, s_cmp_nle_##suffix, 0, 32, 32, scc = !(get(a) <= get(b)))                                        \
  X(base + 13, s_cmp_neq_##suffix, 0, 32, 32, scc = !(get(a) == get(b)))                                        \
  X(base + 14, s_cmp_nlt_##suffix, 0, 32, 32, scc = !(get(a) < get(b)))
#define SOPC_OPS(X)                                                                                             \
  X(0x00, s_cmp_eq_i32, 0, 32, 32, scc = a == b)                                                                \
  X(0x01, s_cmp_lg_i32, 0, 32, 32, scc = a != b)                                                                \
  X(0x02, s_cmp_gt_i32, 0, 32, 32, scc = (i32)a > (i32)b)                                                       \
  X(0x03, s_cmp_ge_i32, 0, 32, 32, scc = (i32)a >= (i32)b)                                                      \
  X(0x04, s_cmp_lt_i32, 0, 32, 32, scc = (i32)a < (i32)b)                                                       \
  X(0x05, s_cmp_le_i32, 0, 32, 32, scc = (i32)a <= (i32)b)                                                      \
  X(0x06, s_cmp_eq_u32, 0, 32, 32, scc = a == b)                                                                \
  X(0x07, s_cmp_lg_u32, 0, 32, 32, scc = a != b)                                                                \
  X(0x08, s_cmp_gt_u32, 0, 32, 32, scc = a > b)                                                                 \
  X(0x09, s_cmp_ge_u32, 0, 32, 32, scc = a >= b)                                                                \
  X(0x0a, s_cmp_lt_u32, 0, 32, 32, scc = a < b)                                                                 \
  X(0x0b, s_cmp_le_u32, 0, 32, 32, scc = a <= b)                                                                \
  X(0x0c, s_bitcmp0_b32, 0, 32, 32, scc = !(a >> (b & 31) & 1))                                                 \
  X(0x0d, s_bitcmp1_b32, 0, 32, 32, scc = a >> (b & 31) & 1)                                                    \
  X(0x0e, s_bitcmp0_b64, 0, 64, 32, scc = !(a >> (b & 63) & 1))                                                 \
  X(0x0f, s_bitcmp1_b64, 0, 64, 32, scc = a >> (b & 63) & 1)                                                    \
  X(0x10, s_cmp_eq_u64, 0, 64, 64, scc = a == b)                                                                \
  X(0x11, s_cmp_lg_u64, 0, 64, 64, scc = a != b)                                                                \
  FLOAT_COMPARES(X, 0x40, f32, as_float)                                                                        \
  FLOAT_COMPARES(X, 0x50, f16, half_to_float)
// SOPK: b is the 16-bit immediate, sign-extended; a and d are the result register.
#define SOPK_OPS(X)                                                                                             \
  X(0x00, s_movk_i32, 32, 32, 32, d = b)                                                                        \
  X(0x02, s_cmovk_i32, 32, 32, 32, if (scc) d = b)                                                              \
  X(0x03, s_cmpk_eq_i32, 0, 32, 32, scc = a == b)                                                               \
  X(0x04, s_cmpk_lg_i32, 0, 32, 32, scc = a != b)                                                               \
  X(0x05, s_cmpk_gt_i32, 0, 32, 32, scc = (i32)a > (i32)b)                                                      \
  X(0x06, s_cmpk_ge_i32, 0, 32, 32, scc = (i32)a >= (i32)b)                                                     \
  X(0x07, s_cmpk_lt_i32, 0, 32, 32, scc = (i32)a < (i32)b)                                                      \
  X(0x08, s_cmpk_le_i32, 0, 32, 32, scc = (i32)a <= (i32)b)                                                     \
  X(0x09, s_cmpk_eq_u32, 0, 32, 32, scc = a == (u16)b)                                                          \
  X(0x0a, s_cmpk_lg_u32, 0, 32, 32, scc = a != (u16)b)                                                          \
  X(0x0b, s_cmpk_gt_u32, 0, 32, 32, scc = a > (u16)b)                                                           \
  X(0x0c, s_cmpk_ge_u32, 0, 32, 32, scc = a >= (u16)b)                                                          \
  X(0x0d, s_cmpk_lt_u32, 0, 32, 32, scc = a < (u16)b)                                                           \
  X(0x0e, s_cmpk_le_u32, 0, 32, 32, scc = a <= (u16)b)                                                          \
  X(0x0f, s_addk_i32, 32, 32, 32, d = a + b; scc = (~(a ^ b) & (a ^ d)) >> 31)                                  \
  X(0x10, s_mulk_i32, 32, 32, 32, d = a * b)
