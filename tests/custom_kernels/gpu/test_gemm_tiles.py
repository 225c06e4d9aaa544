"""Matmuls of many rows as NVIDIA's GPUs do them (fragment_gemm.h) against their definition."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from cuda_kit.recording import NVIDIA
from extreme_weights import DTYPES, random_parts, split
from fused_matmul_cases import CASES as FUSED
from fused_matmul_cases import TYPES, operands_of
from gfx1151_sim.kernel_machine import AFFINE
from kernel_tolerances import RELATIVE_L2
from one_tile import chip

from strixhlo.custom_kernels.gpu.fused_launches import fused_matmul
from strixhlo.custom_kernels.gpu.gemm_tiles import TILES
from strixhlo.custom_kernels.gpu.kernels import DENSE
from strixhlo.custom_kernels.gpu.launches import dense_matmul_launches, quantized_matmul_launches
from strixhlo.custom_kernels.ops.formats import FORMATS, dequantize
from strixhlo.custom_kernels.ops.formats_affine import AFFINE_FORMATS
from strixhlo.custom_kernels.ops.formats_float import FLOAT_FORMATS
from strixhlo.custom_kernels.ops.fused_matmul import reference

NAMES = (*(name for name in FORMATS if name not in AFFINE_FORMATS), *AFFINE)
# Of float16 and float32 some of each kind: how x is split knows no format.
ALSO = {
    "f16": ("q4_0", "nvfp4", "affine5_g32_f32_f32"),
    "f32": (*FLOAT_FORMATS, "q4_k", "q6_k", "q3_k", "affine3_g64_bf16_bf16", "affine8_g64_f16_f16"),
}
EVERY = [(name, "bf16") for name in NAMES] + [(name, x) for x, names in ALSO.items() for name in names]
ACTIVATIONS = {"x", "residual", "base"}
on_nvidia = pytest.mark.parametrize("machine", NVIDIA, indirect=True)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.int16) if array.dtype == ml_dtypes.bfloat16 else array


def result(y: np.ndarray, x: str) -> np.ndarray:
    return y.view(DTYPES[x]).astype(np.float64)


def assert_close(y: np.ndarray, want: np.ndarray, x: str) -> None:
    assert np.isfinite(y).all()
    assert np.linalg.norm(y - want) <= RELATIVE_L2[x] * np.linalg.norm(want)


@on_nvidia
@pytest.mark.parametrize(("name", "x"), EVERY)
def test_every_format(run_launches, name, x):
    """Columns that are no multiple of a block, rows that are none of a tile, extreme and subnormal scales."""
    (fmt, dtypes), n = split(name), 35
    k = 768 if "_k" in name else 384 if name.startswith("affine") else 416
    for m in (9,) if x == "f16" else (9, 17):
        parts = random_parts(name, n, k, seed=m)
        weight = np.asarray(dequantize(fmt, parts)).astype(np.float64)
        given = np.random.default_rng(m).standard_normal((m, k))
        if x == "f16":  # results within its range
            given *= 2.0 ** np.floor(np.log2(6e3 / np.linalg.norm(weight, axis=1).max()))
        given = given.astype(DTYPES[x])
        launches = quantized_matmul_launches(fmt, m, n, k, dtypes, chip("16x2x4"), x)
        y = run_launches(launches, {"x": bits(given), **{p: bits(v) for p, v in parts.items()}})["y"]
        assert_close(result(y, x), given.astype(np.float64) @ weight.T, x)


@on_nvidia
@pytest.mark.parametrize("x", TILES)
@pytest.mark.parametrize("dtype", DENSE)
def test_dense(run_launches, dtype, x):
    n, k, rng = 67, 136, np.random.default_rng(1)
    weight = (rng.standard_normal((n, k)) * 3.0 ** rng.integers(-9, 2, (n, 1))).astype(DTYPES[dtype])
    given = rng.standard_normal((17, k)).astype(DTYPES[x])
    launches = dense_matmul_launches(dtype, 17, n, k, chip("16x2x4"), x)
    y = run_launches(launches, {"x": bits(given), "w": bits(weight)})["y"]
    assert_close(result(y, x), given.astype(np.float64) @ weight.astype(np.float64).T, x)


@on_nvidia
@pytest.mark.parametrize("m", [16, 127, 128])
@pytest.mark.parametrize("x", TILES)
def test_every_tile(run_launches, x, m):
    rng = np.random.default_rng(m)
    for tile in TILES[x][1:]:
        if tile.rows == 32 and m > 16:
            continue
        name = "affine4_g64_bf16_bf16" if tile.name == "64x4x2" else "q4_0"
        (fmt, dtypes), n, k = split(name), 41, 320
        parts = random_parts(name, n, k, seed=m)
        for part in {"scale", "bias"} & set(parts):
            parts[part] = rng.standard_normal(parts[part].shape).astype(parts[part].dtype)
        given = rng.standard_normal((m, k)).astype(DTYPES[x])
        launches = quantized_matmul_launches(fmt, m, n, k, dtypes, chip(tile.name), x)
        assert launches[0].symbol.startswith(f"strixhlo_fused_gemm_{name}_1_m{tile.name}")
        y = run_launches(launches, {"x": bits(given), **{p: bits(v) for p, v in parts.items()}})["y"]
        weight = np.asarray(dequantize(fmt, parts)).astype(np.float64)
        assert_close(result(y, x), given.astype(np.float64) @ weight.T, x)


@on_nvidia
@pytest.mark.parametrize("x", TILES)
def test_what_is_not_finite_stays_in_its_row(run_launches, x):
    """NaN and infinity of x, and of scales: the rows and columns of the result that they belong to, and no other."""
    fmt, m, n, k, rng = FORMATS["q4_0"], 9, 35, 416, np.random.default_rng(3)
    parts = {p: np.ones(s, t) for p, (s, t) in fmt.parts(n, k).items()}
    parts["codes"][:] = rng.integers(-(2**31), 2**31, parts["codes"].shape)
    given = rng.standard_normal((m, k)).astype(DTYPES[x])
    given[2, 5], given[4, k - 1], given[6, 100] = np.nan, np.inf, -np.inf
    parts["scale"][7, 0], parts["scale"][20, -1] = np.nan, np.inf
    launches = quantized_matmul_launches(fmt, m, n, k, (), chip("16x2x4"), x)
    y = result(run_launches(launches, {"x": bits(given), **parts})["y"], x)
    spoilt = np.zeros((m, n), bool)
    spoilt[[2, 4, 6]] = spoilt[:, [7, 20]] = True
    assert np.isnan(y[2]).all() and np.isnan(y[:, 7]).all()
    assert not np.isfinite(y[spoilt]).any()
    with np.errstate(invalid="ignore"):
        want = given.astype(np.float64) @ np.asarray(dequantize(fmt, parts)).astype(np.float64).T
    assert_close(y[~spoilt], want[~spoilt], x)


@on_nvidia
@pytest.mark.parametrize("x", ["bf16", "f32"])
@pytest.mark.parametrize("case", FUSED)
def test_fused(run_launches, case, x):
    """Norm, biases, activation and residual around tiles: one launch and one for the norm, where formats agree."""
    m = 17
    attributes, operands = operands_of(case, m)
    for name in ACTIVATIONS & set(operands):
        operands[name] = operands[name].astype(DTYPES[x])
    lowering = fused_matmul(chip("16x2x4"), attributes, [(a.shape, TYPES[str(a.dtype)]) for a in operands.values()])
    assert lowering
    formats = {*FUSED[case][0]}
    if (x, formats) != ("f32", {"f32"}):
        before = attributes["normed"] + ("summed" in attributes)
        assert len(lowering.launches) == before + len(formats) + (case == "gated, of two formats")
    values = run_launches(lowering.launches, {name: bits(a) for name, a in operands.items()})
    exact = {n: jnp.asarray(a, jnp.float32) if n in ACTIVATIONS else jnp.asarray(a) for n, a in operands.items()}
    wanted = reference(*exact.values(), **attributes)
    for name, want in zip(lowering.results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert_close(result(values[name], x), np.asarray(want, np.float64), x)
