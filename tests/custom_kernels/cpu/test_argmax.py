"""The CPU's argmax against its reference and numpy."""

from __future__ import annotations

import ctypes

import jax.numpy as jnp
import numpy as np
import pytest

from strixhlo.custom_kernels.cpu.direct import run_launches
from strixhlo.custom_kernels.cpu.launches import argmax_launches
from strixhlo.custom_kernels.ops.argmax import reference


@pytest.mark.parametrize("n", [1, 3, 16, 31, 257])
def test_argmax(kernels: ctypes.CDLL, n: int) -> None:
    rng = np.random.default_rng(n)
    rows = [rng.standard_normal(n, np.float32), np.full(n, -3.0, np.float32), np.full(n, -np.inf, np.float32)]
    rows[2][n // 2] = -1e38
    rows += [np.round(rng.standard_normal(n, np.float32)) for _ in range(8)]  # many ties
    whole = len(rows)
    for bad in (np.nan, np.inf):
        for place in {0, n // 2, n - 1}:
            rows.append(rng.standard_normal(n, np.float32))
            rows[-1][place] = bad
    rows.append(np.full(n, -np.inf, np.float32))
    x = np.stack(rows)
    buffers = {"x": x, "y": np.full(len(rows), 77, np.int32)}
    run_launches(kernels, argmax_launches(*x.shape), buffers)
    np.testing.assert_array_equal(buffers["y"], [*x[:whole].argmax(axis=1), *[-1] * (len(rows) - whole)])
    np.testing.assert_array_equal(buffers["y"], np.asarray(reference(jnp.asarray(x))))
