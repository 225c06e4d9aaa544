"""How each custom op becomes launches of the CPU kernels: symbols, operands, scalars and how many workgroups."""

from __future__ import annotations

from collections.abc import Mapping

from ..choices import RULES_ONLY, Choices, Question
from ..ops.formats import FORMATS
from ..ops.formats_gguf import RUN
from ..ops.launch import Dimension, Launch, Output, ceil_div, float_bits
from .weight_kernels import weight_kernel

ROW_ALIGN = 16  # weight rows of one matrix tile in the widest kernel
WORKGROUPS = 64  # aimed at per matmul: a few for each of 16 threads
SHARES = (2, 4, 8, 16, 32, 64, 128)  # workgroups that are tried when they are measured
ATTENTION_ROWS = 16  # query rows that share their loads of keys and values
TOKENS_PER_WORKGROUP = 16  # of rope_and_append and quantize_rows


def rows_per_workgroup(n: int, workgroups: int = WORKGROUPS) -> int:
    """Output columns (weight rows) that one workgroup computes, of `n`: a multiple of 16."""
    return ROW_ALIGN * max(1, ceil_div(n, ROW_ALIGN * workgroups))


def shares(choices: Choices, kernel: str, m: int, columns: tuple[int, ...], k: int, rule: int) -> int:
    """How many workgroups a matmul is aimed at; it changes no result."""
    options = [{"workgroups": n} for n in sorted({*SHARES, rule})]
    question = Question("workgroups", kernel, m, (*columns, k))
    return int(choices.pick(question, {"workgroups": rule}, options)["workgroups"])


def _matmul(
    choices: Choices,
    symbol: str,
    inputs: tuple[str, ...],
    shape: tuple[int, int, int],
    scalars: tuple[int, ...] = (),
) -> Launch:
    m, n, k = shape
    tile_n = rows_per_workgroup(n, shares(choices, symbol.removeprefix("strixhlo_"), m, (n,), k, WORKGROUPS))
    return Launch(symbol, inputs, (Output("y", (m, n), "f32"),), (m, n, k, tile_n, *scalars), ceil_div(n, tile_n))


def quantized_matmul_launches(
    format: str, m: int, n: int, k: int, fast: bool, dtypes: Mapping[str, str], choices: Choices = RULES_ONLY
) -> tuple[Launch, ...]:
    """x float32 [m, k] times a quantized weight [n, k] -> y float32 [m, n].

    fast: the activations are rounded to 8 bits per 32 columns first (a launch of its own), and the dot products are
    integer, if the format's codes are integers; otherwise everything is float32. dtypes: of the weight's parts.
    """
    parts, kernel = tuple(FORMATS[format].parts(n, k)), weight_kernel(format, dtypes)
    if not (fast and kernel.integer):
        return (_matmul(choices, f"strixhlo_qmm_{kernel.name}_f32", ("x", *parts), (m, n, k), kernel.scalars),)
    outputs = (
        Output("xq", (m, k), "i8"),
        Output("xs", (m, k // RUN), "f32"),
        Output("xsum", (m, k // 16), "i32"),
    )
    row_tile = 1 if m <= TOKENS_PER_WORKGROUP else ceil_div(m, TOKENS_PER_WORKGROUP)
    quantize = Launch("strixhlo_quantize_rows", ("x",), outputs, (m, k, row_tile), ceil_div(m, row_tile))
    symbol = f"strixhlo_qmm_{kernel.name}_int8"
    return quantize, _matmul(choices, symbol, ("xq", "xs", "xsum", *parts), (m, n, k), kernel.scalars)


def dense_matmul_launches(dtype: str, m: int, n: int, k: int, choices: Choices = RULES_ONLY) -> tuple[Launch, ...]:
    """x float32 [m, k] times a weight w [n, k] of dtype "f32", "f16" or "bf16" -> y float32 [m, n]."""
    return (_matmul(choices, f"strixhlo_mm_{dtype}", ("x", "w"), (m, n, k)),)


def argmax_launches(rows: int, n: int) -> tuple[Launch, ...]:
    """x float32 [rows, n] -> y int32 [rows], one workgroup a row."""
    return (Launch("strixhlo_argmax", ("x",), (Output("y", (rows,), "i32"),), (n,), rows),)


def attention_launches(
    dtype: str,
    *,
    layer: int,
    tokens: int,
    sequences: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    pool_rows: int | Dimension,
    blocks_per_sequence: int,
    block_size: int,
    window: int = 0,
    scale: float,
    softcap: float = 0.0,
    value_dim: int = 0,
    sinks: bool = False,
) -> tuple[Launch, ...]:
    """q float32 [tokens, q_heads, head_dim] over the pools (dtype "fp8", "f16", "bf16" or "f32") -> y [tokens, q_heads,
    value_dim or head_dim].

    One workgroup computes one query head of up to 16 rows of one sequence. sinks: an input of that name, float32
    [q_heads]; without, nothing is read of what stands in its place.
    """
    per_sequence = tokens // sequences
    row_tile = min(ATTENTION_ROWS, per_sequence)
    value_dim = value_dim or head_dim
    heads = (layer, tokens, sequences, q_heads, kv_heads, head_dim, value_dim)
    shape = (*heads, pool_rows, blocks_per_sequence, block_size)
    return (
        Launch(
            f"strixhlo_attention_{dtype}kv",
            ("q", "k_pool", "v_pool", "block_table", "positions", "sinks" if sinks else "q"),
            (Output("y", (tokens, q_heads, value_dim), "f32"),),
            (*shape, window, float_bits(scale), float_bits(softcap), int(sinks), row_tile),
            sequences * ceil_div(per_sequence, row_tile) * q_heads,
        ),
    )
