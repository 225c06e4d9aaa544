"""The GPU kernels of formats whose codes are streams (streams.h) against their definition."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from extreme_weights import random_parts, split
from gfx1151_sim.kernel_machine import AFFINE, TESTED, relatives
from kernel_tolerances import RELATIVE_L2

from strixhlo.custom_kernels.gpu.launches import quantized_matmul_launches
from strixhlo.custom_kernels.ops.formats import dequantize
from strixhlo.custom_kernels.ops.formats_float import FLOAT_FORMATS
from strixhlo.custom_kernels.ops.formats_gguf import GgufFormat

ROWS = (1, 2, 3, 8, 9, 70)
NAMES = (*FLOAT_FORMATS, "q2_k", "q3_k", *AFFINE)


@pytest.mark.parametrize("name", NAMES)
def test_quantized_matmul(run_launches, name):
    fmt, dtypes = split(name)
    n, k = 35, 768 if isinstance(fmt, GgufFormat) else 384
    launched = set()
    for m in ROWS:
        parts = random_parts(name, n, k, seed=m)
        weight = np.asarray(dequantize(fmt, parts)).astype(np.float64)
        x = np.random.default_rng(m).standard_normal((m, k), np.float32)
        launches = quantized_matmul_launches(fmt, m, n, k, dtypes)
        y = run_launches(launches, {"x": x, **parts})["y"]
        bound = np.abs(x).astype(np.float64) @ np.abs(weight).T * (2e-6 if m <= 8 else 6e-6) + 1e-30
        exact = x.astype(np.float64) @ weight.T
        assert (np.abs(y - exact) <= bound).all(), m
        assert np.linalg.norm(y - exact) <= RELATIVE_L2["f32"] * np.linalg.norm(exact), m
        launched |= {launch.symbol for launch in launches}
    assert launched == {symbol for symbol in TESTED if relatives(symbol) == name}


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "mxfp8", "affine3_g64_bf16_bf16"])
def test_few_rows_do_not_depend_on_each_other(run_launches, name):
    fmt, dtypes = split(name)
    n, k = 33, 512
    parts = random_parts(name, n, k, seed=7)
    x = np.random.default_rng(7).standard_normal((8, k), np.float32)
    together = run_launches(quantized_matmul_launches(fmt, 8, n, k, dtypes), {"x": x, **parts})["y"]
    for m in (1, 3):
        alone = run_launches(quantized_matmul_launches(fmt, m, n, k, dtypes), {"x": x[:m], **parts})["y"]
        assert alone.tobytes() == together[:m].tobytes()


@pytest.mark.parametrize("m", [1, 9])
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "mxfp8", "fp8_tensor"])
def test_every_code_and_scale(run_launches, name, m):
    """One weight a row is not zero, so that y is that weight: all codes, then all scales with one code, exactly."""
    fmt = FLOAT_FORMATS[name]
    n, k = 512, 32
    codes = np.arange(n, dtype=np.uint8) if fmt.bits == 8 else np.arange(n, dtype=np.uint8) & 15
    element = codes.view(ml_dtypes.float8_e4m3fn) if fmt.bits == 8 else codes.view(ml_dtypes.float4_e2m1fn)
    values = element.astype(np.float64)
    stored = np.zeros((n, k), np.uint8)
    stored[np.arange(n), np.arange(n) % k] = codes
    if fmt.bits == 4:
        stored = stored[:, 0::2] | (stored[:, 1::2] << 4)
    scale_bits = np.repeat(np.arange(n) // 2, 1).astype(np.uint8)
    shape = fmt.parts(n, k)["scale"][0]
    parts = {"codes": stored.view(np.int8), "scale": np.full(shape, 2.0**-7, np.float32)}
    factor = np.full(n, 2.0**-7)
    if fmt.scale != "f32":
        kind = ml_dtypes.float8_e8m0fnu if fmt.scale == "e8m0" else ml_dtypes.float8_e4m3fn
        factor = scale_bits.view(kind).astype(np.float64)
        parts["scale"] = np.repeat(scale_bits.reshape(n, 1), shape[1], axis=1).view(np.int8)
    if name == "nvfp4":
        parts["global_scale"] = np.float32([0.25])
        factor = factor * 0.25
    x = np.full((m, k), 1.0, np.float32)
    y = run_launches(quantized_matmul_launches(fmt, m, n, k), {"x": x, **parts})["y"]
    with np.errstate(over="ignore"):
        expected = (values * factor).astype(np.float32)
    if fmt.bits == 8 or name == "nvfp4":
        assert np.isnan(expected).any()
    assert np.array_equal(y, np.broadcast_to(expected, y.shape), equal_nan=True)
