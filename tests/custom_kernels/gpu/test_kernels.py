"""Every GPU kernel against the op's reference, on each machine that conftest.py offers."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gfx1151_sim.kernel_machine import relatives
from kernel_tolerances import RELATIVE_L2
from ml_dtypes import float8_e4m3fn
from rope_and_append_cases import CASES as ROPE_CASES
from rope_and_append_cases import Call, Case

from strixhlo.custom_kernels.gpu.attention_kernels import float32_kernels
from strixhlo.custom_kernels.gpu.kernels import DENSE, KERNELS, POOLS, threads
from strixhlo.custom_kernels.gpu.launches import (
    argmax_launches,
    dense_matmul_launches,
    quantized_matmul_launches,
)
from strixhlo.custom_kernels.gpu.rules import rope_and_append
from strixhlo.custom_kernels.ops import argmax as argmax_op
from strixhlo.custom_kernels.ops import rope_and_append as rope_op
from strixhlo.custom_kernels.ops.formats import dequantize
from strixhlo.custom_kernels.ops.formats_gguf import GGUF_FORMATS, GgufFormat
from strixhlo.custom_kernels.ops.launch import Launch

ROWS = (1, 2, 3, 8, 9, 17, 70)
FORMATS = {name: fmt for name, fmt in GGUF_FORMATS.items() if fmt.bits >= 4}
# Subnormal, tiny, ordinary, large and negative float16 scales, and zero.
SCALES = np.array([6e-8, 3e-5, 0.01, -0.7, 1.5, 300.0, -60000.0, 0.0], np.float16)


POOL_TYPES = {"fp8": float8_e4m3fn, "f16": np.float16, "f32": np.float32}


def as_array(pool: np.ndarray) -> np.ndarray:
    """A pool as kernels and references take it: fp8 as its bits in int8."""
    return pool.view(np.int8) if pool.dtype == float8_e4m3fn else pool


def random_parts(fmt: GgufFormat, n: int, k: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    parts = {}
    for name, (shape, dtype) in fmt.parts(n, k).items():
        if dtype == np.float16:
            parts[name] = rng.choice(SCALES, shape)
        else:
            low, high = (-(2**31), 2**31) if dtype == np.int32 else (-128, 128)
            parts[name] = rng.integers(low, high, shape, dtype=np.int64).astype(dtype)
    return parts


def assert_matmul(y: np.ndarray, x: np.ndarray, weight: np.ndarray) -> None:
    """Within the rounding of a float32 sum, whatever its order; of more than 8 rows, x has 16 bits (matrix_gemm.h)."""
    x64, w64 = x.astype(np.float64), weight.astype(np.float64)
    bound = np.abs(x64) @ np.abs(w64).T * (2e-6 if len(x) <= 8 else 6e-6) + 1e-30
    exact = x64 @ w64.T
    error = np.abs(y - exact)
    assert np.isfinite(y).all()
    assert np.linalg.norm(error) <= RELATIVE_L2["f32"] * np.linalg.norm(exact)
    assert (error <= bound).all(), f"worst error {np.max(error / bound):.2f} times the bound"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("m", ROWS)
def test_quantized_matmul(run_launches, name, m):
    fmt = FORMATS[name]
    n, k = (67, 768) if fmt.super_group else (67, 672)
    parts = random_parts(fmt, n, k, seed=m)
    x = np.random.default_rng(m).standard_normal((m, k), np.float32)
    y = run_launches(quantized_matmul_launches(fmt, m, n, k), {"x": x, **parts})["y"]
    assert_matmul(y, x, np.asarray(dequantize(fmt, {p: jnp.asarray(v) for p, v in parts.items()})))


@pytest.mark.parametrize("dtype", DENSE)
@pytest.mark.parametrize("m", ROWS)
def test_dense_matmul(run_launches, dtype, m):
    n, k = 67, 136
    rng = np.random.default_rng(m)
    x = rng.standard_normal((m, k), np.float32)
    weight = rng.standard_normal((n, k), np.float32) * np.float32(3.0) ** rng.integers(-9, 9, (n, 1))
    stored = np.asarray(jnp.asarray(weight, {"f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16}[dtype]))
    launches = dense_matmul_launches(dtype, m, n, k)
    bits = stored.view(np.int16) if dtype == "bf16" else stored
    assert_matmul(run_launches(launches, {"x": x, "w": bits})["y"], x, stored.astype(np.float32))


@pytest.mark.parametrize("name", ["q4_1", "q6_k", "q8_0"])
def test_few_rows_do_not_depend_on_each_other(run_launches, name):
    fmt, n, k = FORMATS[name], 33, 512
    parts = random_parts(fmt, n, k, seed=7)
    x = np.random.default_rng(7).standard_normal((8, k), np.float32)
    together = run_launches(quantized_matmul_launches(fmt, 8, n, k), {"x": x, **parts})["y"]
    for m in (1, 2, 3):
        alone = run_launches(quantized_matmul_launches(fmt, m, n, k), {"x": x[:m], **parts})["y"]
        assert alone.tobytes() == together[:m].tobytes()


@pytest.mark.parametrize("n", [1, 31, 257, 700, 8192, 9001])
def test_argmax(run_launches, n):
    """Ties, infinities, NaN in each place that another thread, wave or turn of the loop reads."""
    rng = np.random.default_rng(n)
    rows = [rng.standard_normal(n, np.float32), np.full(n, -3.0, np.float32), np.full(n, -np.inf, np.float32)]
    rows[2][n // 2] = -1e38
    rows.append(np.round(rng.standard_normal(n, np.float32)))  # many ties
    for bad in (np.nan, np.inf):
        rows.append(rng.standard_normal(n, np.float32))
        rows[-1][n - 1] = bad
    rows.append(np.full(n, -np.inf, np.float32))
    x = np.stack(rows)
    (launch,) = argmax_launches(*x.shape)
    assert threads(launch.symbol) == launch.threads  # more than its PTX says are not launched
    got = run_launches((launch,), {"x": x})["y"]
    np.testing.assert_array_equal(got, [*x[:4].argmax(axis=1), -1, -1, -1])
    np.testing.assert_array_equal(got, np.asarray(argmax_op.reference(jnp.asarray(x))))


@pytest.mark.parametrize("dtype", POOLS)
@pytest.mark.parametrize("case", ROPE_CASES)
def test_rope_and_append(run_launches, case, dtype):
    call = Call(ROPE_CASES[case], dtype)
    got = run_launches(rope_launches(call), call.operands)
    call.check(*(got[name] for name in ("q_out", "k_pool_out", "v_pool_out")))


def rope_launches(call: Call) -> tuple[Launch, ...]:
    lowering = rope_and_append(call.attributes, call.types)
    assert lowering
    return lowering.launches


@pytest.mark.parametrize("dtype", POOLS)
def test_rounding_to_the_type_of_the_pool(run_launches, dtype):
    """Overflow, underflow, infinity, ties, NaN (of any bits): what nothing changes but the pool's type."""
    call = Call(Case(((3,),), head_dim=32, dims=0), dtype)
    ties = [448.0, 464.0, -500.0, 2**-6, 2**-9, 2**-10, 3 * 2**-10, -1.5 * 2**-9, 1.0625, np.nan]
    call.operands["k"][0, :14] = [70000.0, -1e-8, np.inf, 65519.0, *ties]
    got = run_launches(rope_launches(call), call.operands)
    want = jax.jit(partial(rope_op.reference, **call.attributes))(*map(jnp.asarray, call.operands.values()))
    for name, pool in zip(("k_pool_out", "v_pool_out"), want[1:], strict=True):
        kind = jnp.float8_e4m3fn if dtype == "fp8" else pool.dtype
        ours, theirs = (np.frombuffer(a.tobytes(), kind).astype(np.float32) for a in (got[name], np.asarray(pool)))
        number = ~np.isnan(theirs)
        np.testing.assert_array_equal(~np.isnan(ours), number)
        assert ours[number].tobytes() == theirs[number].tobytes()


def test_the_cases_above_launch_every_kernel():
    launches: list[Launch] = []
    for m in ROWS:
        launches += [launch for fmt in FORMATS.values() for launch in quantized_matmul_launches(fmt, m, 67, 768)]
        launches += [launch for dtype in DENSE for launch in dense_matmul_launches(dtype, m, 67, 136)]
    for dtype in POOLS:
        launches += rope_launches(Call(ROPE_CASES["decode"], dtype))
    launches += argmax_launches(2, 300)
    known = {s for s in KERNELS if relatives(s) in ("", *FORMATS, *DENSE) and "_moe_" not in s}
    known -= {
        "strixhlo_norm_rows",
        "strixhlo_add_normed",
        "strixhlo_layer_norm_rows",
        "strixhlo_finish",
        "strixhlo_finish_more",
    }  # test_fused_matmul.py
    known -= set(float32_kernels())  # in test_attention.py
    assert {launch.symbol for launch in launches} == known


def test_shapes_without_a_kernel():
    assert dense_matmul_launches("f16", 1, 64, 100) is None  # not a multiple of 8
