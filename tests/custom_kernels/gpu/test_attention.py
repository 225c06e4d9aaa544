"""Attention's GPU kernels against the op's reference: unused rows of pools are NaN, unused entries of block tables name
blocks of others, ragged batches, windows, sinks, every kind of head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gfx1151_sim.kernel_machine import kernels_of, relatives
from host_kernels import host, runner
from ml_dtypes import bfloat16, float8_e4m3fn

from strixhlo.compile.hsaco import code_objects, kernels
from strixhlo.compile.report import load_widths
from strixhlo.custom_kernels.gpu.attention_kernels import float32_kernels
from strixhlo.custom_kernels.gpu.attention_launches import attention_launches
from strixhlo.custom_kernels.gpu.kernels import build_hsaco
from strixhlo.custom_kernels.gpu.launches import GFX1151, H200
from strixhlo.custom_kernels.ops import attention as attention_op
from strixhlo.custom_kernels.ops.launch import Launch

POOL_TYPES = {"fp8": float8_e4m3fn, "f16": np.float16, "bf16": bfloat16, "f32": np.float32}
X_TYPES = {"f32": np.float32, "f16": np.float16, "bf16": bfloat16}
BLOCK_SIZE, BLOCKS = 16, 9
RAGGED = ((70,), (3,), (0,), (-1,), (143,))
CHUNK = (tuple(range(40, 45)), (0, 1, 2, -1, -1))
# Of float32 results: 22 bits of queries and weights, 16 where the pool is bfloat16; of narrower ones their rounding and
# that of the weights.
MOST = {"f32": 1e-5, "f16": 4e-3, "bf16": 2e-2}


@dataclass(frozen=True)
class Case:
    """rows: positions of the rows of each sequence. splits: parts of the positions; blocks: a chip's of a wave."""

    pool: str
    head_dim: int
    q_heads: int
    kv_heads: int
    rows: tuple[tuple[int, ...], ...]
    window: int = 0
    softcap: float = 0.0
    splits: int = 1
    value_dim: int = 0
    sinks: bool = False
    x: str = "f32"
    blocks: int = 1


def chunk(first: int, tokens: int) -> tuple[tuple[int, ...], ...]:
    return (tuple(range(first, first + tokens)),)


FLOAT32 = {
    "decode": Case("f32", 64, 20, 2, RAGGED[:2], softcap=5.0),
    "decode, split": Case("f32", 48, 2, 1, RAGGED, splits=4),
    "decode, more splits than tiles": Case("f32", 128, 2, 1, RAGGED, splits=9),
    "chunk, window": Case("f32", 96, 3, 1, CHUNK, window=4, softcap=30.0),
    "chunk, wide heads": Case("f32", 256, 2, 1, CHUNK),
    "chunk, split, wide": Case("f32", 256, 4, 2, CHUNK, splits=2),
    "latent": Case("f32", 576, 3, 1, CHUNK, value_dim=512),
    "latent, split": Case("f32", 576, 2, 1, RAGGED[:2], value_dim=512, splits=2),
    "chunk, split, sinks": Case("f32", 96, 4, 2, CHUNK, splits=2, sinks=True),
    "half": Case("f32", 64, 4, 2, RAGGED, x="f16"),
}
FEW = {
    "GQA of 3": Case("f16", 64, 9, 3, RAGGED),
    "GQA of 5, softcap and window": Case("f16", 128, 10, 2, RAGGED, window=9, softcap=20.0),
    "GQA of 7, split": Case("f16", 64, 7, 1, RAGGED, splits=3),
    "GQA of 8, sinks, split window": Case("f16", 64, 8, 1, RAGGED, window=40, splits=3, sinks=True),
    "two tiles of rows": Case("f16", 64, 12, 1, RAGGED[:2]),
    "no groups, 80": Case("f16", 80, 2, 2, RAGGED),
    "112, in chunks of 40": Case("f16", 112, 3, 1, RAGGED, window=-40),
    "256": Case("f16", 256, 2, 1, RAGGED, splits=2),
    "512": Case("f16", 512, 2, 1, RAGGED),
    "latent": Case("f16", 576, 16, 1, RAGGED[:2], value_dim=512),
    "fp8, sinks": Case("fp8", 64, 4, 2, RAGGED, splits=12, sinks=True),
    "fp8, 80": Case("fp8", 80, 2, 1, RAGGED),
    "bf16": Case("bf16", 128, 4, 1, RAGGED, splits=2),
    "several tokens": Case("f16", 64, 4, 2, CHUNK),
    "half": Case("f16", 64, 16, 1, RAGGED, x="f16", splits=2, sinks=True),
    "bfloat16": Case("bf16", 64, 3, 1, RAGGED, x="bf16"),
    "bfloat16 over fp8": Case("fp8", 64, 3, 1, RAGGED, x="bf16"),
}
MANY = {
    "9 tokens": Case("f16", 64, 12, 3, chunk(50, 9)),
    "16 tokens, window": Case("f16", 64, 6, 2, chunk(90, 16), window=21),
    "17 tokens, two sequences": Case("f16", 64, 5, 1, (tuple(range(17)), (*range(30, 44), -1, -1, -1)), sinks=True),
    "127 tokens": Case("f16", 64, 3, 1, chunk(10, 127)),
    "in chunks of 30": Case("f16", 64, 3, 1, (tuple(range(55, 65)), (*range(8), -1, -1)), window=-30),
    "split, softcap": Case("f16", 128, 8, 2, chunk(70, 9), softcap=15.0, splits=3, sinks=True),
    "two blocks": Case("f16", 64, 8, 1, chunk(33, 16), blocks=2),
    "two blocks, split": Case("f16", 128, 10, 1, chunk(60, 9), blocks=2, splits=2),
    "two blocks of half": Case("f16", 64, 8, 1, chunk(33, 9), blocks=2, x="f16", splits=9),
    "fp8, 96": Case("fp8", 96, 3, 1, chunk(20, 9)),
    "bf16, 192": Case("bf16", 192, 6, 1, chunk(20, 5)),
    "256": Case("f16", 256, 4, 1, chunk(100, 6)),
    "latent": Case("f16", 576, 20, 1, chunk(37, 2), value_dim=512),
    "latent, split": Case("bf16", 576, 24, 1, chunk(100, 1), value_dim=512, splits=2),
    "half": Case("f16", 64, 8, 1, chunk(20, 9), x="f16"),
    "bfloat16": Case("bf16", 128, 12, 1, chunk(20, 5), x="bf16", splits=2),
}
GROUPS = {"float32": FLOAT32, "few": FEW, "many": MANY}
CASES = {f"{group}: {name}": case for group, cases in GROUPS.items() for name, case in cases.items()}


def launches_of(case: Case) -> tuple[Launch, ...]:
    launches = attention_launches(
        case.pool,
        layer=1,
        tokens=sum(map(len, case.rows)),
        sequences=len(case.rows),
        q_heads=case.q_heads,
        kv_heads=case.kv_heads,
        head_dim=case.head_dim,
        pool_rows=(len(case.rows) * BLOCKS + 1) * BLOCK_SIZE,
        blocks_per_sequence=BLOCKS,
        block_size=BLOCK_SIZE,
        window=case.window,
        scale=case.head_dim**-0.5,
        softcap=case.softcap,
        value_dim=case.value_dim,
        sinks=case.sinks,
        splits=case.splits,
        x=case.x,
        chip=replace(GFX1151, attention_blocks=case.blocks),
    )
    assert launches
    return launches


def first_seen(position: int, window: int) -> int:
    if window < 0:
        return position // -window * -window
    return max(0, position - window + 1) if window else 0


@cache
def operands_of(case: Case) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Operands by name, and the reference's result."""
    sequences = len(case.rows)
    rng = np.random.default_rng([case.head_dim, case.q_heads, sequences])
    pool_blocks = sequences * BLOCKS + 1
    table = rng.permutation(pool_blocks)[: sequences * BLOCKS].reshape(sequences, BLOCKS).astype(np.int32)
    shape = (2, pool_blocks * BLOCK_SIZE, case.kv_heads * case.head_dim)
    pools = [np.full(shape, np.nan, POOL_TYPES[case.pool]) for _ in range(2)]  # what no row sees may hold anything
    for s, rows in enumerate(case.rows):
        for p in {p for i in rows for p in range(first_seen(i, case.window), i + 1)}:
            at = table[s, p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
            for pool in pools:
                pool[1, at] = rng.standard_normal(shape[2]) * 2
    positions = np.array(case.rows, np.int32).reshape(-1)
    q = rng.standard_normal((positions.size, case.q_heads, case.head_dim), np.float32).astype(X_TYPES[case.x])
    stored = [pool.view(np.int8) if case.pool == "fp8" else pool for pool in pools]
    values = [q, *stored, table, positions]
    if case.sinks:
        values.append(np.linspace(-4, 30, case.q_heads, dtype=np.float32))  # below, among and far above the scores
    attributes = {"layer": 1, "kv_heads": case.kv_heads, "block_size": BLOCK_SIZE, "window": case.window}
    attributes |= {"softcap": case.softcap, "scale": case.head_dim**-0.5, "value_dim": case.value_dim}
    exact = [q.astype(np.float32), *values[1:]]
    want = jax.jit(partial(attention_op.reference, **attributes))(*map(jnp.asarray, exact))
    names = ("q", "k_pool", "v_pool", "block_table", "positions", "sinks")
    return dict(zip(names, values, strict=False)), np.asarray(want)


def assert_close(got: np.ndarray, want: np.ndarray, most: float) -> None:
    """Relative L2, of all and of the worst row of a head."""
    got = got.astype(np.float32)
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= most * np.linalg.norm(want)
    rows = np.linalg.norm(got - want, axis=-1)
    assert (rows <= 4 * most * np.linalg.norm(want, axis=-1) + 1e-6).all()  # a sink can take all but nothing


@pytest.mark.parametrize("name", CASES)
def test_attention(run_launches, name):
    case = CASES[name]
    operands, want = operands_of(case)
    got = run_launches(launches_of(case), operands)["y"].view(X_TYPES[case.x])
    assert_close(got, want, MOST[case.x])
    assert (got[operands["positions"] < 0].astype(np.float32) == 0).all()


@pytest.mark.parametrize("pool", ["fp8", "f16", "bf16"])
def test_every_value_of_a_pool(request, run_launches, pool):
    """One key: what comes out is its value, whatever its bits are, but for a rounding where a GPU's exp2 has one.
    NaN stays NaN, and infinity is no number."""
    bits = np.arange(256 if pool == "fp8" else 1 << 16, dtype=np.uint8 if pool == "fp8" else np.uint16)
    case = Case(pool, 256, 1, 1, ((0,),) * (bits.size // 256))
    operands, _ = operands_of(case)
    values = operands["v_pool"].view(bits.dtype)
    values[1, operands["block_table"][:, 0] * BLOCK_SIZE] = bits.reshape(-1, 256)
    got = run_launches(launches_of(case), operands)["y"].reshape(-1)
    want = bits.view(POOL_TYPES[pool]).astype(np.float32)
    number = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), number)
    rounding = 0.0 if request.node.callspec.params["machine"] == "host" else 2.0**-23
    np.testing.assert_allclose(got[number], want[number], rtol=rounding, atol=0)


@pytest.mark.parametrize("case", [FEW["latent"], MANY["latent, split"]], ids=["few", "many"])
def test_values_that_begin_their_keys_are_read_with_them(case):
    """One pool for both gives what two equal ones give, bit for bit, on the host, which goes NVIDIA's way."""

    def with_one_pool(launch: Launch, buffers: list[np.ndarray]) -> None:
        assert launch.inputs[1:3] == ("k_pool", "v_pool") or "combine" in launch.symbol
        host()(launch, buffers if "combine" in launch.symbol else [*buffers[:2], *buffers[1:2], *buffers[3:]])

    operands, _ = operands_of(case)
    operands = operands | {"v_pool": operands["k_pool"]}
    one, two = (runner(machine)(launches_of(case), operands)["y"] for machine in (with_one_pool, host()))
    assert np.isfinite(one.astype(np.float32)).all()
    assert one.tobytes() == two.tobytes()


def test_a_decoded_row_does_not_depend_on_its_company(run_launches):
    """Alone and beside three others, with as many parts as a launch chooses for a long context."""
    case = Case("f16", 64, 4, 2, RAGGED[:1] + RAGGED[4:] + RAGGED[1:3], splits=4)
    operands, _ = operands_of(case)
    together = run_launches(launches_of(case), operands)["y"]
    for s in range(4):
        alone = {n: a[s : s + 1] if n in ("q", "block_table", "positions") else a for n, a in operands.items()}
        launches = launches_of(replace(case, rows=case.rows[s : s + 1]))
        rows = operands["k_pool"].shape[1]
        scalars = [rows if v == (BLOCKS + 1) * BLOCK_SIZE else v for v in launches[0].scalars]
        launches = (replace(launches[0], scalars=tuple(scalars)), launches[1])
        assert run_launches(launches, alone)["y"].tobytes() == together[s : s + 1].tobytes()


LLAMA_8B = {
    "layer": 0,
    "q_heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "pool_rows": 32768,
    "block_size": 16,
    "scale": 0.1,
}


@pytest.mark.parametrize("chip", [GFX1151, H200], ids=["gfx1151", "H200"])
def test_parts_of_a_long_context(chip):
    """They are as many for one sequence as for eight, and none where the context is short."""

    def parts(sequences: int, blocks: int) -> int:
        launches = attention_launches(
            "f16", tokens=sequences, sequences=sequences, blocks_per_sequence=blocks, chip=chip, **LLAMA_8B
        )
        assert launches
        return launches[0].workgroups // (sequences * 8)

    assert parts(1, 64) == parts(8, 64) == 1
    assert parts(1, 2048) == parts(8, 2048) == chip.attention_wanted // 8


def test_parts_of_many_latent_heads_keep_the_chip_busy():
    """Of one decoded token of DeepSeek's 128 heads, as of eight."""
    latent = {"q_heads": 128, "kv_heads": 1, "head_dim": 576, "value_dim": 512, "x": "f16", "chip": H200}
    shape = {**LLAMA_8B, **latent}
    for sequences in (1, 8):
        launches = attention_launches("f16", tokens=sequences, sequences=sequences, blocks_per_sequence=2048, **shape)
        assert launches and launches[0].workgroups >= 0.9 * H200.attention_wanted * sequences


def test_local_memory_of_a_ring():
    """On NVIDIA's GPUs alone, and with what a kernel names itself within 99 KiB, the least that one of them has."""
    rows = {"tokens": 1, "sequences": 1, "blocks_per_sequence": 2048}
    for head_dim, value_dim in ((64, 0), (128, 0), (256, 0), (576, 512)):
        shape = {**LLAMA_8B, "head_dim": head_dim, "value_dim": value_dim, "kv_heads": 1, **rows}
        given = {}
        for chip in (GFX1151, H200):
            launches = attention_launches("f16", chip=chip, **shape)
            assert launches
            given[chip] = launches[0].local_memory
        queries = 2 * 64 * (head_dim + 8)
        assert given[GFX1151] == 0 and 48 << 10 < given[H200] < (99 << 10) - queries // (2 if value_dim else 1)


def test_the_cases_above_launch_every_float32_kernel():
    launched = {launch.symbol for case in FLOAT32.values() for launch in launches_of(case)}
    assert set(float32_kernels()) <= launched | {launch.symbol for launch in launches_of(FEW["GQA of 7, split"])}
    assert all(relatives(launch.symbol) for case in FEW.values() for launch in launches_of(case)[:1])


FOR_GFX1151 = sorted({launches_of(case)[0].symbol for case in (*FEW.values(), *MANY.values()) if case.blocks == 1})


def test_kernels_for_gfx1151_use_its_matrix_units_and_no_scratch():
    for symbol in FOR_GFX1151:
        path = build_hsaco("gfx1151", kernels_of(relatives(symbol)))
        found = {k[".name"]: k for code in code_objects(path.read_bytes()) for k in kernels(code)}
        kernel = found[symbol]
        for wasted in (".vgpr_spill_count", ".sgpr_spill_count", ".private_segment_fixed_size"):
            assert kernel[wasted] == 0, f"{symbol}: {wasted}"
        assert kernel[".vgpr_count"] <= 256 and kernel[".group_segment_fixed_size"] <= 40960, symbol
        assembly = path.with_suffix(".s").read_text()
        function = assembly.partition(f"; -- Begin function {symbol}\n")[2].partition("; -- End function")[0]
        multiplied = "bf16" if "_bf16_" in symbol else "f16"
        assert f"v_wmma_f32_16x16x16_{multiplied}" in function, symbol
        loads = load_widths(assembly)[symbol]
        most = 8 if "_fp8_" in symbol else 16  # eight elements of a key
        assert loads.get(str(most), 0) >= 8, (symbol, loads)


def test_shapes_without_a_kernel():
    one = {"layer": 0, "tokens": 1, "sequences": 1, "q_heads": 1, "kv_heads": 1, "pool_rows": 16, "scale": 1.0}
    for pool, head_dim in (("f16", 584), ("f16", 520), ("f16", 20), ("f32", 264)):
        assert attention_launches(pool, head_dim=head_dim, blocks_per_sequence=1, block_size=16, **one) is None
