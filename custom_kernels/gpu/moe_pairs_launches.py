"""The launches of a mixture of experts for few tokens: moe_pairs.h, and on NVIDIA's matrix units moe_few.h.

One for gate and up, which may choose the experts too, and one for down, the sum and the residual.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from . import moe_launches as many
from .elements import with_elements
from .launches import WAVE, Chip
from .moe_kernels import MOST_BINDINGS, ROUTE_EXPERTS
from .moe_launches import (
    FEW_WAVES,
    MOST_CHOSEN,
    MOST_GROUPS,
    ROUTING,
    Experts,
    down_geometry,
    experts_of,
    gate_up_geometry,
)
from .moe_pairs_kernels import DOWN, PAIRED_TOKENS, GateUpPairs, few_down_symbol

BYTES = {"f32": 4, "f16": 2, "bf16": 2}
FEW_CHOOSE = 4  # workgroups of a multiprocessor, one after the other: each chooses the experts for itself
FEW_DOWN = 16  # of down, which has less to begin with


def paired(weight: Experts, chip: Chip, tokens: int) -> int:
    """Tokens of the kernel that takes so many; 0 where others are better."""
    if weight.few(chip, tokens) or weight.k > MOST_CHOSEN:
        return 0
    return next((most for most in PAIRED_TOKENS if tokens <= most), 0)


def choosable(weight: Experts, chip: Chip, tokens: int) -> bool:
    """Whether there is a kernel that chooses the experts too, and one that takes what it has chosen."""
    in_units = weight.few(chip, tokens) and weight.k <= MOST_CHOSEN
    return tokens <= chip.chosen_tokens and (in_units or bool(paired(weight, chip, tokens)))


def moe_gate_up(chip: Chip, attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    """Of few tokens one launch, or two where the norm has a buffer too many; of more as `moe_launches` has them."""
    ((t, columns), x), experts = types[0], types[3][0][0] - 1
    format, biased, normed = attributes["format"], attributes["biased"], attributes["normed"]
    count = len(part_names(format, types[5][0][0] // experts, columns))
    gate, up = (experts_of(format, experts, columns, attributes["k"], types[5 + i * count :], x) for i in range(2))
    plain = GateUpPairs(chosen=False, corrected=False, biased=biased, normed=False)
    few = gate is not None and gate == up and paired(gate, chip, t) and not attributes.get("weighed", False)
    if gate is None or not few or plain.bindings(count) > MOST_BINDINGS:
        return many.moe_gate_up(chip, attributes, types)
    kernel = GateUpPairs(chosen=False, corrected=False, biased=biased, normed=normed)
    apart = normed and kernel.bindings(count) > MOST_BINDINGS
    parts, norm = _gate_up_operands(format, columns, biased), ("norm",) * normed
    rms = (float_bits(attributes["epsilon"]), float_bits(attributes["offset"]))
    inputs = ("normed" if apart else "x", "expert", "order", *parts, *(() if apart else norm))
    scalars = (*_how(attributes), *rms)
    launch = _gate_up(chip, gate, plain if apart else kernel, inputs, (_h(gate, t),), scalars, t)
    launches: tuple[Launch, ...] = (launch,)
    if apart:
        rows = (Output("normed", (t, columns), x),)
        symbol = with_elements("strixhlo_norm_rows", x)
        launches = (Launch(symbol, ("x", "norm"), rows, (columns, *rms), t, many.THREADS), launch)
    return Lowering(("x", *ROUTING, *parts, *norm), launches, ("h",))


def moe_chosen_gate_up(chip: Chip, attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    """`moe_route` and `moe_gate_up` in one launch; None where they are better apart. attributes: of both, `corrected`
    where the router's scores are. Operands: of `moe_route`, then of `moe_gate_up` without the routing. Results: h, and
    what `moe_down` takes in place of the routing: int32 [3, pairs], experts and pairs of sorted rows, and the bits of
    each pair's weight; or, where `joined`, one buffer int32 of both: h begins at the next whole 16 bytes."""
    a, biased, normed, corrected = attributes, attributes["biased"], attributes["normed"], attributes["corrected"]
    weighed = bool(a.get("weighed", False))
    ((t, logit_columns), logits), first, experts = types[0], 2 + corrected, attributes["experts"]
    (_, columns), x = types[first]
    own, count = types[first + 1 :], len(part_names(a["format"], 1, columns))
    gate, up = (experts_of(a["format"], experts, columns, a["k"], own[i * count :], x) for i in range(2))
    joined = a.get("joined", False)
    kernel = GateUpPairs(chosen=True, corrected=corrected, biased=biased, normed=normed, joined=joined)
    if gate is None or gate != up or logits != x or kernel.bindings(count) > MOST_BINDINGS:
        return None
    if not choosable(gate, chip, t):
        return None
    if experts > ROUTE_EXPERTS[-1] or a["k"] > min(experts, MOST_CHOSEN) or a["groups"] > MOST_GROUPS:
        return None
    parts = _gate_up_operands(a["format"], columns, biased)
    correction, norm = ("correction",) * corrected, ("norm",) * normed
    inputs = ("logits", "positions", "x", *parts, *norm, *correction)
    outputs: tuple[Output, ...] = (_h(gate, t), Output("chosen", (3, t * gate.k), "i32"))
    if joined:
        words = _before_h(t * gate.k) + t * gate.k * gate.n * BYTES[x] // 4
        outputs = (Output("chosen", (words,), "i32"),)
    routing = (SCORINGS.index(a["scoring"]), int(a["normalize"]), float_bits(a["scale"]))
    groups = (a["groups"], a["group_k"], a["group_top"])
    scores = (*routing, *groups, logit_columns, many.route_bias(a, corrected), *many.of_logits(a), int(weighed))
    scalars = (*_how(a), float_bits(a["epsilon"]), float_bits(a["offset"]), *scores)
    if gate.few(chip, t):
        spans = gate.spans(chip, own[:count], columns, gate.n)
        launch = _few_gate_up(chip, gate, kernel.few_symbol(gate.kernel, spans), inputs, outputs, scalars, t)
    else:
        launch = _gate_up(chip, gate, kernel, inputs, outputs, scalars, t)
    return Lowering(("logits", "positions", *correction, "x", *parts, *norm), (launch,), tuple(o.name for o in outputs))


def moe_down(chip: Chip, attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    """Of few tokens one launch for the matmul, the sum and the residual; of more as `moe_launches` has them."""
    ((_, columns), x), (t, k), experts = types[0], types[1][0], types[5][0][0] - 1
    format = attributes["format"]
    weight = experts_of(format, experts, columns, k, types[7:], x)
    if weight is None or not paired(weight, chip, t):
        return many.moe_down(chip, attributes, types)
    down, added = _down_operands(format, weight, attributes)
    inputs = ("h", "weights", "expert", "order")
    launch = _down(chip, weight, attributes, inputs, t, (0, 0, 0))
    return Lowering(("h", "weights", "places", *ROUTING, *down, *added), (launch,), ("y",))


def moe_chosen_down(chip: Chip, attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    """`moe_down` after `moe_chosen_gate_up`: h, what that has chosen, and the operands after the routing; attributes:
    the number of experts too.

    Where `joined` was said to both, h comes behind what has been chosen, and the attributes say how many `pairs` and
    columns (`inner`) it has, and its dtype `x`. Where it is `gated`, it does the `add_gated` whose result would be the
    residual: base, x and logits are the last operands in its place, shared_scale and column its attributes."""
    joined, k = attributes.get("joined", False), attributes["k"]
    if joined:
        types = [((attributes["pairs"], attributes["inner"]), attributes["x"]), *types]
    ((pairs, columns), x) = types[0]
    weight = experts_of(attributes["format"], attributes["experts"], columns, k, types[2:], x)
    if weight is None or not choosable(weight, chip, pairs // k):
        return None
    down, added = _down_operands(attributes["format"], weight, attributes)
    columns = types[-1][0][1] if attributes.get("gated", False) else 0
    inputs = ("chosen" if joined else "h", "chosen", "chosen", "chosen")
    places = (pairs, 2 * pairs, _before_h(pairs) * 4 // BYTES[x] if joined else 0)
    launch = _down(chip, weight, attributes, inputs, pairs // k, places, columns)
    if weight.few(chip, pairs // k):
        spans = weight.spans(chip, types[2 : 2 + len(down)], weight.n, weight.columns)
        launch = _few_down(chip, launch, weight, spans, pairs)
    return Lowering((*("h",) * (not joined), "chosen", *down, *added), (launch,), ("y",))


def _before_h(pairs: int) -> int:
    """Numbers of what is chosen, whole 16 bytes, before an h that comes behind it."""
    return ceil_div(3 * pairs, 4) * 4


def _gate_up_operands(format: str, columns: int, biased: bool) -> tuple[str, ...]:
    parts = tuple(f"{which}.{name}" for which in ("gate", "up") for name in part_names(format, 1, columns))
    return (*parts, *(("gate_bias", "up_bias") if biased else ()))


def _how(attributes: Mapping[str, Any]) -> tuple[int, int]:
    return ACTIVATIONS.index(attributes["activation"]), float_bits(attributes["limit"])


def _h(weight: Experts, tokens: int) -> Output:
    return Output("h", (tokens * weight.k, weight.n), weight.x)


def _gate_up(
    chip: Chip,
    weight: Experts,
    kernel: GateUpPairs,
    inputs: tuple[str, ...],
    outputs: tuple[Output, ...],
    how: tuple[int, ...],
    tokens: int,
) -> Launch:
    """A workgroup asks for x, and lists the pairs, once, so that each has a share of all blocks."""
    lanes, blocks = gate_up_geometry(weight, chip)
    items = min(weight.experts, tokens * weight.k) * blocks
    workgroups = ceil_div(items, ceil_div(items, 2 * chip.gemv_most))
    scalars = (tokens, weight.k, weight.experts, weight.n, weight.columns, lanes, workgroups, *how)
    symbol = with_elements(kernel.symbol(weight.kernel, paired(weight, chip, tokens)), weight.x)
    return Launch(symbol, inputs, outputs, scalars, workgroups, chip.gemv_waves * WAVE)


def _few_workgroups(chip: Chip, weight: Experts, tokens: int, blocks: int, of_each: int) -> int:
    """At most `of_each` for a multiprocessor, each with as many of all tiles' blocks."""
    items = min(weight.experts, tokens * weight.k) * blocks
    return ceil_div(items, ceil_div(items, of_each * chip.multiprocessors))


def _few_gate_up(
    chip: Chip,
    weight: Experts,
    symbol: str,
    inputs: tuple[str, ...],
    outputs: tuple[Output, ...],
    how: tuple[int, ...],
    tokens: int,
) -> Launch:
    workgroups = _few_workgroups(chip, weight, tokens, ceil_div(weight.n, 8 * FEW_WAVES), FEW_CHOOSE)
    scalars = (tokens, weight.k, weight.experts, weight.n, weight.columns, 0, workgroups, *how)
    return Launch(with_elements(symbol, weight.x), inputs, outputs, scalars, workgroups, FEW_WAVES * WAVE)


def _few_down(chip: Chip, pairs_launch: Launch, weight: Experts, spans: bool, pairs: int) -> Launch:
    """pairs_launch: what moe_pairs.h would have, with the same buffers and numbers."""
    workgroups = _few_workgroups(chip, weight, pairs // weight.k, ceil_div(weight.n, 16 * FEW_WAVES), FEW_DOWN)
    shape, places, rest = pairs_launch.scalars[:5], pairs_launch.scalars[7:10], pairs_launch.scalars[10:]
    scalars = (*shape, 0, workgroups, *places, CounterSlot(), *rest)
    counted = Output("counted", (SCRATCH_WORDS + COUNTER_WORDS,), "i32", updates=COUNTERS)
    outputs = (counted, Output("rows", (pairs, weight.n), weight.x), *pairs_launch.outputs)
    symbol = with_elements(few_down_symbol(weight.kernel, spans), weight.x)
    return Launch(symbol, (*pairs_launch.inputs, COUNTERS), outputs, scalars, workgroups, FEW_WAVES * WAVE)


def _down_operands(
    format: str, weight: Experts, attributes: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the weight's parts, and of what is added."""
    down = tuple(f"down.{name}" for name in part_names(format, 1, weight.columns))
    gated = ("shared", "logits") if attributes.get("gated", False) else ()
    return down, (*("bias",) * attributes["biased"], *("residual",) * attributes.get("added", False), *gated)


def _down(
    chip: Chip,
    weight: Experts,
    attributes: Mapping[str, Any],
    routing: tuple[str, ...],
    tokens: int,
    places: tuple[int, ...],
    logit_columns: int = 0,
) -> Launch:
    """places: of the order, the weights and h in their buffers."""
    lanes, workgroups = down_geometry(weight, chip)
    down, added = _down_operands(attributes["format"], weight, attributes)
    biased, has_residual, gated = ("bias" in added, "residual" in added, "shared" in added)
    shape = (tokens, weight.k, weight.experts, weight.n, weight.columns, lanes, workgroups)
    scalars: tuple[int, ...] = (
        *shape,
        *places,
        int(biased),
        int(has_residual),
        float_bits(attributes.get("scale", 1.0)),
    )
    scalars += (int(gated), logit_columns, attributes.get("column", 0), float_bits(attributes.get("shared_scale", 1.0)))
    inputs = (*routing, *down, "bias" if biased else routing[1], "residual" if has_residual else routing[0])
    inputs += ("shared", "logits") if gated else (routing[0], routing[0])
    y = (Output("y", (tokens, weight.n), weight.x),)
    symbol = with_elements(f"{DOWN}{weight.kernel}_m{paired(weight, chip, tokens)}", weight.x)
    return Launch(symbol, inputs, y, scalars, workgroups, chip.gemv_waves * WAVE)


def add_gated(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    """One launch."""
    ((m, n), x), (_, columns) = types[0], types[2][0]
    scalars = (m * n, n, 1, columns, attributes["column"], float_bits(attributes["scale"]))
    y, symbol = (Output("y", (m, n), x),), with_elements("strixhlo_moe_add_gated", x)
    launch = Launch(symbol, ("base", "x", "logits"), y, scalars, ceil_div(m * n, many.THREADS), many.THREADS)
    return Lowering(("base", "x", "logits"), (launch,), ("y",))
