"""Which custom ops have a CPU kernel, and how a call of one becomes launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ops.cache_types import STORED
from ..ops.formats import FORMATS
from ..ops.launch import DYNAMIC, Dimension, Lowering, LoweringRule, OperandTypes
from .launches import (
    argmax_launches,
    attention_launches,
    dense_matmul_launches,
    kv_append_launches,
    quantized_matmul_launches,
)
from .moe_launches import moe_down, moe_gate_up, moe_route


def cpu_rules(fast: bool) -> dict[str, LoweringRule]:
    """Op name -> rule. fast: activations are rounded to 8 bits before a quantized matmul."""

    def quantized_matmul(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering:
        format, (m, k), n = attributes["format"], types[0][0], types[1][0][0]
        parts = tuple(FORMATS[format].parts(n, k))
        dtypes = {name: dtype for name, (_, dtype) in zip(parts, types[1:], strict=True)}
        return Lowering(("x", *parts), quantized_matmul_launches(format, m, n, k, fast, dtypes), ("y",))

    return {
        "quantized_matmul": quantized_matmul,
        "dense_matmul": _dense_matmul,
        "kv_append": _kv_append,
        "attention": _attention,
        "argmax": _argmax,
        "moe_route": moe_route,
        "moe_gate_up": moe_gate_up,
        "moe_down": moe_down,
    }


def _dense_matmul(_: Mapping[str, Any], types: OperandTypes) -> Lowering:
    (m, k), ((n, _k), dtype) = types[0][0], types[1]
    return Lowering(("x", "w"), dense_matmul_launches(dtype, m, n, k), ("y",))


def _argmax(_: Mapping[str, Any], types: OperandTypes) -> Lowering:
    return Lowering(("x",), argmax_launches(*types[0][0]), ("y",))


def _kv_append(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering:
    (layers, rows, pool_width), dtype = types[0]
    tokens, width = types[2][0]
    launches = kv_append_launches(
        STORED[dtype],
        layer=attributes["layer"],
        layers=layers * pool_width // width,
        pool_rows=Dimension("k_pool", 1) if rows == DYNAMIC else rows,
        width=width,
        tokens=tokens,
    )
    return Lowering(("k_pool", "v_pool", "k", "v", "rows"), launches, ("k_pool_out", "v_pool_out"))


def _attention(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering:
    tokens, q_heads, head_dim = types[0][0]
    (_layers, rows, _width), dtype = types[1]
    pool_rows = Dimension("k_pool", 1) if rows == DYNAMIC else rows
    sequences, blocks = types[3][0]
    operands = ("q", "k_pool", "v_pool", "block_table", "positions", "sinks")[: len(types)]
    launches = attention_launches(
        STORED[dtype],
        tokens=tokens,
        sequences=sequences,
        q_heads=q_heads,
        head_dim=head_dim,
        pool_rows=pool_rows,
        blocks_per_sequence=blocks,
        sinks="sinks" in operands,
        **attributes,
    )
    return Lowering(operands, launches, ("y",))
