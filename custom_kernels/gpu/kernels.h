// The kernels that a program can launch, each made by one macro line: custom_kernels/gpu/kernels.py lists the lines, and
// builds a source of those that a program needs. Arguments of a kernel: one pointer per binding, then the scalars.
#pragma once

#include "argmax.h"
#include "attention.h"
#include "embedding.h"
#include "finish.h"
#include "flash_attention.h"
#include "fused_gemm.h"
#include "fused_gemv.h"
#include "fused_stripes.h"
#include "gemm.h"
#include "gemv.h"
#include "matrix_gemm.h"
#include "rms_norm.h"
#include "rope_and_append.h"
#include "streams.h"
#include "stripe_gemv.h"

#define IN(type, name) const GLOBAL type *__restrict name
#define OUT(type, name) GLOBAL type *__restrict name

// The parts of each weight format in the order of formats.py, and the format over them.
#define CODES_SCALE IN(u32, codes), IN(f16, scale)
#define CODES_HIGH_SCALE IN(u32, codes), IN(u32, high), IN(f16, scale)
#define TWO_LEVELS IN(i8, scale), IN(f16, super_scale), IN(i8, minimum), IN(f16, super_minimum)
#define PARTS_q4_0 CODES_SCALE
#define PARTS_q4_1 CODES_SCALE, IN(f16, minimum)
#define PARTS_q5_0 CODES_HIGH_SCALE
#define PARTS_q5_1 CODES_HIGH_SCALE, IN(f16, minimum)
#define PARTS_q8_0 CODES_SCALE
#define PARTS_q4_k IN(u32, codes), TWO_LEVELS
#define PARTS_q5_k IN(u32, codes), IN(u32, high), TWO_LEVELS
#define PARTS_q6_k IN(u32, codes), IN(u32, high), IN(i8, scale), IN(f16, super_scale)
#define PARTS_q2_k IN(u32, codes), TWO_LEVELS
#define PARTS_q3_k IN(u32, codes), IN(i8, scale), IN(f16, super_scale)
#define PARTS_mxfp4 IN(u32, codes), IN(u8, scale)
#define PARTS_nvfp4 IN(u32, codes), IN(u8, scale), IN(f32, global_scale)
#define PARTS_mxfp8 IN(u32, codes), IN(u8, scale)
#define PARTS_fp8_tensor IN(u32, codes), IN(f32, scale)
#define PARTS_fp8_channel IN(u32, codes), IN(f32, scale)
#define PARTS_fp8_block128 IN(u32, codes), IN(f32, scale)
#define PARTS_f32 IN(u32, weight)
#define PARTS_f16 IN(u32, weight)
#define PARTS_bf16 IN(u32, weight)
#define WEIGHT_q4_0 Q4_0({.codes = codes, .scale = scale})
#define WEIGHT_q4_1 Q4_1({.codes = codes, .scale = scale, .minimum = minimum})
#define WEIGHT_q5_0 Q5_0({.codes = codes, .high = high, .scale = scale})
#define WEIGHT_q5_1 Q5_1({.codes = codes, .high = high, .scale = scale, .minimum = minimum})
#define WEIGHT_q8_0 Q8_0({.codes = codes, .scale = scale})
#define WEIGHT_q4_k Q4_K({codes, nullptr, scale, super_scale, minimum, super_minimum})
#define WEIGHT_q5_k Q5_K({codes, high, scale, super_scale, minimum, super_minimum})
#define WEIGHT_q6_k Q6_K({.codes = codes, .high = high, .scale = scale, .super_scale = super_scale})
#define WEIGHT_q2_k Q2_K({codes, nullptr, scale, super_scale, minimum, super_minimum})
#define WEIGHT_q3_k Q3_K({.codes = codes, .scale = scale, .super_scale = super_scale})
#define WEIGHT_mxfp4 Mxfp4({.codes = codes, .scale = scale})
#define WEIGHT_nvfp4 Nvfp4({.codes = codes, .scale = scale, .global_scale = global_scale})
#define WEIGHT_mxfp8 Mxfp8({.codes = codes, .scale = scale})
#define WEIGHT_fp8_tensor Fp8Tensor({.codes = codes, .scale = scale})
#define WEIGHT_fp8_channel Fp8Channel({.codes = codes, .scale = scale})
#define WEIGHT_fp8_block128 Fp8Block128({.codes = codes, .scale = scale})
#define WEIGHT_f32 Dense<f32>({.codes = weight})
#define WEIGHT_f16 Dense<f16>({.codes = weight})
#define WEIGHT_bf16 Dense<BF16>({.codes = weight})

// In the macros below X is the type of x and of y: f32, f16 or BF16 (elements.h).
// x [m, k], weight [n, k] -> y [m, n]; gemv for m <= M with R weight rows a lane, gemm in tiles of M rows.
#define GEMV(symbol, X, format, M, R)                                                                \
  KERNEL(GEMV_THREADS)                                                                               \
  REGISTERS(128)                                                                                     \
  void symbol(IN(X, x), PARTS_##format, OUT(X, y), u32 m, u32 n, u32 k, u32 lanes, u32 workgroups) { \
    gemv<M, R>(x, WEIGHT_##format, y, m, n, k, lanes, workgroups);                                   \
  }
// The same on NVIDIA's matrix units, in stripes of 16 weight rows.
#define STRIPES(symbol, X, format, M, SHARING)                                                 \
  KERNEL(WAVE * SHARING)                                                                      \
  void symbol(IN(X, x), PARTS_##format, OUT(X, y), u32 m, u32 n, u32 k, u32 workgroups) {             \
    stripe_gemv<M, SHARING>(x, WEIGHT_##format, y, m, n, k, workgroups);                                       \
  }
#define GEMM(symbol, X, format, M)                                        \
  KERNEL(GEMM_THREADS)                                                    \
  void symbol(IN(X, x), PARTS_##format, OUT(X, y), u32 m, u32 n, u32 k) { \
    gemm<M>(x, WEIGHT_##format, y, m, n, k);                              \
  }
#define MATRIX_GEMM(symbol, X, format, M)                                              \
  KERNEL(MATRIX_THREADS)                                                               \
  void symbol(IN(X, x), PARTS_##format, OUT(X, y), u32 m, u32 n, u32 k) {              \
    matrix_gemm<M>(x, WEIGHT_##format, y, m, n, k);                                    \
  }

// Affine formats: bits, group, types of scale and bias (f32, f16, BF16).
#define AFFINE_GEMV(symbol, X, M, R, BITS, GROUP, S, B)                                                            \
  KERNEL(GEMV_THREADS)                                                                                             \
  REGISTERS(128)                                                                                                   \
  void symbol(IN(X, x), IN(u32, codes), IN(S, scale), IN(B, bias), OUT(X, y), u32 m, u32 n, u32 k, u32 lanes,      \
              u32 workgroups) {                                                                                    \
    gemv<M, R>(x, Affine<BITS, GROUP, S, B>({.codes = codes, .scale = scale, .minimum = bias}), y, m, n, k, lanes, \
               workgroups);                                                                                        \
  }
#define AFFINE_STRIPES(symbol, X, M, SHARING, BITS, GROUP, S, B)                                  \
  KERNEL(WAVE * SHARING)                                                                        \
  void symbol(IN(X, x), IN(u32, codes), IN(S, scale), IN(B, bias), OUT(X, y), u32 m, u32 n, u32 k,      \
              u32 workgroups) {                                                                         \
    using Weight = Affine<BITS, GROUP, S, B>;                                                           \
    stripe_gemv<M, SHARING>(x, Weight({.codes = codes, .scale = scale, .minimum = bias}), y, m, n, k, workgroups); \
  }
#define AFFINE_GEMM(symbol, X, M, BITS, GROUP, S, B)                                                          \
  KERNEL(MATRIX_THREADS)                                                                                      \
  void symbol(IN(X, x), IN(u32, codes), IN(S, scale), IN(B, bias), OUT(X, y), u32 m, u32 n, u32 k) {          \
    using Weight = Affine<BITS, GROUP, S, B>;                                                                 \
    matrix_gemm<M>(x, Weight({.codes = codes, .scale = scale, .minimum = bias}), y, m, n, k);                 \
  }

#define ARGMAX           \
  KERNEL(ARGMAX_THREADS) \
  void strixhlo_argmax(IN(f32, x), OUT(i32, y), u32 n) { argmax(x, y, n); }

#define EMBEDDING(symbol, X, TYPE, OPERANDS, HELD)                                                          \
  KERNEL(EMBEDDING_THREADS)                                                                                \
  void symbol(IN(i32, tokens), INSIDE OPERANDS, OUT(X, y), u32 t, u32 n, u32 k, u32 scale_bits) {           \
    using Weight = INSIDE TYPE;                                                                            \
    embedding(tokens, Weight(INSIDE HELD), y, t, n, k, BITS(scale_bits));                                  \
  }

#define NORM_ROWS(symbol, X)                                                                                 \
  KERNEL(NORM_THREADS)                                                                                       \
  void symbol(IN(X, x), IN(f32, norm), OUT(X, h), u32 k, u32 epsilon_bits, u32 offset_bits) {                \
    norm_rows(x, {norm, __builtin_bit_cast(f32, epsilon_bits), __builtin_bit_cast(f32, offset_bits)}, h, k); \
  }

#define LAYER_NORM_ROWS(symbol, X)                                                                              \
  KERNEL(NORM_THREADS)                                                                                          \
  void symbol(IN(X, x), IN(f32, norm), IN(f32, bias), OUT(X, h), u32 k, u32 epsilon_bits, u32 offset_bits,       \
              u32 biased) {                                                                                     \
    layer_norm_rows(x, {norm, BITS(epsilon_bits), BITS(offset_bits)}, biased ? bias : nullptr, h, k);            \
  }
#define ADD_NORMED(symbol, X)                                                                                   \
  KERNEL(NORM_THREADS)                                                                                          \
  void symbol(IN(X, base), IN(X, x), IN(f32, norm), IN(f32, factor), IN(f32, base_norm), OUT(X, y), u32 k,       \
              u32 epsilon_bits, u32 offset_bits, u32 scaled, u32 based) {                                       \
    add_normed(base, x, {norm, BITS(epsilon_bits), BITS(offset_bits)}, scaled ? factor : nullptr,                \
               based ? base_norm : nullptr, y, k);                                                              \
  }

#define BITS(name) __builtin_bit_cast(f32, name)
#define FINISH(symbol, X)                                                                                              \
  KERNEL(FINISH_THREADS)                                                                                               \
  void symbol(IN(X, products0), IN(X, products1), IN(f32, bias0), IN(f32, bias1), IN(X, residual), OUT(X, y), u32 m,   \
                       u32 n, u32 first0, u32 first1, u32 width0, u32 width1, u32 column, u32 stride, u32 flags, u32 activation, \
                       u32 limit_bits, u32 scale_bits) {                                                               \
    finish<X>({products0, bias0, first0, width0}, {products1, bias1, first1, width1}, residual, y,                     \
           {m, n, column, stride, flags, activation, BITS(limit_bits), BITS(scale_bits)});                             \
  }
// The same, into columns of a y that is there already.
#define FINISH_MORE(symbol, X)                                                                                         \
  KERNEL(FINISH_THREADS)                                                                                               \
  void symbol(OUT(X, y), IN(X, products0), IN(X, products1), IN(f32, bias0), IN(f32, bias1), IN(X, residual),          \
                            u32 m, u32 n, u32 first0, u32 first1, u32 width0, u32 width1, u32 column, u32 stride, u32 flags, \
                            u32 activation, u32 limit_bits, u32 scale_bits) {                                          \
    finish<X>({products0, bias0, first0, width0}, {products1, bias1, first1, width1}, residual, y,                     \
           {m, n, column, stride, flags, activation, BITS(limit_bits), BITS(scale_bits)});                             \
  }

#define INSIDE(...) __VA_ARGS__  // what stands in parentheses, without them
// One to three matmuls of few rows with what stands around them: fused_kernels.py writes the operands of each form, and
// the places of parts in weights that are one buffer each.
#define FUSED_FEW(symbol, X, threads, kernel, M, FORM, OPERANDS, PLACES, WEIGHTS, NORM, RESIDUAL, NORM_BIAS, BASE, SUM_NORM, FACTOR, SUM_TO) \
  KERNEL(threads)                                                                                               \
  REGISTERS(128)                                                                                                \
  void symbol(INSIDE OPERANDS, u32 m, u32 k, u32 lanes, u32 workgroups, u32 stride, u32 column, u32 activation, \
              u32 limit_bits, u32 scale_bits, u32 epsilon_bits, u32 offset_bits, u32 sum_epsilon_bits,          \
              u32 sum_offset_bits, u32 first0, u32 n0, u32 first1, u32 n1, u32 first2, u32 n2 INSIDE PLACES) {  \
    using Form = FusedForm<INSIDE FORM>;                                                                        \
    (void)first1, (void)n1, (void)first2, (void)n2;                                                             \
    kernel<M, Form>(x, y,                                                                                       \
                    {m, k, lanes, workgroups, stride, column, activation, BITS(limit_bits), BITS(scale_bits),   \
                     {NORM, BITS(epsilon_bits), BITS(offset_bits)}, NORM_BIAS, RESIDUAL,                        \
                     {BASE, {SUM_NORM, BITS(sum_epsilon_bits), BITS(sum_offset_bits)}, FACTOR, SUM_TO}},        \
                    INSIDE WEIGHTS);                                                                            \
  }
#define FUSED_GEMV(symbol, X, ...) FUSED_FEW(symbol, X, GEMV_THREADS, fused_gemv, __VA_ARGS__)
#define FUSED_STRIPES(symbol, X, ...) FUSED_FEW(symbol, X, 256, fused_stripes, __VA_ARGS__)
#define FUSED_DEEP_STRIPES(symbol, X, ...) FUSED_FEW(symbol, X, 512, fused_deep_stripes, __VA_ARGS__)

// The same of many rows, without the norm. TILE: see fused_gemm.h.
#define FUSED_GEMM(symbol, X, threads, TILE, FORM, OPERANDS, PLACES, WEIGHTS, RESIDUAL)                         \
  KERNEL(threads)                                                                                               \
  void symbol(INSIDE OPERANDS, u32 m, u32 k, u32 stride, u32 column, u32 activation, u32 limit_bits,            \
              u32 scale_bits, u32 first0, u32 n0, u32 first1, u32 n1, u32 first2, u32 n2 INSIDE PLACES) {       \
    using Form = FusedForm<INSIDE FORM>;                                                                        \
    (void)first1, (void)n1, (void)first2, (void)n2;                                                             \
    fused_gemm<INSIDE TILE, Form>(x, y,                                                                         \
                                  {m, k, stride, column, activation, BITS(limit_bits), BITS(scale_bits), RESIDUAL}, \
                                  INSIDE WEIGHTS);                                                              \
  }

#define ROPE_AND_APPEND(symbol, X, type)                                                                              \
  KERNEL(APPEND_THREADS)                                                                                              \
  void symbol(                                                                                                        \
      OUT(type, k_pool), OUT(type, v_pool), IN(i32, block_table), IN(i32, positions), IN(X, q), IN(X, k),             \
      IN(X, v), IN(f32, table), IN(f32, q_weight), IN(f32, k_weight), IN(f32, query_scale), OUT(X, q_out),            \
      u32 layer, u32 pool_rows, u32 tokens, u32 sequences, u32 blocks, u32 block_size, u32 heads, u32 kv_heads,       \
      u32 head_dim, u32 fused, u32 half, u32 context, u32 interleaved, u32 norm, u32 weight_stride, u32 epsilon_bits, \
      u32 offset_bits, u32 norm_values, u32 scale_context) {                                                          \
    const AppendShape shape = {layer, pool_rows, tokens, sequences, blocks, block_size, heads, kv_heads, head_dim,    \
                               fused, half, context, interleaved, norm, weight_stride,                                \
                               __builtin_bit_cast(f32, epsilon_bits), __builtin_bit_cast(f32, offset_bits),           \
                               norm_values, scale_context};                                                           \
    rope_and_append(k_pool, v_pool, block_table, positions, q, k, v, table, q_weight, k_weight, query_scale, q_out,   \
                    shape);                                                                                           \
  }

// For head dimensions up to `capacity`: the result in one launch, or `splits` parts and their peaks for combine.
// sinks: read where has_sinks, else any float32 buffer.
#define ATTENTION_INPUTS(X, type) \
  IN(X, q), IN(type, k_pool), IN(type, v_pool), IN(i32, table), IN(i32, positions), IN(f32, sinks)
#define ATTENTION_SCALARS                                                                                   \
  u32 layer, u32 tokens, u32 sequences, u32 q_heads, u32 kv_heads, u32 head_dim, u32 value_dim, u32 pool_rows, \
      u32 blocks, u32 block_size, u32 window, u32 scale_bits, u32 softcap_bits, u32 has_sinks
#define ATTENTION_SHAPE                                                                         \
  layer, tokens, sequences, q_heads, kv_heads, head_dim, value_dim, pool_rows, blocks, block_size, window, \
      __builtin_bit_cast(f32, scale_bits), __builtin_bit_cast(f32, softcap_bits), has_sinks
#define ATTENTION(symbol, X, type, capacity, queries)                                                                    \
  KERNEL(ATTENTION_THREADS)                                                                                              \
  void symbol(ATTENTION_INPUTS(X, type), OUT(X, y), ATTENTION_SCALARS) {                                                 \
    attention<type, capacity / WAVE, queries>(q, k_pool, v_pool, table, positions, sinks, y, nullptr, {ATTENTION_SHAPE, 1}); \
  }
#define ATTENTION_SPLIT(symbol, X, type, capacity, queries)                                                     \
  KERNEL(ATTENTION_THREADS)                                                                                     \
  void symbol(ATTENTION_INPUTS(X, type), OUT(f32, parts), OUT(f32, peaks), ATTENTION_SCALARS, u32 splits) {     \
    attention<type, capacity / WAVE, queries>(q, k_pool, v_pool, table, positions, sinks, parts, peaks,         \
                                              {ATTENTION_SHAPE, splits});                                       \
  }
// The same on the matrix units; blocks: of rows of a wave, 0 where the waves share the rows; part: the most dimensions of
// values of a wave.
#define FLASH(symbol, X, type, head, value, blocks, part)                                                             \
  KERNEL(ATTENTION_THREADS)                                                                                     \
  void symbol(ATTENTION_INPUTS(X, type), OUT(X, y), ATTENTION_SCALARS) {                                        \
    FlashAttention<X, type, head, value, blocks, part, false, X>().run(q, k_pool, v_pool, table, positions, sinks, y, nullptr, \
                                                                 {ATTENTION_SHAPE, 1});                         \
  }
#define FLASH_SPLIT(symbol, X, type, head, value, blocks, part)                                                       \
  KERNEL(ATTENTION_THREADS)                                                                                     \
  void symbol(ATTENTION_INPUTS(X, type), OUT(f32, parts), OUT(f32, peaks), ATTENTION_SCALARS, u32 splits) {     \
    FlashAttention<X, type, head, value, blocks, part, true, f32>().run(q, k_pool, v_pool, table, positions, sinks, parts, \
                                                                  peaks, {ATTENTION_SHAPE, splits});            \
  }
#define ATTENTION_COMBINE(symbol, X)                                                                         \
  KERNEL(ATTENTION_THREADS)                                                                                  \
  void symbol(IN(f32, parts), IN(f32, peaks), IN(f32, sinks), OUT(X, y), u32 head_dim, u32 splits, u32 q_heads, \
              u32 has_sinks) {                                                                               \
    attention_combine(parts, peaks, sinks, y, head_dim, splits, q_heads, has_sinks);                         \
  }
#define ATTENTION_COMBINE_FEW(symbol, X)                                                                     \
  KERNEL(ATTENTION_THREADS)                                                                                  \
  void symbol(IN(f32, parts), IN(f32, peaks), IN(f32, sinks), OUT(X, y), u32 head_dim, u32 splits, u32 q_heads, \
              u32 has_sinks, u32 rows) {                                                                     \
    attention_combine_few(parts, peaks, sinks, y, head_dim, splits, q_heads, has_sinks, rows);               \
  }

#include "moe_kernels.h"
