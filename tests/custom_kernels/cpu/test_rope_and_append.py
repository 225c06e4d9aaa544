"""`strixhlo_rope_and_append_*`: norms, rotation, and rows of the KV pools written in place."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn
from rope_and_append_cases import CASES, Call, Case

from strixhlo.custom_kernels.cpu.direct import run_launches
from strixhlo.custom_kernels.cpu.rules import rope_and_append
from strixhlo.custom_kernels.ops.cache_types import encode_e4m3, pool_values

DTYPES = ("fp8", "f16", "bf16", "f32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_is_the_reference(kernels: ctypes.CDLL, fenced: Callable, guarded: Callable, name: str, dtype: str) -> None:
    call = Call(CASES[name], dtype)
    lowering = rope_and_append(call.attributes, call.types)
    assert lowering
    buffers = {n: fenced(a) for n, a in call.operands.items()}
    q, *pools = lowering.launches[0].outputs
    out, check = guarded(q.shape)
    checks = [check]
    for pool in pools:
        before = call.operands[pool.updates]
        buffers[pool.updates], check = guarded(before.shape, before.dtype.type)
        buffers[pool.updates][...] = before
        checks.append(check)
    run_launches(kernels, lowering.launches, {**buffers, q.name: out})
    for check in checks:
        check()
    call.check(out, buffers["k_pool"], buffers["v_pool"])


def test_a_row_does_not_depend_on_its_company(kernels: ctypes.CDLL) -> None:
    together = Call(CASES["norm"], "f32")
    case = replace(together.case, positions=((6,),))
    alone = Call(case, "f32")
    results = []
    for call in (together, alone):
        for name in "qkv":
            call.operands[name][0] = together.operands[name][0]
        call.operands["q_weight"] = together.operands["q_weight"]
        lowering = rope_and_append(call.attributes, call.types)
        assert lowering
        buffers = dict(call.operands)
        run_launches(kernels, lowering.launches, buffers)
        results.append(buffers["q_out"][0].tobytes())
    assert results[0] == results[1]


def test_heads_that_are_too_large_have_no_kernel() -> None:
    call = Call(CASES["decode"], "f16")
    assert rope_and_append({**call.attributes, "head_dim": 1032}, call.types) is None


def append(kernels: ctypes.CDLL, k_pool: np.ndarray, v_pool: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    """One token's k and v as they are into the only row of the pools, 120 values at a time."""
    width = k.shape[1]
    case = Case(((0,),), heads=1, kv_heads=width // 120, head_dim=120, dims=0, block_size=1)
    call = Call(case, {np.dtype(np.int8): "fp8", np.dtype(np.float16): "f16", np.dtype(bfloat16): "bf16"}[k_pool.dtype])
    table, q = np.zeros((1, 1), np.int32), np.zeros((1, 120), np.float32)
    call.operands |= {"k_pool": k_pool, "v_pool": v_pool, "q": q, "k": k, "v": v, "block_table": table}
    lowering = rope_and_append({**call.attributes, "layer": 0}, call.types)
    assert lowering
    run_launches(kernels, lowering.launches, call.operands)


def test_rounds_to_float16_as_ieee_does(kernels: ctypes.CDLL) -> None:
    """Every float16, the points half way between two of them, and the floats beside those points."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    between = np.concatenate([(halves[:-1] + halves[1:]) / 2, [65519.99, 65520.0, 65536.0, 1e30, np.inf]])
    points = np.concatenate([halves, between]).astype(np.float32)
    points = np.concatenate([points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))])
    points = np.concatenate([points, -points, [np.nan, -np.nan, 0.0, -0.0]]).astype(np.float32)
    x = np.resize(points, (1, -(-points.size // 120) * 120))
    pools = {name: np.zeros((1, 1, x.size), np.float16) for name in ("k_pool", "v_pool")}
    append(kernels, **pools, k=x, v=-x)
    with np.errstate(over="ignore"):
        for name, values in (("k_pool", x), ("v_pool", -x)):
            expected, found = values.astype(np.float16).reshape(-1), pools[name].reshape(-1)
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_rounds_to_bfloat16_as_ml_dtypes_does(kernels: ctypes.CDLL) -> None:
    """Every bfloat16, the points half way between two of them, and the floats beside those; all NaNs stay NaN."""
    codes = np.arange(1 << 16, dtype=np.uint32) << 16
    bits = np.concatenate([codes, codes | 0x7FFF, codes | 0x8000, codes | 0x8001]).astype(np.uint32)
    x = np.resize(bits.view(np.float32), (1, -(-bits.size // 120) * 120))
    pools = {name: np.zeros((1, 1, x.size), bfloat16) for name in ("k_pool", "v_pool")}
    append(kernels, **pools, k=x, v=x)
    with np.errstate(invalid="ignore"):
        want = x.reshape(-1).astype(bfloat16)
    number = ~np.isnan(x.reshape(-1))
    for pool in pools.values():
        got = pool.reshape(-1)
        np.testing.assert_array_equal(got.view(np.uint16)[number], want.view(np.uint16)[number])
        assert np.isnan(got[~number].astype(np.float32)).all()


def test_rounds_to_e4m3_as_ml_dtypes_does(kernels: ctypes.CDLL) -> None:
    """Every E4M3 number, the points half way between two of them, the floats beside those, and what saturates."""
    numbers = np.arange(0x7F, dtype=np.uint8).view(float8_e4m3fn).astype(np.float64)
    between = (numbers[:-1] + numbers[1:]) / 2
    points = np.concatenate([numbers, between]).astype(np.float32)
    points = np.concatenate([points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(448))])
    large = np.array([448.01, 464.0, 480.0, 1e30, np.inf, 1e-30, 1e-40], np.float32)
    points = np.concatenate([points, large, [0.0, np.nan]]).astype(np.float32)
    x = np.concatenate([points, -points])
    x = np.resize(x, (1, -(-x.size // 120) * 120))
    pools = {name: np.zeros((1, 1, x.size), np.int8) for name in ("k_pool", "v_pool")}
    append(kernels, **pools, k=x, v=x)
    want = np.clip(x, -448, 448).astype(float8_e4m3fn).view(np.int8)
    for pool in pools.values():
        np.testing.assert_array_equal(pool[0], want)
    reference = np.asarray(encode_e4m3(jnp.asarray(x)))
    np.testing.assert_array_equal(reference, want)


def test_decodes_every_e4m3() -> None:
    codes = np.arange(256, dtype=np.uint8)
    got = np.asarray(pool_values(jnp.asarray(codes.view(np.int8))))
    np.testing.assert_array_equal(got, codes.view(float8_e4m3fn).astype(np.float32))
