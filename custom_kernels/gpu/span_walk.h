// The work of moe_one_spans.h: which spans of which rows a unit has, and a wave's way through them.
#pragma once

#include "expert_spans.h"
#include "moe_one.h"

#if !defined(__AMDGCN__)

// Division by a number that does not change, of numbers whose product with it is below 2^32; inverse: 2^32 / by, rounded up,
// or 0 for 1.
DEVICE u32 divided(u32 v, u32 inverse) { return inverse ? (u32)((u64)v * inverse >> 32) : v; }

// A matrix of an expert, row by row.
struct SpanMatrix {
  u32 k, blocks, spans, padded;  // columns, blocks of 32, spans; blocks of whole spans
  constexpr explicit SpanMatrix(u32 k) : k(k), blocks(k / BLOCK), spans((k + SPAN_COLUMNS - 1) / SPAN_COLUMNS),
        padded(spans * SPAN_BLOCKS) {}
};

// A unit's share of stripes: `each`, and one more for the first `more` units.
struct UnitShare {
  u32 each, more;
  MEMBER u32 first(u32 number) const { return number * each + smaller(number, more); }
  MEMBER u32 count(u32 number) const { return each + (number < more); }
  MEMBER u32 most() const { return each + (more != 0); }
};

// Stripes are of 8 rows: of gate and of up, or of down of two chosen experts. units: of gate and up, and as many of down.
// by_...: inverses of what is divided by; `by_pairs` of the pairs of chosen experts.
struct SpansShape {
  RouteChoice choice;
  u32 hidden, inner, units;
  UnitShare of_up, of_down;
  u32 by_tiles, by_k, by_pairs, by_up_spans, by_down_spans;
};

struct SpansPlan {
  SpansShape s;
  SpanMatrix up, down;
  u32 tiles, expert_pairs;

  constexpr explicit SpansPlan(const SpansShape& s) : s(s), up(s.hidden), down(s.inner), tiles(s.inner / 8),
        expert_pairs((s.choice.k + 1) / 2) {}

  MEMBER bool is_down(u32 unit) const { return unit >= s.units; }
  MEMBER u32 all() const { return 2 * s.units; }
  MEMBER u32 first(u32 unit) const { return is_down(unit) ? s.of_down.first(unit - s.units) : s.of_up.first(unit); }
  MEMBER u32 count(u32 unit) const { return is_down(unit) ? s.of_down.count(unit - s.units) : s.of_up.count(unit); }
  // Stripes of one expert, or of a pair of them, in it, and spans.
  MEMBER u32 pairs(u32 unit) const { return count(unit) * (is_down(unit) ? expert_pairs : 1); }
  MEMBER u32 tasks(u32 unit) const { return pairs(unit) * (is_down(unit) ? down.spans : up.spans); }
};

// The chosen experts of pair `number`, of which the second may be the first.
DEVICE u32 second_of_pair(const SpansPlan& p, u32 number) { return smaller(2 * number + 1, p.s.choice.k - 1); }

// Number `pair` of a unit: 8 rows of `low`, 8 rows of `high` of the experts' rows, from these on; the chosen expert, or the
// pair of them.
struct SpanRows {
  u32 low, high, j;
};
DEVICE SpanRows span_rows(const SpansPlan& p, u32 unit, u32 pair) {
  SpanRows rows;
  if (p.is_down(unit)) {
    const u32 stripe = divided(pair, p.s.by_pairs), row = (p.first(unit) + stripe) * 8;
    rows.j = pair - stripe * p.expert_pairs;
    rows.low = OneToken::expert[2 * rows.j] * p.s.hidden + row;
    rows.high = OneToken::expert[second_of_pair(p, rows.j)] * p.s.hidden + row;
  } else {
    const u32 stripe = p.first(unit) + pair;
    rows.j = divided(stripe, p.s.by_tiles);
    rows.low = rows.high = OneToken::expert[rows.j] * p.s.inner + (stripe - rows.j * p.tiles) * 8;
  }
  return rows;
}

// A wave's way through the spans of a unit, of which it takes every ONE_WAVES-th: what is divided is what it begins with.
struct SpanWalk {
  // minor: the tile of an expert, or of down the pair of chosen experts; major: the chosen expert, or of down the stripe.
  u32 task, pair, span, minor, major;
  u32 spans, pairs_on, spans_on, minors;

  DEVICE SpanWalk of(const SpansPlan& p, u32 unit, u32 wave) {
    const bool is_down = p.is_down(unit);
    SpanWalk walk;
    walk.spans = is_down ? p.down.spans : p.up.spans;
    walk.minors = is_down ? p.expert_pairs : p.tiles;
    const u32 by_spans = is_down ? p.s.by_down_spans : p.s.by_up_spans;
    walk.pairs_on = divided(ONE_WAVES, by_spans);
    walk.spans_on = ONE_WAVES - walk.pairs_on * walk.spans;
    walk.task = wave;
    walk.pair = divided(wave, by_spans);
    walk.span = wave - walk.pair * walk.spans;
    const u32 number = is_down ? walk.pair : p.first(unit) + walk.pair;
    walk.major = divided(number, is_down ? p.s.by_pairs : p.s.by_tiles);
    walk.minor = number - walk.major * walk.minors;
    return walk;
  }
  MEMBER void step() {
    task += ONE_WAVES;
    span += spans_on;
    const u32 over = span >= spans, on = pairs_on + over;
    if (over) span -= spans;
    pair += on;
    minor += on;
    while (minor >= minors) {
      minor -= minors;
      major++;
    }
  }
};

#endif
