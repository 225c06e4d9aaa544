"""A mixture of experts for one token as one launch, on NVIDIA GPUs: moe_one.h."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..ops.launch import (
    COUNTER_WORDS,
    COUNTERS,
    SCRATCH_WORDS,
    CounterSlot,
    Launch,
    Lowering,
    OperandTypes,
    Output,
    ceil_div,
    float_bits,
)
from ..ops.moe_matmul import ACTIVATIONS, part_names
from ..ops.moe_route import SCORINGS
from .elements import with_elements
from .expert_spans import SPANS_LOCAL, spans_scalars, units_of_spans
from .launches import Chip
from .moe_kernels import MOST_BINDINGS, ROUTE_EXPERTS, OneForm
from .moe_launches import MOST_CHOSEN, MOST_GROUPS, Experts, experts_of

THREADS, WAVES = 512, 16
MOST_ROUNDS = 6  # tasks of a wave in a unit: these and the next are moe_one.h's
CHUNK, PART, STAGED, SLOTS = 32, 16, 364, 48  # columns; chunks that a wave sums at once; that fit into local memory
MOST_BIASES = 128
SCORED = SCORINGS[:3]  # others need the scores of all experts, or more, for the weights


def operands_of(format: str, columns: int, form: OneForm) -> tuple[str, ...]:
    """The operands' names, in order: those of `moe_route`, and what the two matmuls have beside its results."""
    parts = {w: tuple(f"{w}.{p}" for p in part_names(format, 1, columns)) for w in ("gate", "up", "down")}
    biases = (("gate_bias", "up_bias"), ("bias",)) if form.biased else ((), ())
    last = (*("norm",) * form.normed, *("residual",) * form.added)
    router = ("logits", "positions", "x", *("correction",) * form.corrected)
    return (*router, *parts["gate"], *parts["up"], *biases[0], *parts["down"], *biases[1], *last)


@dataclass(frozen=True)
class Units:
    """Tiles of 8 rows of gate and up in a unit of work, rows of down in one, workgroups."""

    tiles: int
    rows: int
    workgroups: int


def _parts(columns: int) -> int:
    return ceil_div(columns // CHUNK, PART)


def units_of(gate: Experts, down: Experts, biased: bool, multiprocessors: int) -> Units | None:
    """About a unit of each kind for each multiprocessor; None where x, h, the tasks or the biases do not fit."""
    chunks, of_h = gate.columns // CHUNK, down.columns // CHUNK
    if not multiprocessors or chunks > STAGED - SLOTS or gate.k * of_h > STAGED:
        return None
    all_tiles, most = ceil_div(gate.n, 8), MOST_ROUNDS * WAVES
    tiles = next(
        t for t in range(1, all_tiles + 1) if gate.k * ceil_div(all_tiles, t) <= multiprocessors or t == all_tiles
    )
    tiles = min(tiles, most // _parts(gate.columns), THREADS // 8)
    rows = next(r for r in range(8, down.n + 16, 8) if ceil_div(down.n, r) <= multiprocessors or r >= down.n)
    fits = [
        r for r in range(8, rows + 8, 8)
        if gate.k * ceil_div(r, 16) * _parts(down.columns) <= most and (not biased or gate.k * r <= MOST_BIASES)
    ]  # fmt: skip
    if not tiles or not fits:
        return None
    rows = fits[-1]
    units = max(gate.k * ceil_div(all_tiles, tiles), ceil_div(down.n, rows))
    return Units(tiles, rows, min(units, multiprocessors))


def moe_one(chip: Chip, attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    """attributes: of `moe_route`, `moe_gate_up` and `moe_down` together, `corrected` where the router's scores are;
    `added` and `added_scale` are of moe_down's residual. types: of `operands_of`'s. None where more launches are
    needed: other chips, several tokens, more than a workgroup can hold, or more buffers than a dispatch can have."""
    a = attributes
    form = OneForm(a["corrected"], a["biased"], a["normed"], a["added"])
    ((t, columns), logits), ((_, hidden), x) = types[0], types[2]
    experts = a.get("experts", columns)
    names = operands_of(a["format"], hidden, form)
    known = dict(zip(names, types, strict=True))
    own = {w: [v for n, v in known.items() if n.startswith(f"{w}.")] for w in ("gate", "up", "down")}
    gate, up = (experts_of(a["format"], experts, hidden, a["k"], own[w], x) for w in ("gate", "up"))
    if gate is None or up != gate or not gate.few(chip, t) or logits != x:
        return None
    down = experts_of(a["format"], experts, gate.n, a["k"], own["down"], x)
    if down is None or down.kernel != gate.kernel or not down.few(chip, t):
        return None
    geometry = units_of(gate, down, form.biased, chip.multiprocessors)
    simple = t == 1 and a["groups"] <= MOST_GROUPS and a["k"] <= min(experts, MOST_CHOSEN)
    buffers = form.bindings(len(own["gate"]))
    simple = simple and a["scoring"] in SCORED and not a.get("factored", False) and a.get("logit_scale", 1.0) == 1
    if geometry is None or not simple or experts > ROUTE_EXPERTS[-1] or buffers > MOST_BINDINGS:
        return None
    routing = (experts, a["k"], SCORINGS.index(a["scoring"]), int(a["normalize"]), float_bits(a["scale"]))
    groups = (a["groups"], a["group_k"], a["group_top"])
    activation = (ACTIVATIONS.index(a["activation"]), float_bits(a["limit"]))
    norm = (float_bits(a["epsilon"]), float_bits(a["offset"]), float_bits(a["added_scale"]))
    units = units_of_spans(chip, gate.k, hidden, gate.n)
    spans = gate.spans(chip, own["gate"], hidden, gate.n)
    way = "gemv"
    shape: tuple[int, ...] = (hidden, gate.n, geometry.tiles, geometry.rows)
    if spans:
        way, shape = "spans", (hidden, gate.n, units, *spans_scalars(gate.k, hidden, gate.n, units))
    outputs = (
        Output("counted", (SCRATCH_WORDS + COUNTER_WORDS,), "i32", updates=COUNTERS),
        Output("y", (1, hidden), x),
    )
    symbol = with_elements(form.symbol(gate.kernel, way), x)
    inputs, scalars = (*names, COUNTERS), (*routing, *groups, *shape, CounterSlot(), *activation, *norm)
    workgroups = units if spans else geometry.workgroups
    return Lowering(
        names,
        (Launch(symbol, inputs, outputs, scalars, workgroups, THREADS, local_memory=SPANS_LOCAL if spans else 0),),
        ("y",),
    )
