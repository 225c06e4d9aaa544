"""The launches of a mixture of experts for few tokens that choose their experts: compile/fuse_experts.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..ops.launch import Lowering, OperandTypes, Output, float_bits
from ..ops.moe_matmul import part_names
from .moe_few_launches import down_few, gate_up_few
from .moe_launches import MOST_EXPERTS, routing_scalars, stored_kernel

MOST_CHOSEN = 16  # experts of a token


def moe_chosen_gate_up(attributes: Mapping[str, Any], types: OperandTypes, fast: bool = False) -> Lowering | None:
    """`moe_route` and `moe_gate_up` in one launch; None where that takes more. attributes: of both, `corrected` where
    the former has a number for each expert. Operands: of `moe_route`, then of `moe_gate_up` without the routing.
    Results: h, and what `moe_down` takes in place of the routing: int32 [3, pairs], experts and pairs of sorted rows,
    and the bits of each pair's weight."""
    a, corrected, experts, k = attributes, attributes["corrected"], attributes["experts"], attributes["k"]
    ((t, logit_columns), _), (_, columns) = types[0], types[2 + corrected][0]
    own, names = types[3 + corrected :], part_names(a["format"], 1, columns)
    gate, up = (stored_kernel(a["format"], names, own[i * len(names) :], experts) for i in range(2))
    if gate is None or up is None or experts > MOST_EXPERTS or k > min(experts, MOST_CHOSEN):
        return None
    sizes = {"t": t, "experts": experts, "n": own[0][0][0] // experts, "columns": columns}
    few = gate_up_few(a, (gate, up), names, **sizes, fast=fast)
    if not few:
        return None
    (launch,), correction = few, "correction" if corrected else "logits"
    x, norm, _, _, _, *weights = launch.inputs
    count = 10  # scalars before those of the weights
    scalars = (*launch.scalars[:count], *routing_scalars(a, corrected, logit_columns), *launch.scalars[count:])
    launch = replace(
        launch,
        symbol="strixhlo_moe_gate_up_chosen",
        inputs=("logits", "positions", x, norm, correction, *weights),
        outputs=(*launch.outputs, Output("chosen", (3, t * k), "i32")),
        scalars=scalars,
    )
    parts = tuple(f"{which}.{name}" for which in ("gate", "up") for name in names)
    biases, normed = ("gate_bias", "up_bias") * bool(a["biased"]), ("norm",) * bool(a.get("normed"))
    operands = ("logits", "positions", *("correction",) * corrected, "x", *parts, *biases, *normed)
    return Lowering(operands, (launch,), ("h", "chosen"))


def moe_chosen_down(attributes: Mapping[str, Any], types: OperandTypes, fast: bool = False) -> Lowering | None:
    """`moe_down` after `moe_chosen_gate_up`: h, what that has chosen, and the operands after the routing; attributes:
    the number of experts too. Where it is `gated`, it does the `add_gated` whose result would be the residual: base, x
    and logits are the last operands in its place, shared_scale and column its attributes."""
    a, (pairs, columns), experts, k = attributes, types[0][0], attributes["experts"], attributes["k"]
    names, gated = part_names(a["format"], 1, columns), bool(attributes.get("gated", False))
    kernel = stored_kernel(a["format"], names, types[2:], experts)
    if kernel is None:
        return None
    sizes = {"t": pairs // k, "k": k, "experts": experts, "n": types[2][0][0] // experts, "columns": columns}
    few = down_few(a, kernel, names, **sizes, fast=fast)
    if not few:
        return None
    (launch,) = few
    _, _, _, _, residual, *weights = launch.inputs
    count = 7
    shared = (types[-1][0][1], a["column"], float_bits(a["shared_scale"])) if gated else (0, 0, 0)
    launch = replace(
        launch,
        symbol="strixhlo_moe_down_chosen",
        inputs=("h", "chosen", residual, *(("shared", "logits") if gated else ("h", "h")), *weights),
        scalars=(*launch.scalars[:count], *shared, *launch.scalars[count:]),
    )
    bias, added = ("bias",) * bool(a["biased"]), ("residual",) * bool(a.get("added", False))
    down = tuple(f"down.{name}" for name in names)
    operands = ("h", "chosen", *down, *bias, *added, *("shared", "logits") * gated)
    return Lowering(operands, (launch,), ("y",))
