"""What to launch for attention on an NVIDIA GPU: shapes of models, and small cases with their results."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn

from strixhlo.custom_kernels.gpu.attention_launches import attention_launches
from strixhlo.custom_kernels.gpu.launches import H200
from strixhlo.custom_kernels.ops.attention import reference

BLOCK_SIZE = 16
TYPES = {"f32": np.float32, "f16": np.float16, "bf16": bfloat16, "fp8": float8_e4m3fn}


@dataclass(frozen=True)
class Shape:
    """tokens of each sequence, which ends at its one of `lengths`; layers: so many that no cache helps."""

    name: str
    pool: str
    x: str
    q_heads: int
    kv_heads: int
    head_dim: int
    tokens: int
    lengths: tuple[int, ...]
    layers: int = 1
    value_dim: int = 0
    splits: int | None = None
    blocks: int | None = None


LLAMA = {"q_heads": 32, "kv_heads": 8, "head_dim": 128}
LATENT = {"kv_heads": 1, "head_dim": 576, "value_dim": 512}
RAGGED = (32768, 1000, 5000, 20000, 128, 30000, 12000, 2500)


def decoding() -> list[Shape]:
    """One token of each sequence."""
    shapes = []
    for pool, x in (("f16", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("fp8", "f32"), ("fp8", "f16")):
        for name, lengths, layers in (
            ("1 x 32K", (32768,), 8),
            ("8 x 32K", (32768,) * 8, 1),
            ("8, ragged", RAGGED, 2),
            ("1 x 4K", (4096,), 32),
        ):
            shapes.append(Shape(name, pool, x, tokens=1, lengths=lengths, layers=layers, **LLAMA))
    shapes += [
        Shape(
            f"latent, {heads} heads, 32K", "f16", "f16", q_heads=heads, tokens=1, lengths=(32768,), layers=8, **LATENT
        )
        for heads in (16, 128)
    ]
    for pool in ("f16", "fp8"):  # into other numbers of parts than the rule's 33
        for splits in (16, 49):
            for name, lengths, layers in (
                ("1 x 32K", (32768,), 8),
                ("8 x 32K", (32768,) * 8, 1),
                ("8, ragged", RAGGED, 2),
            ):
                named = f"{name}, {splits} parts"
                shapes.append(Shape(named, pool, "f16", 32, 8, 128, 1, lengths, layers, splits=splits))
    return shapes


def chunks() -> list[Shape]:
    """A chunk of a prompt at the end of a context."""
    return [
        Shape(f"{tokens} at {length}", pool, x, tokens=tokens, lengths=(length,), layers=2, **LLAMA)
        for pool, x in (("f16", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("fp8", "f16"))
        for tokens in (128, 512)
        for length in (4096, 32768)
    ]


def plan_of(shape: Shape) -> dict[str, Any]:
    """The launches of one layer, whose number is the first scalar of the first one, and their buffers."""
    longest, sequences = max(shape.lengths), len(shape.lengths)
    blocks = -(-longest // BLOCK_SIZE)
    rows = sum(-(-n // BLOCK_SIZE) for n in shape.lengths) * BLOCK_SIZE
    launches = attention_launches(
        shape.pool,
        layer=0,
        tokens=shape.tokens * sequences,
        sequences=sequences,
        q_heads=shape.q_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        pool_rows=rows,
        blocks_per_sequence=blocks,
        block_size=BLOCK_SIZE,
        scale=shape.head_dim**-0.5,
        value_dim=shape.value_dim,
        splits=shape.splits,
        x=shape.x,
        chip=replace(H200, attention_blocks=shape.blocks or H200.attention_blocks),
    )
    if launches is None:
        raise RuntimeError(f"{shape.name}: no kernel")
    steps = [
        {
            "symbol": one.symbol,
            "workgroups": one.workgroups,
            "threads": one.threads,
            "local": one.local_memory,
            "scalars": one.scalars,
            "buffers": [*one.inputs, *(o.name for o in one.outputs)],
        }
        for one in launches
    ]
    outputs = {o.name: (o.shape, o.dtype) for one in launches for o in one.outputs}
    return asdict(shape) | {"rows": rows, "blocks_of_sequence": blocks, "steps": steps, "outputs": outputs}


def small_case(shape: Shape, file: Path) -> dict[str, Any]:
    """The same kernels over a short context, with what the reference makes of it."""
    lengths = tuple(170 - 37 * i for i in range(min(len(shape.lengths), 3)))
    tokens = min(shape.tokens, 20)
    small = replace(shape, lengths=lengths, tokens=tokens, layers=1, splits=3 if len(lengths) > 1 else shape.splits)
    plan = plan_of(small)
    rng = np.random.default_rng(len(shape.name))
    width = small.kv_heads * small.head_dim
    pools = [rng.standard_normal((1, plan["rows"], width)).astype(np.float32).astype(TYPES[small.pool]) for _ in "kv"]
    if small.value_dim:
        pools[1] = pools[0]
    q = rng.standard_normal((tokens * len(lengths), small.q_heads, small.head_dim)).astype(np.float32)
    q = q.astype(TYPES[small.x])
    table, positions = table_of(plan), positions_of(plan)
    stored = [pool.view(np.int8) if small.pool == "fp8" else pool for pool in pools]
    attributes = {"layer": 0, "kv_heads": small.kv_heads, "block_size": BLOCK_SIZE, "window": 0, "softcap": 0.0}
    attributes |= {"scale": small.head_dim**-0.5, "value_dim": small.value_dim}
    want = reference(q.astype(np.float32), *stored, table, positions, **attributes)
    operands = {"q": q, "k_pool": pools[0], "v_pool": pools[1], "block_table": table, "positions": positions}
    raw = {n: np.frombuffer(np.ascontiguousarray(a).tobytes(), np.uint8) for n, a in operands.items()}
    np.savez(file, **raw, want=np.asarray(want))
    return plan | {"file": file.name}


def table_of(plan: dict[str, Any]) -> np.ndarray:
    """int32 [sequences, blocks]: the blocks of a sequence in a shuffled order, and after them those of others."""
    counts = [-(-n // BLOCK_SIZE) for n in plan["lengths"]]
    order = np.random.default_rng(0).permutation(sum(counts)).astype(np.int32)
    table = np.zeros((len(counts), plan["blocks_of_sequence"]), np.int32)
    for s, count in enumerate(counts):
        table[s, :count] = order[sum(counts[:s]) : sum(counts[:s]) + count]
    return table


def positions_of(plan: dict[str, Any]) -> np.ndarray:
    """int32 [tokens of all sequences]: the last ones of each."""
    tokens = plan["tokens"]
    return np.concatenate([np.arange(n - tokens, n, dtype=np.int32) for n in plan["lengths"]])
