"""`strixhlo_kv_append_*`: rows of the KV pools written in place."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from ml_dtypes import float8_e4m3fn

from strixhlo.custom_kernels.cpu.direct import run_launches
from strixhlo.custom_kernels.cpu.launches import kv_append_launches
from strixhlo.custom_kernels.ops.cache_types import encode_e4m3, pool_values

LAYERS, POOL_ROWS = 3, 50
DTYPES = {"f16": np.float16, "f32": np.float32}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 16, 37])
@pytest.mark.parametrize("width", [8, 64, 91])
def test_writes_the_named_rows_and_nothing_else(
    kernels: ctypes.CDLL, fenced: Callable, guarded: Callable, dtype: str, tokens: int, width: int
) -> None:
    rng = np.random.default_rng([tokens, width])
    k, v = (rng.standard_normal((tokens, width)).astype(np.float32) * 1e3 for _ in range(2))
    rows = rng.permutation(POOL_ROWS)[:tokens].astype(np.int32)
    dropped = {0: -1, 3: POOL_ROWS, 5: -(2**31), 7: 2**31 - 1}
    for token, row in dropped.items():
        if tokens > 1:
            rows[token] = row
    for layer in range(LAYERS):
        pools, checks, expected = {}, [], {}
        for name, values in (("k_pool", k), ("v_pool", v)):
            pools[name], check = guarded((LAYERS, POOL_ROWS, width), DTYPES[dtype])
            checks.append(check)
            pools[name][...] = rng.standard_normal(pools[name].shape)
            expected[name] = pools[name].copy()
            kept = (rows >= 0) & (rows < POOL_ROWS)
            expected[name][layer, rows[kept]] = values[kept].astype(DTYPES[dtype])
        launches = kv_append_launches(
            dtype, layers=LAYERS, layer=layer, pool_rows=POOL_ROWS, width=width, tokens=tokens
        )
        run_launches(kernels, launches, {**pools, "k": fenced(k), "v": fenced(v), "rows": fenced(rows)})
        for name, check in zip(pools, checks, strict=True):
            check()
            np.testing.assert_array_equal(pools[name], expected[name])


def test_rounds_to_float16_as_ieee_does(kernels: ctypes.CDLL) -> None:
    """Every float16, the points half way between two of them, and the floats beside those points."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    between = np.concatenate([(halves[:-1] + halves[1:]) / 2, [65519.99, 65520.0, 65536.0, 1e30, np.inf]])
    points = np.concatenate([halves, between]).astype(np.float32)
    points = np.concatenate([points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))])
    points = np.concatenate([points, -points, [np.nan, -np.nan, 0.0, -0.0]]).astype(np.float32)
    x = points.reshape(1, -1)
    pools = {name: np.zeros((1, 1, x.size), np.float16) for name in ("k_pool", "v_pool")}
    launches = kv_append_launches("f16", layers=1, layer=0, pool_rows=1, width=x.size, tokens=1)
    run_launches(kernels, launches, {**pools, "k": x, "v": -x, "rows": np.zeros(1, np.int32)})
    with np.errstate(over="ignore"):
        for name, values in (("k_pool", x), ("v_pool", -x)):
            expected, found = values.astype(np.float16).reshape(-1), pools[name].reshape(-1)
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_rounds_to_e4m3_as_ml_dtypes_does(kernels: ctypes.CDLL) -> None:
    """Every E4M3 number, the points half way between two of them, the floats beside those, and what saturates."""
    numbers = np.arange(0x7F, dtype=np.uint8).view(float8_e4m3fn).astype(np.float64)
    between = (numbers[:-1] + numbers[1:]) / 2
    points = np.concatenate([numbers, between]).astype(np.float32)
    points = np.concatenate([points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(448))])
    large = np.array([448.01, 464.0, 480.0, 1e30, np.inf, 1e-30, 1e-40], np.float32)
    points = np.concatenate([points, large, [0.0, np.nan]]).astype(np.float32)
    x = np.concatenate([points, -points]).reshape(1, -1)
    pools = {name: np.zeros((1, 1, x.size), np.int8) for name in ("k_pool", "v_pool")}
    launches = kv_append_launches("fp8", layers=1, layer=0, pool_rows=1, width=x.size, tokens=1)
    run_launches(kernels, launches, {**pools, "k": x, "v": x, "rows": np.zeros(1, np.int32)})
    want = np.clip(x, -448, 448).astype(float8_e4m3fn).view(np.int8)
    for pool in pools.values():
        np.testing.assert_array_equal(pool[0], want)
    reference = np.asarray(encode_e4m3(jnp.asarray(x)))
    np.testing.assert_array_equal(reference, want)


def test_decodes_every_e4m3() -> None:
    codes = np.arange(256, dtype=np.uint8)
    got = np.asarray(pool_values(jnp.asarray(codes.view(np.int8))))
    np.testing.assert_array_equal(got, codes.view(float8_e4m3fn).astype(np.float32))
