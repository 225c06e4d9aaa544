"""How the mixture-of-experts ops become launches of the CPU kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..ops.formats import FORMATS
from ..ops.launch import Launch, Lowering, OperandTypes, Output, ceil_div, float_bits, with_input
from ..ops.moe_matmul import ACTIVATIONS, part_names, scaled_together
from ..ops.moe_route import RESULTS, SCORINGS, result_shapes
from .launches import TOKENS_PER_WORKGROUP, rows_per_workgroup
from .moe_few_launches import down_few, gate_up_few
from .moe_int8_launches import with_8_bit_activations
from .weight_kernels import WeightKernel, weight_kernel

MOST_EXPERTS = 512
DENSE = ("f32", "f16", "bf16")


def stored_kernel(format: str, names: tuple[str, ...], types: OperandTypes, experts: int) -> WeightKernel | None:
    """How `strixhlo_moe_rows_*` reads a weight whose parts are the first of `types`; None where it does not."""
    if format in DENSE:
        return WeightKernel(format, integer=False)
    dtypes = {name: dtype for name, (_, dtype) in zip(names, types, strict=False)}
    if format not in FORMATS or scaled_together(names, types, experts):
        return None
    return weight_kernel(format, dtypes)


def _row_tile(rows: int) -> int:
    return 1 if rows <= TOKENS_PER_WORKGROUP else ceil_div(rows, TOKENS_PER_WORKGROUP)


def moe_route(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    """Up to 512 experts, one workgroup; None for more."""
    (t, columns), k, biased = types[0][0], attributes["k"], attributes["biased"]
    experts = attributes.get("experts", columns)
    if experts > MOST_EXPERTS or k > experts:
        return None
    operands = ("logits", "positions", "bias")[: len(types)]
    outputs = tuple(Output(name, shape, dtype) for name, (shape, dtype) in result_shapes(t, experts, k).items())
    tiles = outputs[-1].shape[0]
    scalars = (t, experts, k, tiles, *routing_scalars(attributes, biased, columns))
    inputs = ("logits", "positions", "bias" if biased else "logits")
    return Lowering(operands, (Launch("strixhlo_moe_route", inputs, outputs, scalars, 1),), RESULTS)


def routing_scalars(attributes: Mapping[str, Any], biased: bool, columns: int) -> tuple[int, ...]:
    """ROUTE_SCALARS of moe_route.h. biased: there is an operand of a number for each expert; columns: of logits."""
    a, factored = attributes, int(biased and attributes.get("factored", False))
    how = (SCORINGS.index(a["scoring"]), int(a["normalize"]), float_bits(a["scale"]))
    numbers = (float_bits(a.get("jitter", 0.0)), float_bits(a.get("logit_scale", 1.0)))
    return (*how, a["groups"], a["group_k"], a["group_top"], int(biased) + factored, *numbers, columns)


def _rows(
    kernel: WeightKernel, inputs: tuple[str, ...], out: str, *, pairs: int, experts: int, n: int, k: int
) -> Launch:
    """x sorted [pairs, k] times each row's expert -> [pairs, n]."""
    tile_n = rows_per_workgroup(n)
    scalars = (*kernel.scalars, k, experts, n, tile_n)
    output = Output(out, (pairs, n), "f32")
    return Launch(f"strixhlo_moe_rows_{kernel.name}", inputs, (output,), scalars, ceil_div(n, tile_n))


def moe_gate_up(attributes: Mapping[str, Any], types: OperandTypes, fast: bool = False) -> Lowering | None:
    """One launch for few tokens; of many the norm comes first, where x gets one."""
    normed, weighed = bool(attributes.get("normed")), bool(attributes.get("weighed"))
    lowering = _gate_up(attributes, types[: len(types) - normed - weighed], fast)
    if lowering is None:
        return None
    last = ("weights",) * weighed
    if not normed:
        return replace(lowering, operands=(*lowering.operands, *last))
    t, columns = types[0][0]
    if "norm" in lowering.launches[0].inputs:
        return replace(lowering, operands=(*lowering.operands, "norm", *last))
    tile = _row_tile(t)
    scalars = (t, columns, *(float_bits(attributes[name]) for name in ("epsilon", "offset")), tile)
    outputs = (Output("normed", (t, columns), "f32"),)
    norm = Launch("strixhlo_norm_rows", ("x", "norm"), outputs, scalars, ceil_div(t, tile))
    return Lowering(
        (*lowering.operands, "norm", *last), (norm, *with_input(lowering.launches, "x", "normed")), lowering.results
    )


def _gate_up(attributes: Mapping[str, Any], types: OperandTypes, fast: bool) -> Lowering | None:
    """Few tokens: all at once. Many: gather the rows, both matmuls, the activation. fast: 8-bit activations."""
    (t, columns), (pairs,), experts = types[0][0], types[1][0], types[3][0][0] - 1
    format, biased, k = attributes["format"], attributes["biased"], attributes["k"]
    n = types[5][0][0] // experts
    names = part_names(format, n, columns)
    gate_kernel, up_kernel = (stored_kernel(format, names, types[5 + i * len(names) :], experts) for i in range(2))
    if gate_kernel is None or up_kernel is None:
        return None
    gate, up = (tuple(f"{which}.{name}" for name in names) for which in ("gate", "up"))
    biases = ("gate_bias", "up_bias") if biased else ()
    operands = ("x", "expert", "order", "offsets", "tiles", *gate, *up, *biases)
    sizes = {"t": t, "experts": experts, "n": n, "columns": columns}
    if few := gate_up_few(attributes, (gate_kernel, up_kernel), names, **sizes, fast=fast):
        return Lowering(operands, few, ("h",))
    tile = _row_tile(pairs)
    gathered = (Output("sorted", (pairs, columns), "f32"),)
    weighed = bool(attributes.get("weighed"))
    scalars = (k, columns, experts, int(weighed), tile)
    inputs = ("x", "order", "offsets", "weights" if weighed else "x")
    launches: tuple[Launch, ...] = (Launch("strixhlo_moe_gather", inputs, gathered, scalars, ceil_div(pairs, tile)),)
    shape = {"pairs": pairs, "experts": experts, "n": n, "k": columns}
    launches += tuple(
        _rows(kernel, ("sorted", "offsets", *parts), out, **shape)
        for kernel, parts, out in ((gate_kernel, gate, "gate"), (up_kernel, up, "up"))
    )
    merged = ("gate", "up", "expert", "offsets", *(biases or ("gate", "up")))
    how = (ACTIVATIONS.index(attributes["activation"]), float_bits(attributes["limit"]), int(biased))
    activated = (Output("h", (pairs, n), "f32"),)
    launches += (Launch("strixhlo_moe_activate", merged, activated, (experts, n, *how, tile), ceil_div(pairs, tile)),)
    if fast and gate_kernel == up_kernel:
        launches = with_8_bit_activations(launches, gate_kernel, pairs, columns)
    return Lowering(operands, launches, ("h",))


def moe_down(attributes: Mapping[str, Any], types: OperandTypes, fast: bool = False) -> Lowering | None:
    """The matmul over sorted rows, then the weighted sum of each token's experts, added to the residual. fast: 8-bit
    activations."""
    (pairs, columns), (t, k), experts = types[0][0], types[1][0], types[5][0][0] - 1
    format, biased, added = attributes["format"], attributes["biased"], attributes.get("added", False)
    n = types[7][0][0] // experts
    names = part_names(format, n, columns)
    kernel = stored_kernel(format, names, types[7:], experts)
    if kernel is None:
        return None
    parts = tuple(f"down.{name}" for name in names)
    bias, residual = ("bias",) * biased, ("residual",) * added
    operands = ("h", "weights", "places", "expert", "order", "offsets", "tiles", *parts, *bias, *residual)
    sizes = {"t": t, "k": k, "experts": experts, "n": n, "columns": columns}
    if few := down_few(attributes, kernel, names, **sizes, fast=fast):
        return Lowering(operands, few, ("y",))
    rows = _rows(kernel, ("h", "offsets", *parts), "down", pairs=pairs, experts=experts, n=n, k=columns)
    tile = _row_tile(t)
    inputs = ("down", "weights", "places", "expert", *(bias or ("down",)), *(residual or ("down",)))
    combined = (Output("y", (t, n), "f32"),)
    scalars = (t, k, experts, n, int(biased), int(added), float_bits(attributes.get("scale", 1.0)), tile)
    combine = Launch("strixhlo_moe_combine", inputs, combined, scalars, ceil_div(t, tile))
    launches: tuple[Launch, ...] = (rows, combine)
    if fast:
        launches = with_8_bit_activations(launches, kernel, pairs, columns)
    return Lowering(operands, launches, ("y",))
