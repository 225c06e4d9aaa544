"""Which custom ops have a GPU kernel, and how a call of one becomes launches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..ops.cache_types import STORED
from ..ops.formats import FORMATS
from ..ops.launch import DYNAMIC, Dimension, Launch, Lowering, LoweringRule, OperandTypes
from ..ops.rope_and_append_launch import pool_kind, rope_and_append_lowering
from .attention_launches import attention_launches
from .elements import with_elements
from .embedding_launches import embedding
from .fused_launches import add_normed_launch, fused_matmul, layer_norm_launch
from .kernels import DENSE, POOLS
from .launches import WAVE, Chip, argmax_launches, dense_matmul_launches, quantized_matmul_launches
from .moe_launches import moe_route
from .moe_one_launch import moe_one
from .moe_pairs_launches import add_gated, moe_chosen_down, moe_chosen_gate_up, moe_down, moe_gate_up

APPEND_THREADS = 256


def gpu_rules(chip: Chip) -> dict[str, LoweringRule]:
    """Op name -> rule. A rule gives None for a shape or dtype without a kernel."""
    return {
        "quantized_matmul": partial(_quantized_matmul, chip),
        "dense_matmul": partial(_dense_matmul, chip),
        "rope_and_append": rope_and_append,
        "fused_matmul": partial(fused_matmul, chip),
        "attention": partial(_attention, chip),
        "argmax": _argmax,
        "add_normed": _add_normed,
        "add_gated": add_gated,
        "layer_norm": _layer_norm,
        "embedding": embedding,
        "moe_route": moe_route,
        "moe_gate_up": partial(moe_gate_up, chip),
        "moe_down": partial(moe_down, chip),
        **_fused_experts(chip),
    }


def _fused_experts(chip: Chip) -> dict[str, LoweringRule]:
    """What several calls of a mixture of experts become: compile/fuse_experts.py."""
    one: dict[str, LoweringRule] = {"moe_one": partial(moe_one, chip)} if chip.multiprocessors else {}
    two = {"moe_chosen_gate_up": partial(moe_chosen_gate_up, chip), "moe_chosen_down": partial(moe_chosen_down, chip)}
    return one | two


def _lowering(operands: tuple[str, ...], launches: tuple[Launch, ...] | None, *results: str) -> Lowering | None:
    return None if launches is None else Lowering(operands, launches, results)


def _quantized_matmul(chip: Chip, attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    fmt = FORMATS[attributes["format"]]
    (m, k), n = types[0][0], types[1][0][0]
    dtypes = tuple(dtype for _, dtype in types[2:])
    return _lowering(("x", *fmt.parts(n, k)), quantized_matmul_launches(fmt, m, n, k, dtypes, chip, types[0][1]), "y")


def _dense_matmul(chip: Chip, _: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    (m, k), ((n, _k), dtype) = types[0][0], types[1]
    launches = dense_matmul_launches(dtype, m, n, k, chip, types[0][1]) if dtype in DENSE else None
    return _lowering(("x", "w"), launches, "y")


def _argmax(_: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    return _lowering(("x",), argmax_launches(*types[0][0]), "y")


def _add_normed(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    (m, k), dtype = types[0]
    a, based = attributes, bool(attributes.get("based", False))
    launch = add_normed_launch(a["scaled"], m, k, dtype, a["epsilon"], a["offset"], based)
    operands = ("base", "x", "sum norm", *("factor",) * a["scaled"], *("base norm",) * based)
    return None if k % 4 else Lowering(operands, (launch,), ("sum",))


def _layer_norm(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    (m, k), dtype = types[0]
    launch = layer_norm_launch(attributes["biased"], m, k, dtype, attributes["epsilon"], attributes["offset"])
    return None if k % 4 else Lowering(("x", "norm", "norm bias")[: len(types)], (launch,), ("h",))


def rope_and_append(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    """A wave for each head of q, k and v of each token."""
    kind = pool_kind(types)
    if kind is None:
        return None
    waves = types[3][0][0] * (attributes["heads"] + 2 * attributes["kv_heads"])
    workgroups = -(-waves * WAVE // APPEND_THREADS)
    symbol = with_elements(f"strixhlo_rope_and_append_{kind}", types[4][1])
    return rope_and_append_lowering(attributes, types, symbol, workgroups, APPEND_THREADS)


def _attention(chip: Chip, attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    tokens, q_heads, head_dim = types[0][0]
    (_layers, rows, _width), dtype = types[1]
    pool_rows = Dimension("k_pool", 1) if rows == DYNAMIC else rows
    if STORED.get(dtype) not in POOLS:
        return None
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
        x=types[0][1],
        chip=chip,
        **attributes,
    )
    return _lowering(operands, launches, "y")
