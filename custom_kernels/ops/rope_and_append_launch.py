"""The launch of `strixhlo.rope_and_append`, whose kernels take the same buffers and scalars on every target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .cache_types import STORED
from .launch import DYNAMIC, Dimension, Launch, Lowering, OperandTypes, Output, float_bits
from .rope_and_append import NORMS, operand_names

INPUTS = (
    "k_pool",
    "v_pool",
    "block_table",
    "positions",
    "q",
    "k",
    "v",
    "table",
    "q_weight",
    "k_weight",
    "query_scale",
)
RESULTS = ("q_out", "k_pool_out", "v_pool_out")


def rope_and_append_lowering(
    attributes: Mapping[str, Any],
    types: OperandTypes,
    symbol: str,
    workgroups: int,
    threads: int = 1,
    further: tuple[int, ...] = (),
) -> Lowering:
    """One launch of `symbol`, `further` being the scalars after those that all targets take.

    What the attributes do not ask for is given another operand in its place, which the kernel does not read.
    """
    names, a = operand_names(attributes), attributes
    shapes = {name: shape for name, (shape, _) in zip(names, types, strict=True)}
    (layers, rows, pool_width), dtype = types[0]
    (sequences, blocks), (tokens,) = shapes["block_table"], shapes["positions"]
    width = a["kv_heads"] * a["head_dim"]
    context, _, half = shapes.get("table", (0, 0, 0))
    place = (a["layer"], Dimension("k_pool", 1) if rows == DYNAMIC else rows, tokens, sequences, blocks)
    heads = (a["block_size"], a["heads"], a["kv_heads"], a["head_dim"], int(a["fused"]))
    rotation = (half, context, int(a["interleaved"]))
    stride = a["head_dim"] if len(shapes.get("q_weight", ())) == 2 or a["norm"] == "whole" else 0
    norm = (NORMS.index(a["norm"]), stride, float_bits(a["epsilon"]), float_bits(a["offset"]), int(a["norm_values"]))
    scalars = (*place, *heads, *rotation, *norm, shapes.get("query_scale", (0,))[0])
    pool = (layers * pool_width // width, rows, width)
    outputs = (
        Output("q_out", (tokens, a["heads"] * a["head_dim"]), types[4][1]),
        *(Output(f"{name}_out", pool, dtype, updates=name) for name in ("k_pool", "v_pool")),
    )
    stand_in = "qkv" if a["fused"] else "q"
    inputs = tuple(name if name in names else stand_in for name in INPUTS)
    return Lowering(names, (Launch(symbol, inputs, outputs, (*scalars, *further), workgroups, threads),), RESULTS)


def pool_kind(types: OperandTypes) -> str | None:
    """fp8, f16, bf16 or f32; None for arrays of another dtype."""
    return STORED.get(types[0][1])
