// A mixture of experts for one token in one launch, on NVIDIA GPUs: the choice of experts, gate and up with activation,
// down with the weighted sum. See custom_kernels/ops/moe_matmul.py.
//
// Every workgroup chooses for itself. Work is in units: 8 rows of gate and of up in each of several tiles, then rows of
// down over all chosen experts. A unit of down needs all of h: grid_order.h says why its wait ends. What a wave has to
// read next is asked for before it works on what it has, so that the weights of down are under way during that wait.
#pragma once

#include "async_copy.h"
#include "expert_tasks.h"
#include "grid_order.h"
#include "moe_down.h"
#include "moe_route.h"
#include "rms_norm.h"

#if !defined(__AMDGCN__)

inline constexpr u32 ONE_THREADS = 512, ONE_WAVES = ONE_THREADS / WAVE, TAKER = ONE_THREADS - WAVE;
inline constexpr u32 MOST_ROUNDS = 6;  // tasks of a wave in a unit
inline constexpr u32 ONE_CHUNKS = 364, SLOT_CHUNKS = MOST_ROUNDS * ONE_WAVES * 16 / CHUNK_WORDS;
inline constexpr u32 NO_TICKET = ~0u, MOST_ONE_BIASES = 128;
static_assert(ONE_CHUNKS * CHUNK <= HALF_WORDS && SLOT_CHUNKS * CHUNK_WORDS >= 3 * MOST_EXPERTS);

struct OneToken {
  LOCAL_ARRAY static inline u32x4 words[ONE_CHUNKS * CHUNK_WORDS / 4];  // x, or h; at its end the scores, sums of tasks
  LOCAL_ARRAY static inline f32 sums[ONE_CHUNKS];
  LOCAL_ARRAY static inline u32 expert[MOST_CHOSEN];
  LOCAL_ARRAY static inline f32 score[MOST_CHOSEN], weight[MOST_CHOSEN];
  LOCAL_ARRAY static inline f32 of_wave[NORM_THREADS / WAVE];
  LOCAL_ARRAY static inline f32 bias[MOST_ONE_BIASES];
  LOCAL_ARRAY static inline u32 ticket[2];
};

struct OneShape {
  RouteChoice choice;
  u32 hidden, inner, unit_tiles, unit_rows;  // gate and up [inner, hidden]; tiles, and rows of down, of a unit
};

// The scores of all experts, and what they are chosen by as whole numbers (NaN comes last), by one wave. scratch: scores,
// order and the groups' choice, MOST_EXPERTS each.
template <u32 PER_LANE, class X>
DEVICE void score_experts(const GLOBAL X* logits, const GLOBAL f32* correction, const RouteChoice& c, LOCAL f32* scratch) {
  f32 of[PER_LANE], choice[PER_LANE];
  LOCAL u32* order = (LOCAL u32*)scratch + MOST_EXPERTS;
  scores_of(logits, c.experts, c.scoring, of);
  const auto meet = []() __attribute__((always_inline)) { wave_meets(); };
  choice_of(of, correction, c, choice, scratch + 2 * MOST_EXPERTS, meet);
  UNROLL for (u32 i = 0; i < PER_LANE; i++) {
    const u32 e = i * WAVE + lane_id();
    if (e < c.experts) scratch[e] = of[i];
    if (e < c.experts) order[e] = (u32)(choice_key(choice[i], 0) >> 32);
    if (e >= c.experts && e < MOST_EXPERTS) order[e] = 0;
  }
}

// An expert's rank is the number of those before it: all threads count, and the first k experts get their places.
DEVICE void rank_experts(const LOCAL f32* scores, const LOCAL u32* order, u32 experts, u32 k) {
  u32 sharers = 1;
  while (sharers < WAVE / 2 && 2 * sharers * experts <= ONE_THREADS) sharers *= 2;
  const u32 e = thread_id() / sharers, part = thread_id() % sharers, mine = order[smaller(e, experts - 1)];
  u32 rank = 0;
  _Pragma("unroll 4") for (u32 quad = part; quad * 4 < experts; quad += sharers) {
    const u32x4 theirs = ((const LOCAL u32x4*)order)[quad];
    UNROLL for (u32 i = 0; i < 4; i++) rank += theirs[i] >= mine + (quad * 4 + i >= e);
  }
  for (u32 mask = sharers / 2; mask; mask /= 2) rank += shuffle_bits(rank, lane_id() ^ mask);
  if (part == 0 && e < experts && rank < k) {
    OneToken::expert[rank] = e;
    OneToken::score[rank] = scores[e];
  }
}

// Division of small numbers (below 2^12) by one that does not change.
struct Divisor {
  u32 by, inverse;
  constexpr explicit Divisor(u32 by) : by(by), inverse((1u << 18) / by + 1) {}
  MEMBER u32 divide(u32 v) const { return v * inverse >> 18; }
};

// What is asked of all the time, made once. rows: tiles of 16 rows of down in a unit.
struct OnePlan {
  OneShape s;
  ColumnParts up, down;
  u32 tiles, each, gate_up, all, row_tiles;
  Divisor by_each, by_up, by_down, by_row_tiles;

  constexpr explicit OnePlan(const OneShape& s)
      : s(s), up(s.hidden), down(s.inner), tiles((s.inner + 7) / 8), each((tiles + s.unit_tiles - 1) / s.unit_tiles),
        gate_up(each * s.choice.k), all(gate_up + (s.hidden + s.unit_rows - 1) / s.unit_rows),
        row_tiles((s.unit_rows + 15) / 16), by_each(each), by_up(up.count), by_down(down.count),
        by_row_tiles(row_tiles) {}

  MEMBER bool is_down(u32 unit) const { return unit >= gate_up; }
  MEMBER u32 first_tile(u32 unit) const { return (unit - by_each.divide(unit) * each) * s.unit_tiles; }
  MEMBER u32 tasks(u32 unit) const {
    if (is_down(unit)) return down.count * row_tiles * s.choice.k;
    return up.count * smaller(s.unit_tiles, tiles - first_tile(unit));
  }
};

// A task: two rows a lane (rows past the end repeat the last one), chunks [first, end) of them, and where their x starts.
struct OneTask {
  u32 expert, rows[2], first, end, base;
};
// Task number `at` of the `count` of a unit; nothing, where there is none.
DEVICE OneTask one_task(const OnePlan& p, u32 unit, u32 at, u32 count) {
  OneTask task = {};
  if (unit >= p.all || at >= count) return task;
  const bool is_down = p.is_down(unit);
  const ColumnParts parts = is_down ? p.down : p.up;
  const u32 tile = (is_down ? p.by_down : p.by_up).divide(at), g = lane_id() / 4;
  task.first = (at - tile * parts.count) * parts.size;
  task.end = smaller(task.first + parts.size, parts.chunks);
  if (is_down) {
    const u32 j = p.by_row_tiles.divide(tile), row = (unit - p.gate_up) * p.s.unit_rows + (tile - j * p.row_tiles) * 16 + g;
    task.expert = OneToken::expert[j];
    task.base = j * parts.chunks;
    UNROLL for (u32 r = 0; r < 2; r++) task.rows[r] = task.expert * p.s.hidden + smaller(row + 8 * r, p.s.hidden - 1);
  } else {
    task.expert = OneToken::expert[p.by_each.divide(unit)];
    const u32 row = smaller((p.first_tile(unit) + tile) * 8 + g, p.s.inner - 1);
    task.rows[0] = task.rows[1] = task.expert * p.s.inner + row;
  }
  return task;
}
template <class W>
DEVICE TaskReader<W> reader_of(const W& first, const W& second, const OneTask& task) {
  const u32 chunk = task.first + lane_id() % 4, chunks = task.end > chunk ? task.end - chunk : 0;
  const u32 from = chunks ? chunk : 0;
  return {{Cursor<W>::at(of_expert(first, task.expert), task.rows[0], from),
           Cursor<W>::at(of_expert(second, task.expert), task.rows[1], from)}, chunks};
}

// The squares of x by waves, as norm_rows sums them.
template <class X>
DEVICE void squares_of_one(const GLOBAL X* x, u32 k) {
  if (thread_id() >= NORM_THREADS) return;
  const u32 wave = wave_id();
  f32 squares = 0.0f;
  for (u32 i = thread_id(); i < k / 4; i += NORM_THREADS) {
    const f32x4 v = load4(x, i);
    UNROLL for (u32 e = 0; e < 4; e++) squares = multiply_add(v[e], v[e], squares);
  }
  squares = sum_over_wave(squares);
  if (lane_id() == 0) OneToken::of_wave[wave] = squares;
}
// One over the root mean square of x, when the threads have met.
DEVICE f32 inverse_rms_of_squares(const RmsNorm& norm, u32 k) {
  f32 total = 0.0f;
  UNROLL for (u32 w = 0; w < NORM_THREADS / WAVE; w++) total += OneToken::of_wave[w];
  return 1.0f / __builtin_elementwise_sqrt(total / (f32)k + norm.epsilon);
}

// The choice of experts, x into local memory, and a ticket. The last wave has the scores, since it has least of x.
template <class W, bool NORMED, class X>
DEVICE void start_one(const GLOBAL X* logits, const GLOBAL f32* correction, const GLOBAL X* x, const RmsNorm& norm,
                      GLOBAL u32* counters, LOCAL f32* scratch, const OneShape& s) {
  const LOCAL u32* order = (const LOCAL u32*)scratch + MOST_EXPERTS;
  f32 factor = 1.0f;
  if constexpr (NORMED) {
    squares_of_one(x, s.hidden);
    barrier();
    factor = inverse_rms_of_squares(norm, s.hidden);
  }
  if (wave_id() == TAKER / WAVE) {
    u32 ticket = 0;
    if (thread_id() == TAKER) ticket = take_ticket(counters);
    if (s.choice.experts <= 4 * WAVE) {
      score_experts<4>(logits, correction, s.choice, scratch);
    } else {
      score_experts<16>(logits, correction, s.choice, scratch);
    }
    if (thread_id() == TAKER) {
      OneToken::ticket[0] = ticket;
      OneToken::ticket[1] = NO_TICKET;
    }
  }
  stage_chunks<W, ONE_THREADS, 1>((LOCAL u32*)OneToken::words, OneToken::sums, s.hidden / CHUNK,
                                  [&](u32 chunk, u32 i) __attribute__((always_inline)) {
    const f32x4 v = load4(x, chunk * 8 + i);
    if constexpr (!NORMED) return v;
    return rounded4<X>(normalized(v, ((const GLOBAL f32x4*)norm.weight)[chunk * 8 + i], factor, norm.offset));
  });
  barrier();
  rank_experts(scratch, order, s.choice.experts, s.choice.k);
  barrier();
}

// Sums of the parts, in their order.
DEVICE f32 sum_of_parts(const LOCAL f32* slots, u32 parts) {
  f32 sum = slots[0];
  _Pragma("unroll 4") for (u32 part = 1; part < parts; part++) sum += slots[part * 16];
  return sum;
}

// The sums of a unit's tasks -> h.
template <class X>
DEVICE void finish_gate_up(const OnePlan& p, u32 unit, const LOCAL f32* slots, const GatedBy& gated, GLOBAL X* h) {
  const u32 tile = thread_id() / 8, g = thread_id() % 8, j = p.by_each.divide(unit);
  const u32 row = (p.first_tile(unit) + tile) * 8 + g;
  if (tile >= p.s.unit_tiles || row >= p.s.inner) return;
  const LOCAL f32* own = slots + tile * p.up.count * 16 + g;
  const f32 gate = sum_of_parts(own, p.up.count), up = sum_of_parts(own + 8, p.up.count);
  store(h, j * p.s.inner + row, gated(gate, up, OneToken::expert[j] * p.s.inner + row));
}

// ... -> y: a thread for each expert's row, then one for each row. All threads meet here.
template <class X>
DEVICE void finish_down(const OnePlan& p, u32 unit, LOCAL f32* slots, bool biased, const Residual<X>& residual,
                        GLOBAL X* y) {
  const u32 rows = p.row_tiles * 16, k = p.s.choice.k, all = p.s.unit_rows;
  LOCAL f32* values = (LOCAL f32*)OneToken::words;
  for (u32 i = thread_id(); i < k * rows; i += ONE_THREADS) {
    const u32 j = i / rows, local = i % rows;
    const LOCAL f32* own = slots + (j * p.row_tiles + local / 16) * p.down.count * 16 + local % 16;
    f32 value = widen(Element<X>::of(sum_of_parts(own, p.down.count)));  // as moe_rows.h leaves it to moe_combine
    if (biased && local < all) value += OneToken::bias[j * all + local];
    values[i] = value;
  }
  barrier();
  const u32 local = thread_id(), row = (unit - p.gate_up) * all + local;
  if (local >= all || row >= p.s.hidden) return;
  f32 total = 0.0f;
  _Pragma("unroll 8") for (u32 j = 0; j < k; j++) total = multiply_add(values[j * rows + local], OneToken::weight[j], total);
  store(y, row, residual(total, row));
}

// All of h into local memory, and the biases of a unit of down, when every unit of gate and up is done.
template <class W, class X>
DEVICE void stage_h(const OnePlan& p, u32 unit, const GLOBAL X* h, const GLOBAL f32* bias, const GLOBAL u32* counters) {
  const u32 rows = p.s.unit_rows, row = (unit - p.gate_up) * rows + thread_id() % rows;
  if (bias && thread_id() < p.s.choice.k * rows) {
    const u32 e = OneToken::expert[thread_id() / rows];
    OneToken::bias[thread_id()] = row < p.s.hidden ? bias[e * p.s.hidden + row] : 0.0f;
  }
  if (thread_id() == 0) wait_for_finished(counters, p.gate_up);
  barrier();
  stage_chunks<W, ONE_THREADS, 3>((LOCAL u32*)OneToken::words, OneToken::sums, p.s.choice.k * p.down.chunks,
                                  [&](u32 chunk, u32 i) __attribute__((always_inline)) {
    return load_fresh(h, chunk * 8 + i);
  });
  barrier();
}

// correction: what is added to the scores for the choice, where s.choice is biased. scratch: of the program's counters, the
// launch's own being number `slot`; h is there too.
template <class W, bool BIASED, bool NORMED, class X>
DEVICE void moe_one(const GLOBAL X* logits, const GLOBAL i32* positions, const GLOBAL f32* correction, const GLOBAL X* x,
                    W gate, W up, W down, const GatedBy gated, const GLOBAL f32* bias, const RmsNorm norm,
                    const Residual<X> residual, GLOBAL X* y, GLOBAL u32* scratch, u32 slot, const OneShape s) {
  GLOBAL X* h = (GLOBAL X*)half_of_launch(scratch, slot);
  if (workgroup_id() == 0) clear_other_half(scratch, slot, 1, ONE_THREADS);
  GLOBAL u32* counters = scratch + SCRATCH_WORDS + slot * COUNTER_WORDS;
  const OnePlan p(s);
  const u32 wave = wave_id(), lane = lane_id(), thread = thread_id();
  const LOCAL u32* words = (const LOCAL u32*)OneToken::words;
  LOCAL f32* slots = (LOCAL f32*)OneToken::words + (ONE_CHUNKS - SLOT_CHUNKS) * CHUNK_WORDS;
  const i32 position = positions[0];
  gate.runs = up.runs = s.hidden / W::RUN;
  down.runs = s.inner / W::RUN;
  const u32 nothing = s.choice.experts >> 16;  // 0, which the compiler does not know
  constexpr u32 AHEAD = STEPS_AHEAD<W>;
  typename W::Stored next[AHEAD][2] = {};
  OneTask task = {};
  TaskReader<W> reader = reader_of(gate, up, task);
  const auto reader_for = [&](u32 unit, const OneTask& of) __attribute__((always_inline)) {
    return p.is_down(unit) ? reader_of(down, down, of) : reader_of(gate, up, of);
  };
  const auto ask_first = [&](u32 unit) __attribute__((always_inline)) {
    task = one_task(p, unit, wave, p.tasks(unit));
    reader = reader_for(unit, task);
    UNROLL for (u32 step = 0; step < AHEAD; step++) reader.ask(step, 0, next[step]);
  };
  start_one<W, NORMED>(logits, correction, x, norm, counters, slots, s);
  if (position < 0) {  // padding
    for (u32 i = thread; workgroup_id() == 0 && i < s.hidden; i += ONE_THREADS) store(y, i, residual(0.0f, i));
    return;
  }
  u32 unit = OneToken::ticket[0], following = NO_TICKET;
  ask_first(unit);
  if (wave == TAKER / WAVE) {
    u32 second = 0;
    if (thread == TAKER) second = take_ticket(counters);  // all have one by now
    const f32 weight = weight_of(lane < s.choice.k ? OneToken::score[lane] : 0.0f, s.choice);
    if (lane < s.choice.k) OneToken::weight[lane] = weight;
    if (thread == TAKER) *(volatile LOCAL u32*)&OneToken::ticket[1] = second;
  }
  const auto after_first = [&]() __attribute__((always_inline)) {
    while (following == NO_TICKET) following = broadcast_bits(*(volatile LOCAL u32*)&OneToken::ticket[1], 0);
    return following;
  };
  for (u32 number = 0; unit < p.all; number++) {
    const bool is_down = p.is_down(unit), first = number == 0;
    if (number > 1) ask_first(unit);  // the second one's weights are asked for in the first
    if (is_down) stage_h<W>(p, unit, h, BIASED ? bias : nullptr, counters);
    const u32 count = p.tasks(unit);
    f32 kept[2][2] = {};  // of rounds t and t + 4 in lanes t of four
    if (first && wave >= count) ask_first(after_first());
    for (u32 round = 0; round * ONE_WAVES + wave < count; round++) {
      const u32 coming = (round + 1) * ONE_WAVES + wave;
      const bool same = coming < count;
      const u32 coming_unit = same ? unit : first ? after_first() : NO_TICKET;
      const OneTask then = one_task(p, coming_unit, same ? coming : wave, same ? count : p.tasks(coming_unit));
      const u32 chunk = task.base + smaller(task.first + lane % 4, task.end - 1), own = task.end - task.first;
      const DiagonalBlock block = DiagonalBlock::at(words, chunk);
      f32 sum[1][2] = {};
      UNROLL for (u32 step = 0; step < PART_STEPS; step++) {
        if (step * STEP_CHUNKS < own) {
          const typename W::Run run[2] = {W::run(next[step % AHEAD][0]), W::run(next[step % AHEAD][1])};
          const bool inside = step * STEP_CHUNKS + lane % 4 < own;
          add_step<1, W>(run, block, step * STEP_CHUNKS, 0, OneToken::sums + chunk, inside, sum);
        }
        if (step + AHEAD == PART_STEPS) reader = reader_for(coming_unit, then);
        // What is loaded next depends on the sum, by nothing: else ptxas loads into other registers, and waits for them
        // when it moves them here.
        reader.ask((step + AHEAD) % PART_STEPS, after(sum[0][0], nothing), next[step % AHEAD]);
      }
      task = then;
      UNROLL for (u32 r = 0; r < 2; r++) {
        const f32 total = sum_over(sum[0][r], 4);
        UNROLL for (u32 q = 0; q < 2; q++) kept[q][r] = q * 4 + lane % 4 == round ? total : kept[q][r];
      }
    }
    barrier();  // nobody needs any more what was staged there
    UNROLL for (u32 q = 0; q < 2; q++) {
      const u32 of_unit = (q * 4 + lane % 4) * ONE_WAVES + wave;
      if (of_unit >= count) continue;
      slots[of_unit * 16 + lane / 4] = kept[q][0];
      slots[of_unit * 16 + lane / 4 + 8] = kept[q][1];
    }
    if (thread == TAKER) OneToken::ticket[0] = first ? following : take_ticket(counters);
    barrier();
    if (is_down) {
      finish_down(p, unit, slots, BIASED, residual, y);
    } else {
      finish_gate_up(p, unit, slots, gated, h);
      barrier();
      if (thread == 0) count_finished(counters);
    }
    unit = OneToken::ticket[0];
  }
}

#endif
