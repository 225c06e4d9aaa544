// What a wave of the kernels of block_diagonal.h works on: 16 rows of one expert's weights over a part of their columns.
//
// A row's chunks are in parts of up to 16 chunks, which depend on their number alone: a part is summed by one wave, and
// the parts in their order, so that a row gets the same sum from any kernel and any number of workgroups.
#pragma once

#include "block_diagonal.h"
#include "moe_tiles.h"

#if !defined(__AMDGCN__)

inline constexpr u32 PART_STEPS = 4, PART_CHUNKS = PART_STEPS * STEP_CHUNKS;

struct ColumnParts {
  u32 chunks, count, size;  // of a row; parts; chunks of each but the last

  constexpr explicit ColumnParts(u32 columns) : chunks(columns / CHUNK), count((chunks + 15) / 16) {
    size = (chunks + count - 1) / count;
    size = (size + STEP_CHUNKS - 1) / STEP_CHUNKS * STEP_CHUNKS;
  }
};

// Steps of a part whose weights a lane has asked for; the registers hold no more of what is not quantized.
template <class W>
inline constexpr u32 STEPS_AHEAD = sizeof(typename W::Stored) < 64 ? PART_STEPS : PART_STEPS / 2;

// A row of a weight from a chunk on, for steps that are STEP_CHUNKS chunks apart: what is far from the first is at a
// constant distance.
template <class W>
struct Cursor {
  W weight;
  u32 row, run;

  DEVICE Cursor at(const W& weight, u32 row, u32 run) { return {weight, row, run}; }
  MEMBER void ask(typename W::Stored& s, u32 step) const {
    weight.ask(s, row, run + step * STEP_CHUNKS);
    weight.ask_shared(s, row, run + step * STEP_CHUNKS);
  }
};
template <u32 GROUP, class S, class B>
struct Cursor<Affine<4, GROUP, S, B>> {
  using W = Affine<4, GROUP, S, B>;
  const GLOBAL u32x4* codes;
  const GLOBAL S* scale;
  const GLOBAL B* minimum;

  DEVICE Cursor at(const W& weight, u32 row, u32 run) {
    const u32 first = row * weight.runs + run, group = first / W::SHARERS;  // a row has whole groups
    return {(const GLOBAL u32x4*)weight.parts.codes + first, (const GLOBAL S*)weight.parts.scale + group,
            (const GLOBAL B*)weight.parts.minimum + group};
  }
  MEMBER void ask(typename W::Stored& s, u32 step) const {
    const u32x4 words = codes[step * STEP_CHUNKS];
    UNROLL for (u32 i = 0; i < 4; i++) s.words[i] = words[i];
    s.scale = scale[step * STEP_CHUNKS / W::SHARERS];
    s.minimum = minimum[step * STEP_CHUNKS / W::SHARERS];
  }
};
template <bool NVIDIA>
struct Cursor<Fp4<NVIDIA>> {
  using W = Fp4<NVIDIA>;
  const GLOBAL u32x4* codes;
  const GLOBAL u8* scale;
  const GLOBAL f32* global_scale;

  DEVICE Cursor at(const W& weight, u32 row, u32 run) {
    const u32 first = row * weight.runs + run;
    return {(const GLOBAL u32x4*)weight.parts.codes + first,
            (const GLOBAL u8*)weight.parts.scale + (u64)first * W::GROUPS, weight.parts.global_scale};
  }
  MEMBER void ask(typename W::Stored& s, u32 step) const {
    const u32x4 words = codes[step * STEP_CHUNKS];
    UNROLL for (u32 i = 0; i < 4; i++) s.words[i] = words[i];
    UNROLL for (u32 i = 0; i < W::GROUPS; i++) s.scale[i] = scale[step * STEP_CHUNKS * W::GROUPS + i];
    if constexpr (NVIDIA) s.global_scale = *global_scale;
  }
};

template <>
struct Cursor<Bf16Runs> {
  const GLOBAL u32x4* words;

  DEVICE Cursor at(const Bf16Runs& weight, u32 row, u32 run) {
    return {(const GLOBAL u32x4*)weight.parts.codes + ((u64)row * weight.runs + run) * 4};
  }
  MEMBER void ask(Bf16Runs::Stored& s, u32 step) const {
    UNROLL for (u32 i = 0; i < 4; i++) s.words[i] = words[step * STEP_CHUNKS * 4 + i];
  }
};

// 0 after a value is known; `nothing` is 0.
DEVICE u32 after(f32 value, u32 nothing) { return __builtin_bit_cast(u32, value) & nothing; }

// What a wave reads of a task: lane 4 g + t has two rows and of each step's chunks the t-th.
template <class W>
struct TaskReader {
  Cursor<W> rows[2];
  u32 chunks;  // from this lane's first one to the end of the part

  MEMBER void ask(u32 step, u32 nothing, typename W::Stored (&stored)[2]) const {
    if (step * STEP_CHUNKS + nothing < chunks) UNROLL for (u32 r = 0; r < 2; r++) rows[r].ask(stored[r], step);
  }
};

// x into local memory, chunk by chunk. quad(chunk, i): float4 number i of a chunk. A thread takes 8 columns at a time, and
// asks for TOGETHER of them before it needs the first.
template <class W, u32 THREADS, u32 TOGETHER, class Quad>
DEVICE void stage_chunks(LOCAL u32* words, LOCAL f32* sums, u32 chunks, const Quad& quad) {
  using P = Pairs<W>;
  for (u32 start = 0; start < chunks * 4; start += THREADS * TOGETHER) {
    f32x4 x[TOGETHER][2];
    UNROLL for (u32 i = 0; i < TOGETHER; i++) {
      const u32 item = smaller(start + i * THREADS + thread_id(), chunks * 4 - 1);
      UNROLL for (u32 half = 0; half < 2; half++) x[i][half] = quad(item / 4, P::quad(item % 4 * 2 + half));
    }
    UNROLL for (u32 i = 0; i < TOGETHER; i++) {
      const u32 item = start + i * THREADS + thread_id(), chunk = item / 4, m = item % 4 * 2;
      f32 sum = 0.0f;
      if (item < chunks * 4) {
        UNROLL for (u32 half = 0; half < 2; half++) {
          f32 of[4];
          UNROLL for (u32 c = 0; c < 4; c++) of[c] = P::INTERLEAVED ? x[i][c % 2][2 * half + c / 2] : x[i][half][c];
          sum += stage_terms<W>(words, chunk, m + half, of);
        }
      }
      if constexpr (NEEDS_SUMS<W>) {
        sum = sum_over(sum, 4);
        if (item < chunks * 4 && item % 4 == 0) sums[chunk] = sum;
      }
    }
  }
}

#endif
