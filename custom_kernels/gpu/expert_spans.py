"""What moe_one_spans.h takes, and moe_rows.h with it: experts of 4-bit weights, span after span."""

from __future__ import annotations

from ..ops.launch import OperandTypes, ceil_div
from .launches import Chip

SPAN, WAVES, STAGES = 256, 16, 4  # columns; waves of a workgroup, and spans of each in local memory
SPAN_BYTES, SPANS_LOCAL = 16 * 144, 224 * 1024  # of a span's codes there; of all of it, what an H100 has
MOST_H = 364 * 32
SIZES = {"i8": 1, "f16": 2, "bf16": 2, "f32": 4}


def units_of_spans(chip: Chip, k: int, hidden: int, inner: int) -> int:
    """Units of gate and up, and of down: one of each for a multiprocessor, of a stripe at least."""
    return min(chip.multiprocessors, k * (inner // 8), hidden // 8)


def fits_spans(chip: Chip, k: int, hidden: int, inner: int, types: OperandTypes) -> bool:
    """Whether a token's experts are for moe_one_spans.h: whole blocks of 64, and local memory enough.

    types: of the parts of gate, [experts * inner, hidden].
    """
    if hidden % 64 or inner % 64 or k * inner > MOST_H:
        return False
    units = units_of_spans(chip, k, hidden, inner)
    up_spans, down_spans = ceil_div(hidden, SPAN), ceil_div(inner, SPAN)
    blocks = 8 * max(up_spans, k * down_spans)
    of_x = blocks * 96 + blocks * 4 * len(types[1:])
    up, down = ceil_div(k * (inner // 8), units), ceil_div(hidden // 8, units) * ceil_div(k, 2)
    row = sum(shape[1] * SIZES[dtype] for shape, dtype in types[1:])  # of gate's scales
    scales = 16 * max(up * row, ceil_div(down * row * inner, hidden))
    tasks = max(up * up_spans, down * down_spans, 96)  # the scores of all experts are there too
    return WAVES * STAGES * SPAN_BYTES + of_x + 2 * scales + 64 * tasks <= SPANS_LOCAL


def spans_scalars(k: int, hidden: int, inner: int, units: int) -> tuple[int, ...]:
    """Stripes of gate and up, and of down, of a unit (upper half), and how many units have one more; then inverses, as
    `divided` of span_walk.h takes them."""
    tiles, up_spans, down_spans = inner // 8, ceil_div(hidden, SPAN), ceil_div(inner, SPAN)
    inverses = [ceil_div(2**32, d) % 2**32 for d in (tiles, k, ceil_div(k, 2), up_spans, down_spans)]
    shares = (divmod(k * tiles, units), divmod(hidden // 8, units))
    return (*(each << 16 | more for each, more in shares), *(i - 2**32 if i >= 2**31 else i for i in inverses))
