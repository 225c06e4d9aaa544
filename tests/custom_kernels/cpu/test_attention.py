"""`strixhlo_attention_*` against softmax attention in float64, over a pool whose unused rows are poison."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn

from strixhlo.custom_kernels.cpu.direct import run_launches
from strixhlo.custom_kernels.cpu.launches import attention_launches

DTYPES = {"fp8": float8_e4m3fn, "f16": np.float16, "bf16": bfloat16, "f32": np.float32}
LAYERS, LAYER = 2, 1
SINKS = (0.5, -3.0, 4.0, 80.0, -80.0, 0.0)  # among the scores, far above and far below them


@dataclass(frozen=True)
class Case:
    """positions: one list for each sequence, all of the same length."""

    positions: tuple[tuple[int, ...], ...]
    q_heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    window: int = 0
    softcap: float = 0.0
    spread: float = 1.0  # of the queries: large makes peaked softmaxes
    sinks: tuple[float, ...] = ()  # of each query head
    value_dim: int = 0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.positions))


CASES = {
    "one": Case(((0,),)),
    "decode": Case(((40,), (0,), (131,), (-1,), (15,), (16,))),
    "decode long": Case(((1000,), (517,))),
    "chunk": Case((tuple(range(37, 37 + 30)),)),
    "first chunk, padded": Case(((*range(19), -1, -1, -1, -1, -1),)),
    "all padding": Case(((-1, -1, -1),)),
    "three chunks": Case(((5, 6, 7, -1), (90, 91, 92, 93), (0, -1, -1, -1))),
    "window": Case((tuple(range(60, 80)),), window=24),
    "window of one": Case(((0, 1, 2, 33),), window=1),
    "chunks": Case((tuple(range(30, 50)), tuple(range(5, 25))), window=-20),
    "chunks decode": Case(((300,), (19,), (20,)), window=-20),
    "window decode": Case(((300,), (10,), (31,)), window=32),
    "softcap": Case((tuple(range(20)), tuple(range(50, 70))), softcap=5.0, spread=4.0),
    "peaked": Case(((100, 101), (7, 8)), spread=60.0),
    "no groups": Case(((20, 21, 22),), q_heads=3, kv_heads=3),
    "one kv head, 256": Case((tuple(range(70, 83)),), q_heads=4, kv_heads=1, head_dim=256),
    "one kv head, 256, decode": Case(((70,), (0,)), q_heads=4, kv_heads=1, head_dim=256),
    "odd head": Case((tuple(range(9)), tuple(range(30, 39))), head_dim=45, block_size=7),
    "odd head, decode": Case(((33,), (2,)), head_dim=45, block_size=7),
    "block of one": Case(((33,), (12,)), block_size=1),
    "sinks, decode": Case(((40,), (0,), (131,), (-1,)), sinks=SINKS),
    "sinks, window decode": Case(((300,), (10,), (31,)), window=32, sinks=SINKS),
    "sinks, chunk": Case((tuple(range(37, 37 + 21)), (*range(20), -1)), sinks=SINKS),
    "sinks, window, odd head": Case((tuple(range(60, 80)),), window=9, head_dim=45, block_size=7, sinks=SINKS),
    "sinks, no groups, softcap": Case(((20, 21, 22),), q_heads=3, kv_heads=3, softcap=5.0, sinks=SINKS[:3]),
    "latent, decode": Case(((40,), (3,)), q_heads=3, kv_heads=1, head_dim=72, value_dim=57),
    "latent, chunk": Case((tuple(range(30, 41)),), q_heads=2, kv_heads=1, head_dim=72, value_dim=64),
    "positions in any order": Case(((50, 3, 17, 22, 0, 49, 8, 9, 1),), window=20),
}


class Attention:
    """The inputs of one case, the call, and the reference."""

    def __init__(self, case: Case, dtype: str) -> None:
        self.case, self.dtype = case, dtype
        rng = np.random.default_rng(len(case.positions))
        self.positions = np.array(case.positions, np.int32)
        sequences = len(case.positions)
        self.blocks = int(self.positions.max()) // case.block_size + 1 if self.positions.max() >= 0 else 1
        blocks_in_pool = sequences * self.blocks + 3
        # Entries past a sequence's last position point far outside: reading one would crash.
        self.table = np.full((sequences, self.blocks), 2**31 - 1, np.int32)
        shuffled = rng.permutation(blocks_in_pool)
        shape = (LAYERS, blocks_in_pool * case.block_size, case.kv_heads * case.head_dim)
        self.k, self.v = (np.full(shape, np.nan, DTYPES[dtype]) for _ in range(2))
        self.width = shape[2]
        for s, row_positions in enumerate(case.positions):
            longest = max(row_positions)
            used = longest // case.block_size + 1 if longest >= 0 else 0
            self.table[s, :used] = shuffled[s * self.blocks : s * self.blocks + used]
            for p in self.seen(s):
                row = self.row(s, p)
                self.k[LAYER, row], self.v[LAYER, row] = rng.standard_normal((2, self.width))
        q = rng.standard_normal((case.tokens, case.q_heads, case.head_dim)) * case.spread
        self.q = q.astype(np.float32)

    def seen(self, s: int) -> set[int]:
        """Positions of sequence s that some row sees; all others stay NaN."""
        return {p for i in self.case.positions[s] for p in self.visible(i)}

    def visible(self, i: int) -> range:
        window = self.case.window
        if window < 0:
            return range(i // -window * -window, i + 1)
        return range(max(0, i - window + 1) if window else 0, i + 1)

    def row(self, s: int, p: int) -> int:
        return int(self.table[s, p // self.case.block_size]) * self.case.block_size + p % self.case.block_size

    def run(self, kernels: ctypes.CDLL, fenced: Callable, guarded: Callable) -> np.ndarray:
        case = self.case
        y, check = guarded((case.tokens, case.q_heads, case.value_dim or case.head_dim))
        launches = attention_launches(
            self.dtype,
            layer=LAYER,
            tokens=case.tokens,
            sequences=len(case.positions),
            q_heads=case.q_heads,
            kv_heads=case.kv_heads,
            head_dim=case.head_dim,
            pool_rows=self.k.shape[1],
            blocks_per_sequence=self.blocks,
            block_size=case.block_size,
            window=case.window,
            scale=case.head_dim**-0.5,
            softcap=case.softcap,
            value_dim=case.value_dim,
            sinks=bool(case.sinks),
        )
        pools = [p.view(np.int8) if self.dtype == "fp8" else p for p in (self.k, self.v)]
        inputs = {"q": self.q, "k_pool": pools[0], "v_pool": pools[1], "block_table": self.table}
        if case.sinks:
            inputs["sinks"] = np.array(case.sinks, np.float32)
        buffers = {name: fenced(array) for name, array in inputs.items()}
        run_launches(kernels, launches, {**buffers, "positions": fenced(self.positions.reshape(-1)), "y": y})
        check()
        return y

    def reference(self) -> np.ndarray:
        case = self.case
        width = case.value_dim or case.head_dim
        y = np.zeros((case.tokens, case.q_heads, width))
        per_sequence = self.positions.shape[1]
        for t, i in enumerate(self.positions.reshape(-1)):
            rows = [self.row(t // per_sequence, p) for p in self.visible(int(i))]
            if not rows:
                continue
            keys, values = (
                a[LAYER, rows].astype(np.float64).reshape(len(rows), -1, case.head_dim) for a in (self.k, self.v)
            )
            for h in range(case.q_heads):
                g = h // (case.q_heads // case.kv_heads)
                scores = keys[:, g] @ self.q[t, h].astype(np.float64) * case.head_dim**-0.5
                if case.softcap:
                    scores = case.softcap * np.tanh(scores / case.softcap)
                sink = case.sinks[h] if case.sinks else -np.inf
                peak = max(scores.max(), sink)
                weights = np.exp(scores - peak)
                y[t, h] = weights @ values[:, g, :width] / (weights.sum() + np.exp(sink - peak))
        return y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_matches_float64(kernels: ctypes.CDLL, fenced: Callable, guarded: Callable, name: str, dtype: str) -> None:
    attention = Attention(CASES[name], dtype)
    y, reference = attention.run(kernels, fenced, guarded), attention.reference()
    assert np.isfinite(y).all()
    # The scores carry float32 errors of their own size, which the exponential turns into relative ones.
    np.testing.assert_allclose(y, reference, rtol=0, atol=1e-5 * max(1.0, CASES[name].spread / 4))
    padding = attention.positions.reshape(-1) < 0
    assert (y[padding] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_decoded_row_does_not_depend_on_its_company(
    kernels: ctypes.CDLL, fenced: Callable, guarded: Callable, dtype: str
) -> None:
    together = Attention(Case(((40,), (7,), (131,), (255,))), dtype)
    y = together.run(kernels, fenced, guarded)
    for s in range(4):
        alone = Attention(together.case, dtype)
        alone.case = Case((together.case.positions[s],))
        alone.positions, alone.table, alone.q = (a[s : s + 1] for a in (alone.positions, alone.table, alone.q))
        np.testing.assert_array_equal(alone.run(kernels, fenced, guarded)[0].view(np.int32), y[s].view(np.int32))


def test_a_row_is_untouched_by_what_it_does_not_see(kernels: ctypes.CDLL, fenced: Callable, guarded: Callable) -> None:
    """A NaN in the values of position 12 reaches the rows from 12 on, and no other row of the chunk."""
    attention = Attention(Case((tuple(range(16)),)), "f16")
    attention.v[LAYER, attention.row(0, 12)] = np.nan
    y = attention.run(kernels, fenced, guarded)
    assert np.isfinite(y[:12]).all()
    assert np.isnan(y[12:]).all()


@pytest.mark.parametrize("tokens", [1, 9])
def test_nan_in_a_query_stays_in_its_row(
    kernels: ctypes.CDLL, fenced: Callable, guarded: Callable, tokens: int
) -> None:
    attention = Attention(Case((tuple(range(20, 20 + tokens)),)), "f16")
    attention.q[0, 0, 3] = np.nan
    y = attention.run(kernels, fenced, guarded)
    assert np.isnan(y[0, 0]).all()
    assert np.isfinite(y[0, 1:]).all()
    assert np.isfinite(y[1:]).all()
