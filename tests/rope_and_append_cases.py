"""Calls of `strixhlo.rope_and_append`, and what its reference makes of them, for the tests of its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_dtypes import bfloat16

from strixhlo.custom_kernels.ops import rope_and_append as op
from strixhlo.custom_kernels.ops.cache_types import ARRAY, pool_elements, pool_values
from strixhlo.export.layers.rope import inverse_frequencies, rope_table
from strixhlo.export.layers.rope_scaling import RopeScaling

ARRAYS = {"i8": np.int8, "f16": np.float16, "bf16": bfloat16, "f32": np.float32}
LAYERS, LAYER, CONTEXT = 2, 1, 50
ULP = {"fp8": 2.0**-3, "f16": 2.0**-10, "bf16": 2.0**-7, "f32": 1e-5}  # of what rounding may move by one
SMALLEST = {"fp8": 2.0**-9, "f16": 2.0**-24, "bf16": 1e-38, "f32": 1e-6}
_pool_elements, _pool_values = jax.jit(pool_elements, static_argnums=1), jax.jit(pool_values)


@dataclass(frozen=True)
class Case:
    """positions: of the rows of each sequence. dims: values of a head that are rotated. per_head: each head has its own
    norm weight. pool_width: 0 for that of the heads."""

    positions: tuple[tuple[int, ...], ...]
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 16
    dims: int = 16
    fused: bool = False
    interleaved: bool = False
    norm: str = ""
    per_head: bool = False
    offset: float = 0.0
    norm_values: bool = False
    query_scaled: bool = False
    pool_width: int = 0
    block_size: int = 8


CASES = {
    "decode": Case(((7,), (-1,), (0,), (31,)), heads=9, kv_heads=3, head_dim=64, dims=64),
    "one row, interleaved": Case(((40,),), interleaved=True, head_dim=24, dims=24),
    "prefill, fused, partial, interleaved": Case(
        (tuple(range(3, 36)) + (-1,) * 4,), fused=True, interleaved=True, kv_heads=2, heads=4, head_dim=32, dims=12
    ),
    "norm": Case(((6, 7, 8), (15, 16, -1)), norm="rms", heads=4, kv_heads=2, head_dim=80, dims=80),
    "norm with an offset, of values too, wide": Case(
        ((9,), (33,)), norm="rms", offset=1.0, norm_values=True, head_dim=40, dims=20, pool_width=20
    ),
    "layer norm of each head": Case(
        (tuple(range(20)),), norm="layer", per_head=True, interleaved=True, heads=4, kv_heads=2, head_dim=12, dims=12
    ),
    "norm of all heads": Case(
        ((6, 7, 8), (15, 16, -1)), norm="whole", offset=1.0, fused=True, heads=4, kv_heads=2, head_dim=20, dims=20
    ),
    "no positions, scaled queries": Case(((5, 30),), dims=0, query_scaled=True, head_dim=10),
    "odd sizes, past every table": Case(
        ((0, 39), (40, 46), (60, 2**31 - 1)), head_dim=15, dims=6, query_scaled=True, norm="rms", fused=True
    ),
}


class Call:
    """The operands of a case by name, poison in the pools' rows and in the operands' rows of padding."""

    def __init__(self, case: Case, dtype: str) -> None:
        self.case, self.dtype = case, dtype
        rng = np.random.default_rng([case.heads, case.head_dim, case.dims])
        sequences, width = len(case.positions), case.kv_heads * case.head_dim
        positions = np.array(case.positions, np.int32).reshape(-1)
        blocks = 5  # of a sequence: 40 positions
        pool_blocks = sequences * blocks + 1
        rows = pool_blocks * case.block_size - 3  # the last block is cut short
        table = rng.permutation(pool_blocks)[: sequences * blocks].reshape(sequences, blocks).astype(np.int32)
        if sequences > 2:
            table[2] = [-1, -(2**31), pool_blocks, 2**28, 2**31 - 1]  # no blocks of the pool
        if sequences > 3:
            table[3, 3] = pool_blocks - 1  # position 31 is the last row of a block that the pool does not have whole
        narrow = case.pool_width or width
        shape = (LAYERS * width // narrow, rows, narrow)
        parts = {name: (len(positions), n * case.head_dim) for name, n in zip("qkv", self.counts, strict=True)}
        values = {name: (rng.standard_normal(s) * 3).astype(np.float32) for name, s in parts.items()}
        for x in values.values():
            x[positions < 0] = np.nan
        if len(positions) > 4:
            values["q"][0, 1], values["k"][1, 2], values["v"][3, 0] = np.nan, np.inf, -np.inf
        operands: dict[str, np.ndarray] = {
            "k_pool": self._pool(rng, shape),
            "v_pool": self._pool(rng, shape),
            "block_table": table,
            "positions": positions,
        }
        operands |= {"qkv": np.concatenate(list(values.values()), axis=1)} if case.fused else values
        if case.dims:
            operands["table"] = rope_table(inverse_frequencies(case.dims, 100.0, RopeScaling()), CONTEXT, 1.25)
        if case.norm:
            for name, n in zip("qk", self.counts, strict=False):
                size = (n, case.head_dim) if case.per_head else (case.head_dim * (n if case.norm == "whole" else 1),)
                operands[f"{name}_weight"] = rng.standard_normal(size).astype(np.float32)
        if case.query_scaled:
            operands["query_scale"] = rng.uniform(1, 2, CONTEXT).astype(np.float32)
        self.operands = operands

    @property
    def counts(self) -> tuple[int, int, int]:
        """Heads of q, k and v."""
        return self.case.heads, self.case.kv_heads, self.case.kv_heads

    @property
    def attributes(self) -> dict[str, Any]:
        """The call's."""
        case = self.case
        return {
            "layer": LAYER,
            "block_size": case.block_size,
            "heads": case.heads,
            "kv_heads": case.kv_heads,
            "head_dim": case.head_dim,
            "fused": case.fused,
            "rotated": case.dims > 0,
            "interleaved": case.interleaved,
            "norm": case.norm,
            "epsilon": 1e-5,
            "offset": case.offset,
            "norm_values": case.norm_values,
            "query_scaled": case.query_scaled,
        }

    @property
    def types(self) -> list[tuple[tuple[int, ...], str]]:
        """Of the operands, as a lowering rule takes them."""
        names = {np.dtype(t): name for name, t in ARRAYS.items()} | {np.dtype(np.int32): "i32"}
        return [(a.shape, names[a.dtype]) for a in self.operands.values()]

    def _pool(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        values = jnp.asarray(rng.standard_normal(shape).astype(np.float32))
        return np.array(_pool_elements(values, jnp.dtype(ARRAYS[ARRAY[self.dtype]])))

    def check(self, q: np.ndarray, k_pool: np.ndarray, v_pool: np.ndarray) -> None:
        """The results are the reference's; rows that no token wrote are what they were, bit for bit."""
        operands = {name: jnp.asarray(a) for name, a in self.operands.items()}
        assert tuple(operands) == op.operand_names(self.attributes)
        reference = jax.jit(lambda *o: op.reference(*o, **self.attributes))  # one program, not one for each of its ops
        want_q, *pools = (np.asarray(r) for r in reference(*operands.values()))
        finite = np.isfinite(want_q)
        np.testing.assert_array_equal(np.isfinite(q), finite)
        assert np.linalg.norm(q[finite] - want_q[finite]) <= 1e-6 * np.linalg.norm(want_q[finite])
        assert (q[self.operands["positions"] < 0] == 0).all()
        for name, got, want in zip(("k_pool", "v_pool"), (k_pool, v_pool), pools, strict=True):
            before = self.operands[name]
            bits = f"u{before.itemsize}"
            kept = (want.view(bits) == before.view(bits)).all(axis=-1)  # rows
            np.testing.assert_array_equal(got[kept].view(bits), before[kept].view(bits))
            a, b = (np.asarray(_pool_values(jnp.asarray(p))) for p in (got, want))
            limit = ULP[self.dtype] * np.abs(b) + SMALLEST[self.dtype]
            with np.errstate(invalid="ignore"):  # infinity less infinity
                wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= limit))
            assert not wrong.any(), f"{name}: {wrong.sum()} elements"
            assert (a != b).mean() < 0.01 or self.dtype == "f32", "few elements lie between two numbers of the pool"
