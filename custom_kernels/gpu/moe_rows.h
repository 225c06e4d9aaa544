// Matmuls of a mixture of experts where an expert has few rows, on NVIDIA's matrix units: block_diagonal.h over the
// sorted rows. A wave has 16 weight rows (8 of gate and 8 of up, or 16 of down) over all their columns, part after part: every
// result is the one that moe_one.h has for a token alone.
#pragma once

#include "expert_spans.h"
#include "moe_gemv.h"

#if !defined(__AMDGCN__)

inline constexpr u32 ROWS_THREADS = 256, ROWS_WAVES = ROWS_THREADS / WAVE, ROWS_CHUNKS = 320;

struct RowsStage {
  LOCAL_ARRAY static inline u32x4 words[ROWS_CHUNKS * CHUNK_WORDS / 4];
  LOCAL_ARRAY static inline f32 sums[ROWS_CHUNKS];
};

// A row of x: float4 number i of it.
template <class X>
struct StoredRow {
  const GLOBAL X* x;

  MEMBER f32x4 operator()(u32 i) const { return load4(x, i); }
};

// total[i][r] = x row number i, which row_of(i) gives, times two rows of weights, for M rows of x.
template <u32 M, class W, class RowOf>
DEVICE void rows_times_tile(const RowOf& row_of, u32 columns, const W& first, const W& second, const u32 (&rows)[2],
                            f32 (&total)[M][2]) {
  constexpr u32 STRIDE = ROWS_CHUNKS / M;  // chunks of a row of x in local memory
  const ColumnParts parts(columns);
  const u32 lane = lane_id(), parts_of_stage = STRIDE / parts.size;
  LOCAL u32* words = (LOCAL u32*)RowsStage::words;
  const auto reader_of = [&](u32 part) __attribute__((always_inline)) {
    const u32 chunk = part * parts.size + lane % 4, end = smaller((part + 1) * parts.size, parts.chunks);
    const u32 chunks = part < parts.count && end > chunk ? end - chunk : 0, from = chunks ? chunk : 0;
    return TaskReader<W>{{Cursor<W>::at(first, rows[0], from), Cursor<W>::at(second, rows[1], from)}, chunks};
  };
  constexpr u32 AHEAD = STEPS_AHEAD<W>;
  typename W::Stored next[AHEAD][2] = {};
  TaskReader<W> reader = reader_of(0);
  UNROLL for (u32 step = 0; step < AHEAD; step++) reader.ask(step, 0, next[step]);
  for (u32 part = 0; part < parts.count; part++) {
    const u32 begin = part * parts.size, of_stage = part % parts_of_stage * parts.size;
    if (part % parts_of_stage == 0) {
      const u32 count = smaller(parts_of_stage * parts.size, parts.chunks - begin);
      barrier();  // nobody reads any more what was there
      for (u32 i = 0; i < M; i++) {
        const auto row = row_of(i);
        stage_chunks<W, ROWS_THREADS, 1>(words + i * STRIDE * CHUNK_WORDS, RowsStage::sums + i * STRIDE, count,
                                         [&](u32 chunk, u32 q) __attribute__((always_inline)) {
                                           return row((begin + chunk) * 8 + q);
                                         });
      }
      barrier();
    }
    const u32 own = smaller(parts.size, parts.chunks - begin), chunk = of_stage + smaller(lane % 4, own - 1);
    const DiagonalBlock block = DiagonalBlock::at(words, chunk);
    f32 sum[M][2] = {};
    UNROLL for (u32 step = 0; step < PART_STEPS; step++) {
      if (step * STEP_CHUNKS < own) {
        const typename W::Run run[2] = {W::run(next[step % AHEAD][0]), W::run(next[step % AHEAD][1])};
        const bool inside = step * STEP_CHUNKS + lane % 4 < own;
        add_step<M, W>(run, block, step * STEP_CHUNKS, STRIDE, RowsStage::sums + chunk, inside, sum);
      }
      if (step + AHEAD == PART_STEPS) reader = reader_of(part + 1);
      reader.ask((step + AHEAD) % PART_STEPS, 0, next[step % AHEAD]);
    }
    UNROLL for (u32 i = 0; i < M; i++) {
      UNROLL for (u32 r = 0; r < 2; r++) {
        const f32 of_part = sum_over(sum[i][r], 4);
        total[i][r] = part ? total[i][r] + of_part : of_part;
      }
    }
  }
}

// The same of whole spans of 4-bit weights, each summed as moe_one_spans.h does it: SPANS_OF_ROWS blocks of x in local memory.
inline constexpr u32 SPANS_OF_ROWS = 192;
struct SpanRowsStage {
  LOCAL_ARRAY static inline u32x4 codes[ROWS_WAVES * SPAN_BYTES / 16];
  LOCAL_ARRAY static inline u32x4 digits[SPANS_OF_ROWS * 6];
  LOCAL_ARRAY static inline f32 unit[SPANS_OF_ROWS], sum[SPANS_OF_ROWS];
};

template <u32 M, class W, class X, class RowOf>
DEVICE void rows_times_spans(const RowOf& row_of, u32 columns, const W& first, const W& second, u32 first_row,
                             u32 second_row, f32 (&total)[M][2]) {
  using C = SpanCodes<W>;
  constexpr u32 STRIDE = SPANS_OF_ROWS / M, SPANS = STRIDE / SPAN_BLOCKS;  // of a row of x in local memory
  const u32 lane = lane_id(), spans = ceil_div(columns, SPAN_COLUMNS), blocks = columns / BLOCK, bytes = columns / 2;
  const SpansOfX<W, X> of_x = {(LOCAL u8*)SpanRowsStage::digits, SpanRowsStage::unit, SpanRowsStage::sum};
  LOCAL u8* codes = (LOCAL u8*)SpanRowsStage::codes + wave_id() * SPAN_BYTES;
  const GLOBAL u8* scales[C::ARRAYS];
  UNROLL for (u32 a = 0; a < C::ARRAYS; a++) {
    const GLOBAL u8* of_row = lane % 4 < 2 ? C::array_of(first, a) + (u64)first_row * C::row_bytes(a, columns)
                                           : C::array_of(second, a) + (u64)second_row * C::row_bytes(a, columns);
    scales[a] = of_row + lane / 4 * C::row_bytes(a, columns);
  }
  // Four times 16 bytes of a lane: rows lane / 8 and, of the other tensor, the same, and those four rows on.
  const GLOBAL u8* from[2] = {(const GLOBAL u8*)first.parts.codes + (u64)(first_row + lane / 8) * bytes + lane % 8 * 16,
                              (const GLOBAL u8*)second.parts.codes + (u64)(second_row + lane / 8) * bytes + lane % 8 * 16};
  u32x4 next[4] = {};
  const auto ask = [&](u32 span) __attribute__((always_inline)) {
    const u32 at = span * SPAN_ROW + lane % 8 * 16;
    UNROLL for (u32 i = 0; i < 4; i++) {
      next[i] = at < bytes ? *(const GLOBAL u32x4*)(from[i / 2] + i % 2 * 4 * bytes + span * SPAN_ROW) : (u32x4)0u;
    }
  };
  ask(0);
  for (u32 span = 0; span < spans; span++) {
    if (span % SPANS == 0) {
      barrier();  // nobody reads any more what was there
      const u32 of_stage = smaller(spans - span, SPANS) * SPAN_BLOCKS * 4;
      for (u32 i = 0; i < M; i++) {
        const auto row = row_of(i);
        for (u32 item = thread_id(); item < of_stage; item += ROWS_THREADS) {
          const u32 column = span * SPAN_COLUMNS + item * 8;
          f32 v[8] = {};
          if (column < columns) {
            UNROLL for (u32 q = 0; q < 2; q++) {
              const f32x4 four = row(column / 4 + q);
              UNROLL for (u32 c = 0; c < 4; c++) v[4 * q + c] = four[c];
            }
          }
          wave_meets();
          of_x.put(i * STRIDE + item / 4, v);
        }
      }
      barrier();
    }
    wave_meets();  // nobody reads any more the codes of before
    UNROLL for (u32 i = 0; i < 4; i++) {
      *(LOCAL u32x4*)(codes + (lane / 8 + i * 4) * SPAN_STRIDE + lane % 8 * 16) = next[i];
    }
    if (span + 1 < spans) ask(span + 1);
    wave_meets();
    f32 sum[M];
    const u32 of_span = span % SPANS * SPAN_BLOCKS, begin[2] = {of_span, of_span};
    span_products<M, W, X>(codes, of_x, begin, STRIDE, span * SPAN_BLOCKS, blocks, scales, sum);
    UNROLL for (u32 i = 0; i < M; i++) total[i][0] = span ? total[i][0] + sum[i] : sum[i];
  }
  UNROLL for (u32 i = 0; i < M; i++) {
    const f32 of_lane = total[i][0];
    UNROLL for (u32 r = 0; r < 2; r++) total[i][r] = shuffle(of_lane, lane / 4 * 4 + 2 * r);
  }
}

// By spans where the weights are made so, else by chunks. rows: a lane's two; tile: the first row of 8 of each, or of 16.
template <u32 M, bool SPANS, class W, class X, class RowOf>
DEVICE void rows_times_stripe(const RowOf& row_of, u32 columns, const W& first, const W& second, u32 first_row,
                              u32 second_row, const u32 (&rows)[2], f32 (&total)[M][2]) {
  if constexpr (SPANS) {
    rows_times_spans<M, W, X>(row_of, columns, first, second, first_row, second_row, total);
  } else {
    rows_times_tile<M, W>(row_of, columns, first, second, rows, total);
  }
}

// A wave's 8 rows of gate and of up of an expert, done(i, row, gate, up) being told what comes of row i of x; and its 16
// rows of down, done(i, row, value).
template <u32 M, bool SPANS, class W, class X, class RowOf, class Done>
DEVICE void gate_up_of_tile(const RowOf& row_of, const W& gate, const W& up, u32 e, u32 tile, const ExpertShape& s,
                            const Done& done) {
  const u32 lane = lane_id(), row = tile * 8 + lane / 4, of_weight = e * s.n + smaller(row, s.n - 1);
  const u32 begin = e * s.n + smaller(tile * 8, s.n - 8);  // of spans: rows are whole eights
  const u32 rows[2] = {of_weight, of_weight};
  f32 total[M][2];
  rows_times_stripe<M, SPANS, W, X>(row_of, s.columns, of_expert(gate, e), of_expert(up, e), begin, begin, rows, total);
  UNROLL for (u32 i = 0; i < M; i++) {
    if (i % 4 == lane % 4 && row < s.n) done(i, row, total[i][0], total[i][1]);
  }
}
template <u32 M, bool SPANS, class W, class X, class RowOf, class Done>
DEVICE void down_of_tile(const RowOf& row_of, const W& weight, u32 e, u32 tile, const ExpertShape& s,
                         const Done& done) {
  const u32 lane = lane_id(), row = tile * 16 + lane / 4, begin = e * s.n + smaller(tile * 16, s.n - 16);
  const u32 rows[2] = {e * s.n + smaller(row, s.n - 1), e * s.n + smaller(row + 8, s.n - 1)};
  const W own = of_expert(weight, e);
  f32 total[M][2];
  rows_times_stripe<M, SPANS, W, X>(row_of, s.columns, own, own, begin, begin + 8, rows, total);
  UNROLL for (u32 i = 0; i < M; i++) {
    UNROLL for (u32 r = 0; r < 2; r++) {
      if (i % 4 == lane % 4 && row + 8 * r < s.n) done(i, row + 8 * r, total[i][r]);
    }
  }
}

// `each`: workgroups of a tile of sorted rows, which have 8 tiles of weight rows each.
template <bool SPANS, class W, class X>
DEVICE void moe_gate_up_rows(const GLOBAL X* x, const ExpertRouting routing, W gate, W up, const GatedBy gated,
                             GLOBAL X* h, const ExpertShape s, u32 matrix_rows) {
  gate.runs = up.runs = s.columns / W::RUN;
  each_few_rows<8>(routing, s, matrix_rows, [&](auto m, u32 e, u32 first, u32 count) __attribute__((always_inline)) {
    constexpr u32 M = decltype(m)::VALUE;
    const u32 tile = workgroup_id() % s.workgroups * ROWS_WAVES + wave_id();
    const auto row_of = [&](u32 i) __attribute__((always_inline)) {
      return StoredRow<X>{x + (u64)routing.token(first + smaller(i, count - 1)) * s.columns};
    };
    gate_up_of_tile<M, SPANS, W, X>(
        row_of, gate, up, e, tile, s, [&](u32 i, u32 row, f32 g, f32 u) __attribute__((always_inline)) {
          if (i < count) store(h, (u64)(first + i) * s.n + row, gated(g, u, e * s.n + row));
        });
  });
}
template <bool SPANS, class W, class X>
DEVICE void moe_down_rows(const GLOBAL X* h, const ExpertRouting routing, W weight, GLOBAL X* y,
                          const ExpertShape s, u32 matrix_rows) {
  weight.runs = s.columns / W::RUN;
  each_few_rows<8>(routing, s, matrix_rows, [&](auto m, u32 e, u32 first, u32 count) __attribute__((always_inline)) {
    constexpr u32 M = decltype(m)::VALUE;
    const u32 tile = workgroup_id() % s.workgroups * ROWS_WAVES + wave_id();
    const auto row_of = [&](u32 i) __attribute__((always_inline)) {
      return StoredRow<X>{h + (u64)(first + smaller(i, count - 1)) * s.columns};
    };
    const auto done = [&](u32 i, u32 row, f32 value) __attribute__((always_inline)) {
      if (i < count) store(y, (u64)(first + i) * s.n + row, value);
    };
    down_of_tile<M, SPANS, W, X>(row_of, weight, e, tile, s, done);
  });
}

#endif
