"""`strixhlo_mm_*`: dense weights of any shape."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from kernel_tolerances import RELATIVE_L2

from strixhlo.custom_kernels.cpu.direct import run_launches
from strixhlo.custom_kernels.cpu.launches import dense_matmul_launches

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
ROWS = 35


def run(kernels: ctypes.CDLL, name: str, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    launches = dense_matmul_launches(name, len(x), len(w), x.shape[1])
    run_launches(kernels, launches, {"x": x, "w": w.view(np.uint16) if w.itemsize == 2 else w, "y": y})


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("k", [1, 7, 31, 32, 45, 96, 300])
def test_matches_float64(kernels: ctypes.CDLL, fenced: Callable, guarded: Callable, name: str, k: int) -> None:
    rng = np.random.default_rng(k)
    weights = (rng.standard_normal((ROWS, k)) * rng.choice([1e-7, 1, 100], (ROWS, k))).astype(DTYPES[name])
    if k > 1:
        weights[0, 0] = 0
    for m in (1, 2, 3, 7, 8, 9, 16, 17, 65):
        x = rng.standard_normal((m, k)).astype(np.float32)
        for n in (1, 16, ROWS):
            y, check = guarded((m, n))
            run(kernels, name, fenced(x), fenced(weights[:n]), y)
            check()
            reference = x.astype(np.float64) @ weights[:n].astype(np.float64).T
            error = np.linalg.norm(y - reference) / np.linalg.norm(reference)
            assert error < RELATIVE_L2["f32"], f"M={m} N={n}: {error}"


@pytest.mark.parametrize("name", DTYPES)
def test_a_row_does_not_depend_on_its_company(kernels: ctypes.CDLL, name: str) -> None:
    rng = np.random.default_rng(1)
    w, x = rng.standard_normal((ROWS, 75)).astype(DTYPES[name]), rng.standard_normal((8, 75)).astype(np.float32)
    results = []
    for m in (1, 2, 3, 5, 8):
        y = np.full((m, ROWS), np.nan, np.float32)
        run(kernels, name, x[:m], w, y)
        results.append(y[0])
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_16_bit_weight(kernels: ctypes.CDLL, name: str) -> None:
    """One weight at a time, times 1: the conversion is exact, subnormals, infinities and NaN included."""
    w = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[name]).reshape(-1, 1)
    for m in (1, 16):
        y = np.zeros((m, len(w)), np.float32)
        run(kernels, name, np.ones((m, 1), np.float32), w, y)
        np.testing.assert_array_equal(y, np.broadcast_to(w.astype(np.float32).T, y.shape))


def test_nan_and_infinity(kernels: ctypes.CDLL) -> None:
    rng = np.random.default_rng(2)
    w = rng.standard_normal((ROWS, 45)).astype(np.float32)
    w[3, 44] = 0
    for m in (3, 17):
        x = rng.standard_normal((m, 45)).astype(np.float32)
        x[0, 7], x[1, 44] = np.nan, np.inf
        y = np.zeros((m, ROWS), np.float32)
        run(kernels, "f32", x, w, y)
        assert np.isnan(y[0]).all()
        assert np.isnan(y[1, 3])
        np.testing.assert_array_equal(np.delete(y[1], 3), np.copysign(np.float32(np.inf), np.delete(w[:, 44], 3)))
        assert np.isfinite(y[2:]).all()
