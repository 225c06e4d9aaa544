// Vector opcodes whose lanes are independent: X(number, name, class, result, sources, meaning).
// Types: F f32, H f16 as float, G f16 bits with float modifiers, D f64, U u32, I i32, W u16, S i16, Q u64, L i64,
// B u32 with the modifiers of a float, M a lane mask's bit, T true or false (a compare's result), 0 none.
// a, b, c: the sources. The value of the meaning is the result.
#define VOP1_OPS(X)                                                                  \
  X(0x01, v_mov_b32, vector, U, U, 0, 0, a)                                          \
  X(0x03, v_cvt_i32_f64, vector, U, D, 0, 0, to_i32(a))                              \
  X(0x04, v_cvt_f64_i32, vector, D, I, 0, 0, (double)a)                              \
  X(0x05, v_cvt_f32_i32, vector, F, I, 0, 0, (float)a)                               \
  X(0x06, v_cvt_f32_u32, vector, F, U, 0, 0, (float)a)                               \
  X(0x07, v_cvt_u32_f32, vector, U, F, 0, 0, to_u32(a))                              \
  X(0x08, v_cvt_i32_f32, vector, U, F, 0, 0, to_i32(a))                              \
  X(0x0a, v_cvt_f16_f32, vector, H, F, 0, 0, a)                                      \
  X(0x0b, v_cvt_f32_f16, vector, F, H, 0, 0, a)                                      \
  X(0x0c, v_cvt_nearest_i32_f32, vector, U, F, 0, 0, to_i32(floor((double)a + 0.5))) \
  X(0x0d, v_cvt_floor_i32_f32, vector, U, F, 0, 0, to_i32(floorf(a)))                \
  X(0x0e, v_cvt_off_f32_i4, vector, F, U, 0, 0, (float)((i32)(a << 28) >> 28) / 16)  \
  X(0x0f, v_cvt_f32_f64, vector, F, D, 0, 0, (float)a)                               \
  X(0x10, v_cvt_f64_f32, vector, D, F, 0, 0, (double)a)                              \
  X(0x11, v_cvt_f32_ubyte0, vector, F, U, 0, 0, (float)(a & 255))                    \
  X(0x12, v_cvt_f32_ubyte1, vector, F, U, 0, 0, (float)(a >> 8 & 255))               \
  X(0x13, v_cvt_f32_ubyte2, vector, F, U, 0, 0, (float)(a >> 16 & 255))              \
  X(0x14, v_cvt_f32_ubyte3, vector, F, U, 0, 0, (float)(a >> 24))                    \
  X(0x15, v_cvt_u32_f64, vector, U, D, 0, 0, to_u32(a))                              \
  X(0x16, v_cvt_f64_u32, vector, D, U, 0, 0, (double)a)                              \
  X(0x17, v_trunc_f64, vector, D, D, 0, 0, trunc(a))                                 \
  X(0x18, v_ceil_f64, vector, D, D, 0, 0, ceil(a))                                   \
  X(0x19, v_rndne_f64, vector, D, D, 0, 0, rint(a))                                  \
  X(0x1a, v_floor_f64, vector, D, D, 0, 0, floor(a))                                 \
  X(0x1c, v_mov_b16, vector, W, W, 0, 0, a)                                          \
  X(0x20, v_fract_f32, vector, F, F, 0, 0, fract_f32(a))                             \
  X(0x21, v_trunc_f32, vector, F, F, 0, 0, truncf(a))                                \
  X(0x22, v_ceil_f32, vector, F, F, 0, 0, ceilf(a))                                  \
  X(0x23, v_rndne_f32, vector, F, F, 0, 0, rintf(a))                                 \
  X(0x24, v_floor_f32, vector, F, F, 0, 0, floorf(a))                                \
  X(0x25, v_exp_f32, transcendental, F, F, 0, 0, exp2_unit(a))                       \
  X(0x27, v_log_f32, transcendental, F, F, 0, 0, log2_unit(a))                       \
  X(0x2a, v_rcp_f32, transcendental, F, F, 0, 0, rcp_unit(a))                        \
  X(0x2b, v_rcp_iflag_f32, transcendental, F, F, 0, 0, rcp_unit(a))                  \
  X(0x2e, v_rsq_f32, transcendental, F, F, 0, 0, rsq_unit(a))                        \
  X(0x2f, v_rcp_f64, transcendental, D, D, 0, 0, 1 / a)                              \
  X(0x31, v_rsq_f64, transcendental, D, D, 0, 0, 1 / sqrt(a))                        \
  X(0x33, v_sqrt_f32, transcendental, F, F, 0, 0, sqrt_unit(a))                      \
  X(0x34, v_sqrt_f64, transcendental, D, D, 0, 0, sqrt(a))                           \
  X(0x35, v_sin_f32, transcendental, F, F, 0, 0, sin_unit(a))                        \
  X(0x36, v_cos_f32, transcendental, F, F, 0, 0, cos_unit(a))                        \
  X(0x37, v_not_b32, vector, U, U, 0, 0, ~a)                                         \
  X(0x38, v_bfrev_b32, vector, U, U, 0, 0, reverse_bits(a))                          \
  X(0x39, v_clz_i32_u32, vector, U, U, 0, 0, a ? (u32)__builtin_clz(a) : ~0u)        \
  X(0x3a, v_ctz_i32_b32, vector, U, U, 0, 0, a ? (u32)__builtin_ctz(a) : ~0u)        \
  X(0x3b, v_cls_i32, vector, U, I, 0, 0, a ^ a >> 31 ? (u32)__builtin_clz(a ^ a >> 31) : ~0u) \
  X(0x3c, v_frexp_exp_i32_f64, vector, U, D, 0, 0, (u32)frexp_exponent(a))           \
  X(0x3d, v_frexp_mant_f64, vector, D, D, 0, 0, frexp_mantissa(a))                   \
  X(0x3e, v_fract_f64, vector, D, D, 0, 0, fract_f64(a))                             \
  X(0x3f, v_frexp_exp_i32_f32, vector, U, F, 0, 0, (u32)frexp_exponent(a))           \
  X(0x40, v_frexp_mant_f32, vector, F, F, 0, 0, (float)frexp_mantissa(a))            \
  X(0x50, v_cvt_f16_u16, vector, H, W, 0, 0, (float)a)                               \
  X(0x51, v_cvt_f16_i16, vector, H, S, 0, 0, (float)a)                               \
  X(0x52, v_cvt_u16_f16, vector, W, H, 0, 0, to_u16(a))                              \
  X(0x53, v_cvt_i16_f16, vector, W, H, 0, 0, to_i16(a))                              \
  X(0x54, v_rcp_f16, transcendental, H, H, 0, 0, 1 / a)                              \
  X(0x55, v_sqrt_f16, transcendental, H, H, 0, 0, sqrtf(a))                          \
  X(0x56, v_rsq_f16, transcendental, H, H, 0, 0, 1 / sqrtf(a))                       \
  X(0x57, v_log_f16, transcendental, H, H, 0, 0, log2f(a))                           \
  X(0x58, v_exp_f16, transcendental, H, H, 0, 0, exp2f(a))                           \
  X(0x59, v_frexp_mant_f16, vector, H, H, 0, 0, (float)frexp_mantissa(a))            \
  X(0x5a, v_frexp_exp_i16_f16, vector, W, H, 0, 0, (u32)frexp_exponent(a))           \
  X(0x5b, v_floor_f16, vector, H, H, 0, 0, floorf(a))                                \
  X(0x5c, v_ceil_f16, vector, H, H, 0, 0, ceilf(a))                                  \
  X(0x5d, v_trunc_f16, vector, H, H, 0, 0, truncf(a))                                \
  X(0x5e, v_rndne_f16, vector, H, H, 0, 0, rintf(a))                                 \
  X(0x5f, v_fract_f16, vector, H, H, 0, 0, min_f32(a - floorf(a), 0x1.ffcp-1f))      \
  X(0x60, v_sin_f16, transcendental, H, H, 0, 0, sin_unit(a))                        \
  X(0x61, v_cos_f16, transcendental, H, H, 0, 0, cos_unit(a))                        \
  X(0x69, v_not_b16, vector, W, W, 0, 0, ~a)                                         \
  X(0x6a, v_cvt_i32_i16, vector, U, S, 0, 0, (u32)a)                                 \
  X(0x6b, v_cvt_u32_u16, vector, U, W, 0, 0, a)
// c of an fmac is the old result; of fmamk and fmaak, the literal is b and c.
#define VOP2_OPS(X)                                                                  \
  X(0x01, v_cndmask_b32, vector, U, B, B, M, c ? b : a)                          \
  X(0x02, v_dot2acc_f32_f16, dot, F, U, U, F, dot2_f16(a, b, c))                     \
  X(0x03, v_add_f32, vector, F, F, F, 0, a + b)                                      \
  X(0x04, v_sub_f32, vector, F, F, F, 0, a - b)                                      \
  X(0x05, v_subrev_f32, vector, F, F, F, 0, b - a)                                   \
  X(0x07, v_mul_dx9_zero_f32, vector, F, F, F, 0, a == 0 || b == 0 ? 0.0f : a * b)   \
  X(0x08, v_mul_f32, vector, F, F, F, 0, a * b)                                      \
  X(0x09, v_mul_i32_i24, vector, U, I, I, 0, (u32)((i64)(a << 8 >> 8) * (b << 8 >> 8))) \
  X(0x0a, v_mul_hi_i32_i24, vector, U, I, I, 0, (u32)((i64)(a << 8 >> 8) * (b << 8 >> 8) >> 32)) \
  X(0x0b, v_mul_u32_u24, vector, U, U, U, 0, (a & 0xffffff) * (b & 0xffffff))        \
  X(0x0c, v_mul_hi_u32_u24, vector, U, U, U, 0, (u32)((u64)(a & 0xffffff) * (b & 0xffffff) >> 32)) \
  X(0x0f, v_min_f32, vector, F, F, F, 0, min_f32(a, b))                              \
  X(0x10, v_max_f32, vector, F, F, F, 0, max_f32(a, b))                              \
  X(0x11, v_min_i32, vector, U, I, I, 0, (u32)min_i32(a, b))                         \
  X(0x12, v_max_i32, vector, U, I, I, 0, (u32)max_i32(a, b))                         \
  X(0x13, v_min_u32, vector, U, U, U, 0, min_u32(a, b))                              \
  X(0x14, v_max_u32, vector, U, U, U, 0, max_u32(a, b))                              \
  X(0x18, v_lshlrev_b32, vector, U, U, U, 0, b << (a & 31))                          \
  X(0x19, v_lshrrev_b32, vector, U, U, U, 0, b >> (a & 31))                          \
  X(0x1a, v_ashrrev_i32, vector, U, U, I, 0, (u32)(b >> (a & 31)))                   \
  X(0x1b, v_and_b32, vector, U, U, U, 0, a & b)                                      \
  X(0x1c, v_or_b32, vector, U, U, U, 0, a | b)                                       \
  X(0x1d, v_xor_b32, vector, U, U, U, 0, a ^ b)                                      \
  X(0x1e, v_xnor_b32, vector, U, U, U, 0, ~(a ^ b))                                  \
  X(0x25, v_add_nc_u32, vector, U, U, U, 0, a + b)                                   \
  X(0x26, v_sub_nc_u32, vector, U, U, U, 0, a - b)                                   \
  X(0x27, v_subrev_nc_u32, vector, U, U, U, 0, b - a)                                \
  X(0x2b, v_fmac_f32, vector, F, F, F, F, fmaf(a, b, c))                             \
  X(0x2c, v_fmamk_f32, vector, F, F, F, F, fmaf(a, b, c))                            \
  X(0x2d, v_fmaak_f32, vector, F, F, F, F, fmaf(a, b, c))                            \
  X(0x2f, v_cvt_pk_rtz_f16_f32, vector, U, F, F, 0,                                  \
    float_to_half_towards_zero(a) | float_to_half_towards_zero(b) << 16)             \
  X(0x32, v_add_f16, vector, H, H, H, 0, a + b)                                      \
  X(0x33, v_sub_f16, vector, H, H, H, 0, a - b)                                      \
  X(0x34, v_subrev_f16, vector, H, H, H, 0, b - a)                                   \
  X(0x35, v_mul_f16, vector, H, H, H, 0, a * b)                                      \
  X(0x36, v_fmac_f16, vector, G, H, H, H, half_fma(a, b, c))                         \
  X(0x37, v_fmamk_f16, vector, G, H, H, H, half_fma(a, b, c))                        \
  X(0x38, v_fmaak_f16, vector, G, H, H, H, half_fma(a, b, c))                        \
  X(0x39, v_max_f16, vector, H, H, H, 0, max_f32(a, b))                              \
  X(0x3a, v_min_f16, vector, H, H, H, 0, min_f32(a, b))                              \
  X(0x3b, v_ldexp_f16, vector, H, H, S, 0, (float)ldexp(a, b))
#define VOP3_OPS(X)                                                                  \
  X(0x20a, v_mad_i32_i24, vector, U, I, I, U, (u32)((i64)(a << 8 >> 8) * (b << 8 >> 8)) + c) \
  X(0x20b, v_mad_u32_u24, vector, U, U, U, U, (a & 0xffffff) * (b & 0xffffff) + c)   \
  X(0x210, v_bfe_u32, vector, U, U, U, U, (u32)field_u64(a, b & 31, c & 31))         \
  X(0x211, v_bfe_i32, vector, U, I, U, U, (u32)field_i64(a, b & 31, c & 31, 32))     \
  X(0x212, v_bfi_b32, vector, U, U, U, U, (a & b) | (~a & c))                        \
  X(0x213, v_fma_f32, vector, F, F, F, F, fmaf(a, b, c))                             \
  X(0x214, v_fma_f64, vector, D, D, D, D, fma(a, b, c))                              \
  X(0x216, v_alignbit_b32, vector, U, U, U, U, (u32)(((u64)a << 32 | b) >> (c & 31))) \
  X(0x217, v_alignbyte_b32, vector, U, U, U, U, (u32)(((u64)a << 32 | b) >> 8 * (c & 3))) \
  X(0x219, v_min3_f32, vector, F, F, F, F, min_f32(min_f32(a, b), c))                \
  X(0x21a, v_min3_i32, vector, U, I, I, I, (u32)min_i32(min_i32(a, b), c))           \
  X(0x21b, v_min3_u32, vector, U, U, U, U, min_u32(min_u32(a, b), c))                \
  X(0x21c, v_max3_f32, vector, F, F, F, F, max_f32(max_f32(a, b), c))                \
  X(0x21d, v_max3_i32, vector, U, I, I, I, (u32)max_i32(max_i32(a, b), c))           \
  X(0x21e, v_max3_u32, vector, U, U, U, U, max_u32(max_u32(a, b), c))                \
  X(0x21f, v_med3_f32, vector, F, F, F, F, med3_f32(a, b, c))                        \
  X(0x220, v_med3_i32, vector, U, I, I, I, (u32)max_i32(min_i32(a, b), min_i32(max_i32(a, b), c))) \
  X(0x221, v_med3_u32, vector, U, U, U, U, max_u32(min_u32(a, b), min_u32(max_u32(a, b), c))) \
  X(0x222, v_sad_u8, vector, U, U, U, U, sad_u8(a, b, c))                            \
  X(0x227, v_div_fixup_f32, vector, F, F, F, F, div_fixup_f32(a, b, c))              \
  X(0x228, v_div_fixup_f64, vector, D, D, D, D, div_fixup_f64(a, b, c))              \
  X(0x240, v_xor3_b32, vector, U, U, U, U, a ^ b ^ c)                                \
  X(0x241, v_mad_u16, vector, W, W, W, W, a * b + c)                                 \
  X(0x244, v_perm_b32, vector, U, U, U, U, permute_bytes(a, b, c))                   \
  X(0x245, v_xad_u32, vector, U, U, U, U, (a ^ b) + c)                               \
  X(0x246, v_lshl_add_u32, vector, U, U, U, U, (a << (b & 31)) + c)                  \
  X(0x247, v_add_lshl_u32, vector, U, U, U, U, (a + b) << (c & 31))                  \
  X(0x248, v_fma_f16, vector, G, H, H, H, half_fma(a, b, c))                         \
  X(0x249, v_min3_f16, vector, H, H, H, H, min_f32(min_f32(a, b), c))                \
  X(0x24a, v_min3_i16, vector, W, S, S, S, (u32)min_i32(min_i32(a, b), c))           \
  X(0x24b, v_min3_u16, vector, W, W, W, W, min_u32(min_u32(a, b), c))                \
  X(0x24c, v_max3_f16, vector, H, H, H, H, max_f32(max_f32(a, b), c))                \
  X(0x24d, v_max3_i16, vector, W, S, S, S, (u32)max_i32(max_i32(a, b), c))           \
  X(0x24e, v_max3_u16, vector, W, W, W, W, max_u32(max_u32(a, b), c))                \
  X(0x24f, v_med3_f16, vector, H, H, H, H, med3_f32(a, b, c))                        \
  X(0x250, v_med3_i16, vector, W, S, S, S, (u32)max_i32(min_i32(a, b), min_i32(max_i32(a, b), c))) \
  X(0x251, v_med3_u16, vector, W, W, W, W, max_u32(min_u32(a, b), min_u32(max_u32(a, b), c))) \
  X(0x253, v_mad_i16, vector, W, S, S, S, (u32)(a * b + c))                          \
  X(0x254, v_div_fixup_f16, vector, H, H, H, H, div_fixup_f32(a, b, c))              \
  X(0x255, v_add3_u32, vector, U, U, U, U, a + b + c)                                \
  X(0x256, v_lshl_or_b32, vector, U, U, U, U, a << (b & 31) | c)                     \
  X(0x257, v_and_or_b32, vector, U, U, U, U, (a & b) | c)                            \
  X(0x258, v_or3_b32, vector, U, U, U, U, a | b | c)                                 \
  X(0x259, v_mad_u32_u16, vector, U, W, W, U, a * b + c)                             \
  X(0x25a, v_mad_i32_i16, vector, U, S, S, U, (u32)(a * b) + c)                      \
  X(0x25d, v_cndmask_b16, vector, W, G, G, M, c ? b : a)                             \
  X(0x25e, v_maxmin_f32, vector, F, F, F, F, min_f32(max_f32(a, b), c))              \
  X(0x25f, v_minmax_f32, vector, F, F, F, F, max_f32(min_f32(a, b), c))              \
  X(0x260, v_maxmin_f16, vector, H, H, H, H, min_f32(max_f32(a, b), c))              \
  X(0x261, v_minmax_f16, vector, H, H, H, H, max_f32(min_f32(a, b), c))              \
  X(0x262, v_maxmin_u32, vector, U, U, U, U, min_u32(max_u32(a, b), c))              \
  X(0x263, v_minmax_u32, vector, U, U, U, U, max_u32(min_u32(a, b), c))              \
  X(0x264, v_maxmin_i32, vector, U, I, I, I, (u32)min_i32(max_i32(a, b), c))         \
  X(0x265, v_minmax_i32, vector, U, I, I, I, (u32)max_i32(min_i32(a, b), c))         \
  X(0x303, v_add_nc_u16, vector, W, W, W, 0, a + b)                                  \
  X(0x304, v_sub_nc_u16, vector, W, W, W, 0, a - b)                                  \
  X(0x305, v_mul_lo_u16, vector, W, W, W, 0, a * b)                                  \
  X(0x306, v_cvt_pk_i16_f32, vector, U, F, F, 0, to_i16(a) | to_i16(b) << 16)        \
  X(0x307, v_cvt_pk_u16_f32, vector, U, F, F, 0, to_u16(a) | to_u16(b) << 16)        \
  X(0x309, v_max_u16, vector, W, W, W, 0, max_u32(a, b))                             \
  X(0x30a, v_max_i16, vector, W, S, S, 0, (u32)max_i32(a, b))                        \
  X(0x30b, v_min_u16, vector, W, W, W, 0, min_u32(a, b))                             \
  X(0x30c, v_min_i16, vector, W, S, S, 0, (u32)min_i32(a, b))                        \
  X(0x30d, v_add_nc_i16, vector, W, S, S, 0, (u32)(a + b))                           \
  X(0x30e, v_sub_nc_i16, vector, W, S, S, 0, (u32)(a - b))                           \
  X(0x311, v_pack_b32_f16, vector, U, G, G, 0, a | b << 16)                          \
  X(0x31c, v_ldexp_f32, vector, F, F, I, 0, ldexp_f32(a, b))                         \
  X(0x31d, v_bfm_b32, vector, U, U, U, 0, ((1u << (a & 31)) - 1) << (b & 31))        \
  X(0x31e, v_bcnt_u32_b32, vector, U, U, U, 0, (u32)__builtin_popcount(a) + b)       \
  X(0x31f, v_mbcnt_lo_u32_b32, vector, U, U, U, 0, (u32)__builtin_popcount(a & ((1u << l) - 1)) + b) \
  X(0x320, v_mbcnt_hi_u32_b32, vector, U, U, U, 0, b)                                \
  X(0x321, v_cvt_pk_norm_i16_f32, vector, U, F, F, 0, norm_i16(a) | norm_i16(b) << 16) \
  X(0x322, v_cvt_pk_norm_u16_f32, vector, U, F, F, 0, norm_u16(a) | norm_u16(b) << 16) \
  X(0x323, v_cvt_pk_u16_u32, vector, U, U, U, 0, min_u32(a, 65535) | min_u32(b, 65535) << 16) \
  X(0x324, v_cvt_pk_i16_i32, vector, U, I, I, 0,                                     \
    ((u32)max_i32(min_i32(a, 32767), -32768) & 0xffff) | (u32)max_i32(min_i32(b, 32767), -32768) << 16) \
  X(0x325, v_sub_nc_i32, vector, U, U, U, 0, a - b)                                  \
  X(0x326, v_add_nc_i32, vector, U, U, U, 0, a + b)                                  \
  X(0x327, v_add_f64, vector, D, D, D, 0, a + b)                                     \
  X(0x328, v_mul_f64, vector, D, D, D, 0, a * b)                                     \
  X(0x329, v_min_f64, vector, D, D, D, 0, min_f64(a, b))                             \
  X(0x32a, v_max_f64, vector, D, D, D, 0, max_f64(a, b))                             \
  X(0x32b, v_ldexp_f64, vector, D, D, I, 0, ldexp_clamped(a, b))                     \
  X(0x32c, v_mul_lo_u32, vector, U, U, U, 0, a * b)                                  \
  X(0x32d, v_mul_hi_u32, vector, U, U, U, 0, (u32)((u64)a * b >> 32))                \
  X(0x32e, v_mul_hi_i32, vector, U, I, I, 0, (u32)((i64)a * b >> 32))                \
  X(0x338, v_lshlrev_b16, vector, W, W, W, 0, b << (a & 15))                         \
  X(0x339, v_lshrrev_b16, vector, W, W, W, 0, b >> (a & 15))                         \
  X(0x33a, v_ashrrev_i16, vector, W, W, S, 0, (u32)(b >> (a & 15)))                  \
  X(0x33c, v_lshlrev_b64, vector, Q, U, Q, 0, b << (a & 63))                         \
  X(0x33d, v_lshrrev_b64, vector, Q, U, Q, 0, b >> (a & 63))                         \
  X(0x33e, v_ashrrev_i64, vector, Q, U, L, 0, (u64)(b >> (a & 63)))                  \
  X(0x362, v_and_b16, vector, W, W, W, 0, a & b)                                     \
  X(0x363, v_or_b16, vector, W, W, W, 0, a | b)                                      \
  X(0x364, v_xor_b16, vector, W, W, W, 0, a ^ b)
#define COMPARES(X, base, suffix, T_)                                                \
  X(base + 0, v_cmp_f_##suffix, vector, T, T_, T_, 0, 0)                             \
  X(base + 1, v_cmp_lt_##suffix, vector, T, T_, T_, 0, a < b)                        \
  X(base + 2, v_cmp_eq_##suffix, vector, T, T_, T_, 0, a == b)                       \
  X(base + 3, v_cmp_le_##suffix, vector, T, T_, T_, 0, a <= b)                       \
  X(base + 4, v_cmp_gt_##suffix, vector, T, T_, T_, 0, a > b)                        \
  X(base + 6, v_cmp_ge_##suffix, vector, T, T_, T_, 0, a >= b)
#define INTEGER_COMPARES(X, base, suffix, T_)                                        \
  COMPARES(X, base, suffix, T_)                                                      \
  X(base + 5, v_cmp_ne_##suffix, vector, T, T_, T_, 0, a != b)                       \
  X(base + 7, v_cmp_t_##suffix, vector, T, T_, T_, 0, 1)
#define UNORDERED_COMPARES(X, base, suffix, T_)                                      \
  COMPARES(X, base, suffix, T_)                                                      \
  X(base + 5, v_cmp_lg_##suffix, vector, T, T_, T_, 0, a < b || a > b)               \
  X(base + 7, v_cmp_o_##suffix, vector, T, T_, T_, 0, a == a && b == b)              \
  X(base + 8, v_cmp_u_##suffix, vector, T, T_, T_, 0, a != a || b != b)              \
  X(base + 9, v_cmp_nge_##suffix, vector, T, T_, T_, 0, !(a >= b))                   \
  X(base + 10, v_cmp_nlg_##suffix, vector, T, T_, T_, 0, !(a < b || a > b))          \
  X(base + 11, v_cmp_ngt_##suffix, vector, T, T_, T_, 0, !(a > b))                   \
  X(base + 12, v_cmp_nle_##suffix, vector, T, T_, T_, 0, !(a <= b))                  \
  X(base + 13, v_cmp_neq_##suffix, vector, T, T_, T_, 0, !(a == b))                  \
  X(base + 14, v_cmp_nlt_##suffix, vector, T, T_, T_, 0, !(a < b))                   \
  X(base + 15, v_cmp_t_##suffix, vector, T, T_, T_, 0, 1)
#define VOPC_OPS(X)                                                                  \
  UNORDERED_COMPARES(X, 0x00, f16, H)                                                \
  UNORDERED_COMPARES(X, 0x10, f32, F)                                                \
  UNORDERED_COMPARES(X, 0x20, f64, D)                                                \
  INTEGER_COMPARES(X, 0x30, i16, S)                                                  \
  INTEGER_COMPARES(X, 0x38, u16, W)                                                  \
  INTEGER_COMPARES(X, 0x40, i32, I)                                                  \
  INTEGER_COMPARES(X, 0x48, u32, U)                                                  \
  INTEGER_COMPARES(X, 0x50, i64, L)                                                  \
  INTEGER_COMPARES(X, 0x58, u64, Q)                                                  \
  X(0x7d, v_cmp_class_f16, vector, T, G, U, 0, (class_f16(a) & b) != 0)              \
  X(0x7e, v_cmp_class_f32, vector, T, F, U, 0, (class_f32(a) & b) != 0)              \
  X(0x7f, v_cmp_class_f64, vector, T, D, U, 0, (class_f64(a) & b) != 0)
