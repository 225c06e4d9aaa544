"""How the matmul kernels read weights: every code with every scale. Rows of the identity give the weights themselves
back, exactly."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest
from kernel_tolerances import RELATIVE_L2
from quantized_weights import CASES, REALS, Case

from strixhlo.custom_kernels.cpu.direct import run_launches
from strixhlo.custom_kernels.cpu.launches import quantized_matmul_launches
from strixhlo.custom_kernels.ops.bit_stream import pack_stream
from strixhlo.custom_kernels.ops.formats_affine import BITS

E2M1, E4M3, E8M0 = ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu


def floats(bits: np.ndarray, dtype: type) -> np.ndarray:
    return bits.astype(np.uint8).view(dtype).astype(np.float64)


def weights_read(kernels: ctypes.CDLL, case: Case, parts: dict[str, np.ndarray], n: int, k: int, m: int) -> np.ndarray:
    """float32 [n, k]: what the kernel for m rows multiplies by."""
    columns = []
    for first in range(0, k, m):
        x = np.zeros((m, k), np.float32)
        x[np.arange(m), (first + np.arange(m)) % k] = 1
        buffers = {"x": x, **parts, "y": np.full((m, n), np.nan, np.float32)}
        run_launches(kernels, quantized_matmul_launches(case.format, m, n, k, False, case.dtypes), buffers)
        columns.append(buffers["y"])
    return np.concatenate(columns)[:k].T


def same(read: np.ndarray, exact: np.ndarray) -> None:
    """Equal as float32; rows with an infinity give NaN in the identity's other columns and are left out."""
    with np.errstate(over="ignore"):
        expected = exact.astype(np.float32)
    rows = ~np.isinf(expected).any(axis=1)
    assert rows.sum() > 0.9 * len(rows)
    np.testing.assert_array_equal(read[rows], expected[rows])


@pytest.mark.parametrize("m", [1, 8, 32])
def test_e2m1_of_every_code_with_every_scale(kernels: ctypes.CDLL, m: int) -> None:
    codes = np.tile(np.arange(16), (256, 2))
    codes[:, 16:] = np.roll(codes[:, 16:], 3, axis=1)
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8).view(np.int8)
    scale = np.arange(256, dtype=np.uint8).reshape(256, 1)
    parts = {"codes": packed, "scale": scale.view(np.int8)}
    same(weights_read(kernels, CASES["mxfp4"], parts, 256, 32, m), floats(codes, E2M1) * floats(scale, E8M0))
    both = np.concatenate([scale, scale[::-1]], axis=1)
    for g in (1.0, 0.00731):
        parts = {"codes": packed, "scale": both.view(np.int8), "global_scale": np.array([g], np.float32)}
        group = (floats(both, E4M3).astype(np.float32) * np.float32(g)).astype(np.float64)
        exact = floats(codes, E2M1) * np.repeat(group, 16, axis=1)
        exact[np.isnan(exact).any(axis=1)] = np.nan  # one NaN in a row reaches all of its sums
        same(weights_read(kernels, CASES["nvfp4"], parts, 256, 32, m), exact)


@pytest.mark.parametrize("m", [1, 8, 32])
def test_e4m3_of_every_code_with_every_scale(kernels: ctypes.CDLL, m: int) -> None:
    codes = np.arange(256, dtype=np.uint8)
    rows = np.repeat(codes.reshape(256, 1), 32, axis=1)  # one code a row: NaN stays in its row
    scale = np.full((256, 1), 0.37, np.float32)
    scale[::7] = -3e-5
    exact = floats(rows, E4M3) * scale.astype(np.float64)
    same(weights_read(kernels, CASES["fp8_channel"], {"codes": rows.view(np.int8), "scale": scale}, 256, 32, m), exact)
    finite = np.tile(codes[codes & 127 != 127][:224].reshape(7, 32), (256, 1))
    powers = np.repeat(codes, 7).reshape(-1, 1)
    parts = {"codes": finite.view(np.int8), "scale": powers.view(np.int8)}
    exact = floats(finite, E4M3) * floats(powers, E8M0)
    same(weights_read(kernels, CASES["mxfp8"], parts, len(finite), 32, m), exact)


@pytest.mark.parametrize("name", ["fp8_tensor", "fp8_channel", "fp8_block128"])
def test_scales_of_fp8_blocks(kernels: ctypes.CDLL, name: str) -> None:
    """A NaN in one scale is a NaN in its rows, and nowhere else; the last block is cut in both directions."""
    n, k = 260, 288
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 127, (n, k)).astype(np.uint8)
    rows, columns = {"fp8_tensor": (n, k), "fp8_channel": (1, k), "fp8_block128": (128, 128)}[name]
    scale = rng.standard_normal((-(-n // rows), -(-k // columns))).astype(np.float32)
    if name != "fp8_tensor":
        scale[1, -1] = np.nan
    exact = floats(codes, E4M3) * np.kron(scale, np.ones((rows, columns)))[:n, :k]
    exact[np.isnan(exact).any(axis=1)] = np.nan
    found = weights_read(kernels, CASES[name], {"codes": codes.view(np.int8), "scale": scale}, n, k, 8)
    np.testing.assert_array_equal(found, exact.astype(np.float32))
    assert np.isnan(found).any(axis=1).sum() == {"fp8_tensor": 0, "fp8_channel": 1, "fp8_block128": 128}[name]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("m", [1, 8, 32])
def test_streams_of_every_code_at_every_place(kernels: ctypes.CDLL, bits: int, m: int) -> None:
    n, k = max(32, 1 << bits), 128
    codes = (np.arange(n)[:, None] + np.arange(k)) % (1 << bits)
    for group, dtype in ((32, "f32"), (64, "f16"), (128, "bf16")):
        rng = np.random.default_rng(group)
        scale, bias = (  # values that leave code * scale + bias exact in float32
            rng.integers(-64, 65, (n, k // group)).astype(REALS[dtype]) * REALS[dtype].type(2.0**-8) for _ in range(2)
        )
        case = Case(f"affine{bits}_g{group}", dtype, dtype)
        parts = {"codes": pack_stream(codes, bits), "scale": scale, "bias": bias}
        exact = codes * np.repeat(scale, group, 1).astype(np.float64) + np.repeat(bias, group, 1).astype(np.float64)
        np.testing.assert_array_equal(weights_read(kernels, case, parts, n, k, m), exact)


@pytest.mark.parametrize("bits", BITS)
def test_affine_extremes_with_8_bit_activations(kernels: ctypes.CDLL, bits: int) -> None:
    """The largest codes and activations, scales of both signs at the ends of float16: nothing saturates."""
    n, k = 5, 1152
    codes = np.full((n, k), (1 << bits) - 1)
    codes[1], codes[2, ::3] = 0, 0
    for scale in (65504.0, -65504.0, 6e-8):
        parts = {
            "codes": pack_stream(codes, bits),
            "scale": np.full((n, k // 128), scale, np.float16),
            "bias": np.full((n, k // 128), -scale / 3, np.float16),
        }
        case = Case(f"affine{bits}_g128", "f16", "f16")
        weights = codes * parts["scale"][0, 0].astype(np.float64) + parts["bias"][0, 0].astype(np.float64)
        for m in (2, 16):
            x = np.full((m, k), 127.0, np.float32)
            x[1, ::5] = -127.0
            buffers = {"x": x, **parts, "y": np.full((m, n), np.nan, np.float32)}
            run_launches(kernels, quantized_matmul_launches(case.format, m, n, k, True, case.dtypes), buffers)
            want = x.astype(np.float64) @ weights.T
            assert np.linalg.norm(buffers["y"] - want) < RELATIVE_L2["f32"] * np.linalg.norm(want), (scale, m)


@pytest.mark.parametrize("m", [1, 7, 16])
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_nan_scales_with_8_bit_activations(kernels: ctypes.CDLL, name: str, m: int) -> None:
    """A row of the weight with a NaN scale is NaN in every result, and no other row is."""
    n, k = 19, 96
    rng = np.random.default_rng(m)
    scale = rng.integers(100, 120, (n, k // (32 if name == "mxfp4" else 16))).astype(np.uint8)
    scale[11, -1] = 255
    parts = {"codes": rng.integers(-128, 128, (n, k // 2)).astype(np.int8), "scale": scale.view(np.int8)}
    parts |= {"global_scale": np.ones(1, np.float32)} if name == "nvfp4" else {}
    buffers = {"x": rng.standard_normal((m, k)).astype(np.float32), **parts, "y": np.zeros((m, n), np.float32)}
    run_launches(kernels, quantized_matmul_launches(name, m, n, k, True, {}), buffers)
    np.testing.assert_array_equal(np.isnan(buffers["y"]), np.arange(n)[None].repeat(m, 0) == 11)
