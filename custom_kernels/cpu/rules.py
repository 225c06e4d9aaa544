"""Which custom ops have a CPU kernel, and how a call of one becomes launches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..choices import RULES_ONLY, Choices
from ..ops.cache_types import STORED
from ..ops.formats import FORMATS
from ..ops.launch import DYNAMIC, Dimension, Launch, Lowering, LoweringRule, OperandTypes, Output, float_bits
from ..ops.rope_and_append_launch import pool_kind, rope_and_append_lowering
from .embedding_launches import embedding
from .fused_launches import add_normed_launch, fused_matmul, layer_norm_launch
from .launches import (
    TOKENS_PER_WORKGROUP,
    argmax_launches,
    attention_launches,
    dense_matmul_launches,
    quantized_matmul_launches,
)
from .moe_chosen_launches import moe_chosen_down, moe_chosen_gate_up
from .moe_launches import moe_down, moe_gate_up, moe_route

MOST_HEAD_DIM = 1024  # of rope_and_append: a head is on the stack


def cpu_rules(fast: bool, choices: Choices = RULES_ONLY) -> dict[str, LoweringRule]:
    """Op name -> rule. fast: activations are rounded to 8 bits before a quantized matmul. choices: of a table."""

    def quantized_matmul(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering:
        format, (m, k), n = attributes["format"], types[0][0], types[1][0][0]
        parts = tuple(FORMATS[format].parts(n, k))
        dtypes = {name: dtype for name, (_, dtype) in zip(parts, types[1:], strict=True)}
        return Lowering(("x", *parts), quantized_matmul_launches(format, m, n, k, fast, dtypes, choices), ("y",))

    return {
        "quantized_matmul": quantized_matmul,
        "dense_matmul": partial(_dense_matmul, choices),
        "rope_and_append": rope_and_append,
        "fused_matmul": partial(fused_matmul, fast, choices),
        "attention": _attention,
        "argmax": _argmax,
        "add_normed": _add_normed,
        "embedding": embedding,
        "layer_norm": _layer_norm,
        "add_gated": _add_gated,
        "moe_route": moe_route,
        "moe_gate_up": partial(moe_gate_up, fast=fast),
        "moe_down": partial(moe_down, fast=fast),
        "moe_chosen_gate_up": partial(moe_chosen_gate_up, fast=fast),
        "moe_chosen_down": partial(moe_chosen_down, fast=fast),
    }


def _dense_matmul(choices: Choices, _: Mapping[str, Any], types: OperandTypes) -> Lowering:
    (m, k), ((n, _k), dtype) = types[0][0], types[1]
    return Lowering(("x", "w"), dense_matmul_launches(dtype, m, n, k, choices), ("y",))


def _argmax(_: Mapping[str, Any], types: OperandTypes) -> Lowering:
    return Lowering(("x",), argmax_launches(*types[0][0]), ("y",))


def _add_normed(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering:
    (m, k), a = types[0][0], attributes
    based = bool(a.get("based", False))
    launch = add_normed_launch(a["scaled"], m, k, a["epsilon"], a["offset"], based)
    operands = ("base", "x", "sum norm", *("factor",) * a["scaled"], *("base norm",) * based)
    return Lowering(operands, (launch,), ("sum",))


def _layer_norm(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering:
    a, (m, k) = attributes, types[0][0]
    launch = layer_norm_launch(a["biased"], m, k, a["epsilon"], a["offset"])
    return Lowering(("x", "norm", "norm bias")[: len(types)], (launch,), ("h",))


def _add_gated(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering:
    a, (m, n), columns = attributes, types[0][0], types[2][0][1]
    tile, y = -(-m // TOKENS_PER_WORKGROUP), (Output("y", (m, n), "f32"),)
    scalars = (m, n, columns, a["column"], float_bits(a["scale"]), tile)
    launch = Launch("strixhlo_add_gated", ("base", "x", "logits"), y, scalars, -(-m // tile))
    return Lowering(("base", "x", "logits"), (launch,), ("y",))


def rope_and_append(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    """Heads of up to 1024 values; None for larger ones. A workgroup for each token, of up to 16."""
    kind, tokens = pool_kind(types), types[3][0][0]
    if attributes["head_dim"] > MOST_HEAD_DIM or kind is None:
        return None
    tile = -(-tokens // TOKENS_PER_WORKGROUP)
    symbol = f"strixhlo_rope_and_append_{kind}kv"
    return rope_and_append_lowering(attributes, types, symbol, -(-tokens // tile), further=(tile,))


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
