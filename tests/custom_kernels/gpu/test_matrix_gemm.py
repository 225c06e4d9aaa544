"""Matmuls of many rows on AMD's matrix units (matrix_gemm.h), of activations of 16 bits and float32."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from extreme_weights import DTYPES, random_parts, split
from gfx1151_sim.kernel_machine import kernels_of, relatives

from strixhlo.custom_kernels.gpu.kernels import build_hsaco
from strixhlo.custom_kernels.gpu.launches import quantized_matmul_launches
from strixhlo.custom_kernels.ops.formats import dequantize

TOLERANCE = {"f32": 1e-5, "f16": 4e-3, "bf16": 2e-2}  # relative L2, of the activations' type
BARRIERS = {
    "f32": 2,
    "f16": 1,
    "bf16": 1,
}  # of a step: local memory has room for two buffers but of float32's two terms


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.int16) if array.dtype == ml_dtypes.bfloat16 else array


@pytest.mark.parametrize(
    ("name", "x", "m"),
    [("q4_0", "f16", 17), ("q4_0", "f16", 9), ("q4_0", "f16", 127), ("q4_0", "f32", 128), ("nvfp4", "f16", 16)],
)
def test_against_the_definition(run_launches, name, x, m):
    """Several steps of columns, the last not whole; extreme scales, results within the type's range."""
    (fmt, dtypes), n, k = split(name), 35, 224 if m > 16 else 544
    parts = random_parts(name, n, k, seed=m)
    weight = np.asarray(dequantize(fmt, parts)).astype(np.float64)
    given = np.random.default_rng(m).standard_normal((m, k))
    if x == "f16":
        given *= 2.0 ** np.floor(np.log2(6e3 / np.linalg.norm(weight, axis=1).max()))
    given = given.astype(DTYPES[x])
    launches = quantized_matmul_launches(fmt, m, n, k, dtypes, x=x)
    y = run_launches(launches, {"x": bits(given), **{p: bits(v) for p, v in parts.items()}})["y"]
    y, want = y.view(DTYPES[x]).astype(np.float64), given.astype(np.float64) @ weight.T
    assert np.isfinite(y).all()
    assert np.linalg.norm(y - want) <= TOLERANCE[x] * np.linalg.norm(want)


@pytest.mark.parametrize("x", BARRIERS)
def test_what_gfx1151_runs(x):
    """The unit of the type, one barrier a step where there are two buffers, and nothing spilled."""
    (launch,) = quantized_matmul_launches(split("q4_0")[0], 64, 128, 256, x=x)
    code = build_hsaco("gfx1151", kernels_of(relatives(launch.symbol))).with_suffix(".s").read_text()
    body = code.split(f"\n{launch.symbol}:")[1].split(".Lfunc_end")[0]
    units = set(re.findall(r"v_wmma_\w+", body))
    assert units == {f"v_wmma_f32_16x16x16_{'f16' if x == 'f16' else 'bf16'}"}
    step = re.search(r"\n(\.LBB\d+_\d+):(.*?)s_cbranch_\w+ \1\n", body, re.S)
    assert step and step[2].count("s_barrier") == BARRIERS[x]
    assert "scratch_" not in body
