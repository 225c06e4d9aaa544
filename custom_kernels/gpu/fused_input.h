// What a fused matmul takes in, on its way into local memory: see custom_kernels/ops/fused_matmul.py. Each workgroup does
// it for itself. With SUM the input is first added to a residual stream, after a norm of its own; the first workgroup
// stores that sum. For an RMSNorm squares are summed on the way in, so that it is a factor of the matmul's results; for a
// LayerNorm, as for the sum's norm, the input is read before.
#pragma once

#include "rms_norm.h"

// The same number, worked with where it is asked for: what depends on it does not wait in registers outside of a loop.
DEVICE u32 here(u32 number) {
#if defined(__AMDGCN__)
  asm volatile("" : "+s"(number));
#endif
  return number;
}

enum InputSum : u32 { NO_SUM, SUM, SCALED_SUM };
enum InputNorm : u32 { NO_INPUT_NORM, INPUT_RMS, INPUT_LAYER, INPUT_LAYER_BIASED };

// sum = base + RMSNorm(x), with SCALED_SUM times `factor` [1]; all rows are K wide. `to` gets it.
template <class X>
struct FusedSum {
  const GLOBAL X* base;
  RmsNorm norm;
  const GLOBAL f32* factor;
  GLOBAL X* to;
};

template <u32 M>
struct RowFactors {
  LOCAL_ARRAY static inline f32 mean[M], scale[M];  // of the sum's norm, or of a LayerNorm
};

// Up to M rows of x [m, k]: `at` gives what is multiplied with the weights, apart from a factor of each row. SUM is not
// for a LayerNorm.
template <u32 M, u32 THREADS, u32 SUM_, u32 NORM_, class X>
struct FusedInput {
  using Raw = Four<X>;
  static constexpr u32 SUM = SUM_, NORM = NORM_;
  static constexpr bool LAYER = NORM >= INPUT_LAYER;
  static_assert(SUM_ == NO_SUM || !LAYER);
  const GLOBAL X* x;
  u32 m, k;
  RmsNorm norm;
  const GLOBAL f32* bias;  // of the norm
  FusedSum<X> sum;
  f32 squares[M] = {};

  // Before the first `at`. All threads meet here.
  __attribute__((always_inline)) void begin() {
    if constexpr (SUM_ == NO_SUM && !LAYER) return;
    f32 of[M] = {}, mean[M] = {}, factor[M];
    if constexpr (LAYER) {
      for (u32 i = thread_id(); i < k / 4; i += THREADS) {
        UNROLL for (u32 row = 0; row < M; row++) {
          const f32x4 v = four(x, row, i);
          of[row] += (v[0] + v[1]) + (v[2] + v[3]);
        }
      }
      totals_of<M, THREADS>(of, mean);
      UNROLL for (u32 row = 0; row < M; row++) mean[row] /= (f32)k, of[row] = 0.0f;
      barrier();
    }
    for (u32 i = thread_id(); i < k / 4; i += THREADS) {
      UNROLL for (u32 row = 0; row < M; row++) {
        const f32x4 v = four(x, row, i) - mean[row];
        UNROLL for (u32 c = 0; c < 4; c++) of[row] = multiply_add(v[c], v[c], of[row]);
      }
    }
    inverse_rms_of<M, THREADS>(of, k, LAYER ? norm.epsilon : sum.norm.epsilon, factor);
    if (thread_id() == 0) {
      UNROLL for (u32 row = 0; row < M; row++) {
        RowFactors<M>::scale[row] = factor[row];
        if constexpr (LAYER) RowFactors<M>::mean[row] = mean[row];
      }
    }
    barrier();
  }

  // The norm's weight for columns 4 i and on, for `at`.
  __attribute__((always_inline)) f32x4 weight_at(u32 i) const {
    if constexpr (NORM == NO_INPUT_NORM) return f32x4{};
    return ((const GLOBAL f32x4*)norm.weight)[i] + norm.offset;
  }

  // Columns 4 i and on of a row, and their squares; stored: the sum has been stored already.
  __attribute__((always_inline)) f32x4 at(u32 row, u32 i, f32x4 weight, bool stored) {
    f32x4 v = four(x, row, i);
    if constexpr (SUM_ != NO_SUM) {
      v = four(sum.base, row, i) +
          normalized(v, ((const GLOBAL f32x4*)sum.norm.weight)[i], RowFactors<M>::scale[row], sum.norm.offset);
      if constexpr (SUM_ == SCALED_SUM) v *= *sum.factor;
      if (!stored && workgroup_id() == 0 && row < here(m)) store4(sum.to, row * (here(k) / 4) + i, v);
    }
    if constexpr (LAYER) {
      v = (v - RowFactors<M>::mean[row]) * RowFactors<M>::scale[row] * weight;
      if constexpr (NORM == INPUT_LAYER_BIASED) v += ((const GLOBAL f32x4*)bias)[i];
    } else if constexpr (NORM == INPUT_RMS) {
      v = finished(row, v, weight);
    }
    return v;
  }
  // The same of a row of x that is there, with an RMSNorm alone: its numbers, and `at` of them.
  __attribute__((always_inline)) Raw raw(u32 row, u32 i) const { return ask4(x, row * (here(k) / 4) + i); }
  __attribute__((always_inline)) f32x4 finished(u32 row, f32x4 v, f32x4 weight) {
    UNROLL for (u32 c = 0; c < 4; c++) squares[row] = multiply_add(v[c], v[c], squares[row]);
    return v * weight;
  }

  // By what the results of each row are multiplied after an RMSNorm, once all columns have been asked for. All threads
  // meet here.
  __attribute__((always_inline)) void factors(f32 (&factor)[M]) const {
    inverse_rms_of<M, THREADS>(squares, k, norm.epsilon, factor);
  }

 private:
  __attribute__((always_inline)) f32x4 four(const GLOBAL X* of, u32 row, u32 i) const {
    return load4(of, smaller(row, here(m) - 1) * (here(k) / 4) + i);  // in 32 bits: fewer scalar registers
  }
};
