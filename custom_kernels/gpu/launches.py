"""How each custom op becomes launches of the GPU kernels: symbols, operands, scalars, workgroups and their size.

The constants are chosen for gfx1151 (40 CUs of two SIMDs, about 212 GB/s) by reasoning, not by measurement.
"""

from __future__ import annotations

import struct

from ..ops.cache_types import ARRAY, BYTES
from ..ops.formats import WeightFormat
from ..ops.formats_gguf import RUN
from ..ops.launch import DYNAMIC, Dimension, Launch, Output
from .kernels import GEMM_ROWS, GEMV_ROWS, GEMV_WEIGHT_ROWS, HEAD_DIMS, weight_name, weight_rows

WAVE = 32
GEMV_THREADS, GEMV_WAVES = 128, 4
GEMM_THREADS, GEMM_TILE_N = 128, 64
APPEND_THREADS = 256
ARGMAX_THREADS = 256
ATTENTION_THREADS, ATTENTION_QUERIES = 128, 8
WAVES_WANTED = 320  # four for each SIMD, so that there are enough loads under way
WORKGROUPS_WANTED = 80
SPLIT_BYTES = 512 * 1024  # of keys and values for one workgroup: below, a second launch costs more than it saves


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def gemv_team(n: int, runs: int) -> tuple[int, int]:
    """(lanes, waves) that share a weight row: as few as keep enough waves busy, for few lanes make few requests for x.

    Waves of a workgroup come before lanes of a wave, and none are added that would have no run to read. It depends on
    the weight alone, so that every number of rows of x is summed in the same order.
    """
    lanes, waves = 4, 1
    while _ceil_div(n, WAVE // lanes * GEMV_WEIGHT_ROWS) * waves < WAVES_WANTED and lanes * waves < runs:
        if waves < GEMV_WAVES:
            waves *= 2
        elif lanes < WAVE:
            lanes *= 2
        else:
            break
    return lanes, waves


def _matmul(name: str, inputs: tuple[str, ...], m: int, n: int, k: int, run: int) -> tuple[Launch, ...]:
    outputs = (Output("y", (m, n), "f32"),)
    if m <= GEMV_ROWS[-1]:
        rows = next(r for r in GEMV_ROWS if m <= r)
        lanes, waves = gemv_team(n, k // run)
        per_workgroup = GEMV_WAVES // waves * (WAVE // lanes) * weight_rows(name, rows)
        symbol = f"strixhlo_gemv_{name}_m{rows}"
        return (Launch(symbol, inputs, outputs, (m, n, k, lanes, waves), _ceil_div(n, per_workgroup), GEMV_THREADS),)
    rows = next((r for r in GEMM_ROWS if m <= r), GEMM_ROWS[-1])
    workgroups = _ceil_div(m, rows) * _ceil_div(n, GEMM_TILE_N)
    return (Launch(f"strixhlo_gemm_{name}_m{rows}", inputs, outputs, (m, n, k), workgroups, GEMM_THREADS),)


def quantized_matmul_launches(
    fmt: WeightFormat, m: int, n: int, k: int, dtypes: tuple[str, ...] = ("f32", "f32")
) -> tuple[Launch, ...]:
    """x float32 [m, k] times a quantized weight [n, k] -> y float32 [m, n].

    dtypes: of an affine format's scale and bias (f32, f16, bf16).
    """
    return _matmul(weight_name(fmt, dtypes), ("x", *fmt.parts(n, k)), m, n, k, RUN)


def dense_matmul_launches(dtype: str, m: int, n: int, k: int) -> tuple[Launch, ...] | None:
    """x float32 [m, k] times a weight w [n, k], "f32", "f16" or "bf16", k a multiple of 8 (else None) -> y [m, n]."""
    return None if k % 8 else _matmul(dtype, ("x", "w"), m, n, k, 8)


def argmax_launches(rows: int, n: int) -> tuple[Launch, ...]:
    """x float32 [rows, n] -> y int32 [rows], one workgroup a row."""
    return (Launch("strixhlo_argmax", ("x",), (Output("y", (rows,), "i32"),), (n,), rows, ARGMAX_THREADS),)


def kv_append_launches(
    dtype: str, *, layers: int, layer: int, pool_rows: int | Dimension, width: int, tokens: int
) -> tuple[Launch, ...]:
    """k, v float32 [tokens, width] into rows of k_pool, v_pool [layers, pool_rows, width]; dtype: fp8, f16 or f32."""
    shape = (layers, pool_rows if isinstance(pool_rows, int) else DYNAMIC, width)
    return (
        Launch(
            f"strixhlo_kv_append_{dtype}",
            ("k_pool", "v_pool", "k", "v", "rows"),
            tuple(Output(f"{name}_out", shape, ARRAY[dtype], updates=name) for name in ("k_pool", "v_pool")),
            (layer, pool_rows, width, tokens),
            _ceil_div(tokens * width, APPEND_THREADS),
            APPEND_THREADS,
        ),
    )


def _float_bits(value: float) -> int:
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


def attention_splits(workgroups: int, kv_heads: int, context: int, row_bytes: int) -> int:
    """Into how many parts the positions of a sequence go: 1 unless few workgroups would read much each."""
    by_bytes = context * row_bytes // kv_heads // SPLIT_BYTES
    return max(1, min(by_bytes, WORKGROUPS_WANTED // workgroups, 16))


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
    splits: int | None = None,
) -> tuple[Launch, ...] | None:
    """q float32 [tokens, q_heads, head_dim] over the pools (dtype "fp8", "f16" or "f32") -> y of the same shape.

    head_dim: a multiple of 8, at most 256, else None. splits: None means that `attention_splits` chooses.
    """
    if head_dim % 8 or head_dim > HEAD_DIMS[-1]:
        return None
    capacity = next(d for d in HEAD_DIMS if head_dim <= d)
    queries = tokens // sequences * (q_heads // kv_heads)
    workgroups = sequences * kv_heads * _ceil_div(queries, ATTENTION_QUERIES)
    if splits is None:
        context = min(window, blocks_per_sequence * block_size) if window else blocks_per_sequence * block_size
        row_bytes = 2 * kv_heads * head_dim * BYTES[dtype]
        splits = attention_splits(workgroups, kv_heads, context, row_bytes)
    inputs = ("q", "k_pool", "v_pool", "block_table", "positions")
    shape = (layer, tokens, sequences, q_heads, kv_heads, head_dim, pool_rows, blocks_per_sequence, block_size, window)
    scalars = (*shape, _float_bits(scale), _float_bits(softcap))
    result = Output("y", (tokens, q_heads, head_dim), "f32")
    if splits == 1:
        symbol = f"strixhlo_attention_{dtype}_d{capacity}"
        return (Launch(symbol, inputs, (result,), scalars, workgroups, ATTENTION_THREADS),)
    parts = Output("parts", (tokens, q_heads, splits, head_dim), "f32")
    peaks = Output("peaks", (tokens, q_heads, splits, 2), "f32")
    symbol = f"strixhlo_attention_split_{dtype}_d{capacity}"
    return (
        Launch(symbol, inputs, (parts, peaks), (*scalars, splits), workgroups * splits, ATTENTION_THREADS),
        Launch(
            "strixhlo_attention_combine",
            ("parts", "peaks"),
            (result,),
            (head_dim, splits),
            tokens * q_heads,
            ATTENTION_THREADS,
        ),
    )
