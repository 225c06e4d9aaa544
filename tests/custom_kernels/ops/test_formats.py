"""The reference decoders against ml_dtypes and MLX, over all bit patterns."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from strixhlo.custom_kernels.ops.bit_stream import pack_stream, unpack_stream
from strixhlo.custom_kernels.ops.formats import FORMATS, dequantize, dequantize_rows
from strixhlo.custom_kernels.ops.formats_affine import BITS, GROUPS
from strixhlo.custom_kernels.ops.formats_float import decode_e2m1, decode_e4m3
from strixhlo.custom_kernels.ops.quantized_matmul import quantized_matmul


def floats(bits: np.ndarray, dtype: type) -> np.ndarray:
    """uint8 bit patterns -> float64 values."""
    return bits.astype(np.uint8).view(dtype).astype(np.float64)


def same(ours: np.ndarray, exact: np.ndarray) -> None:
    """Equal, NaN for NaN and zeros by sign; what is subnormal in float32 may be zero (XLA flushes)."""
    ours = np.asarray(ours)
    expected = exact.astype(np.float32)
    flushed = (np.abs(exact) < np.finfo(np.float32).tiny) & (ours == 0)
    assert np.array_equal(np.where(flushed, 0, ours), np.where(flushed, 0, expected), equal_nan=True)
    assert np.array_equal(np.signbit(ours) & ~np.isnan(exact), np.signbit(exact) & ~np.isnan(exact))


def test_all_e2m1_and_all_e4m3_codes() -> None:
    same(decode_e2m1(jnp.arange(16)), floats(np.arange(16), ml_dtypes.float4_e2m1fn))
    exact = floats(np.arange(256), ml_dtypes.float8_e4m3fn)
    assert np.isnan(exact[[127, 255]]).all() and np.isnan(exact).sum() == 2
    same(decode_e4m3(jnp.arange(256)), exact)


def test_mxfp4_of_every_code_with_every_scale() -> None:
    codes = np.tile(np.arange(16, dtype=np.uint8), 2)  # one block: each code in a low and in a high nibble
    packed = np.tile(codes[0::2] | (codes[1::2] << 4), (256, 1)).view(np.int8)
    packed[:, 8:] = np.roll(packed[:, 8:], 3, axis=1)
    unpacked = np.stack([packed.view(np.uint8) & 15, packed.view(np.uint8) >> 4], -1).reshape(256, 32)
    scale = np.arange(256, dtype=np.uint8).reshape(256, 1)
    ours = dequantize(FORMATS["mxfp4"], {"codes": jnp.asarray(packed), "scale": jnp.asarray(scale.view(np.int8))})
    powers = floats(scale, ml_dtypes.float8_e8m0fnu)
    assert np.isnan(powers[255]) and powers[0] == 2.0**-127
    with np.errstate(over="ignore"):
        same(ours, floats(unpacked, ml_dtypes.float4_e2m1fn) * powers)


def test_mxfp8_of_every_code_with_every_scale() -> None:
    codes = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    scale = np.tile(np.arange(256, dtype=np.uint8).reshape(256, 1), (1, 8))
    ours = dequantize(FORMATS["mxfp8"], {"codes": codes.view(np.int8), "scale": scale.view(np.int8)})
    with np.errstate(over="ignore"):
        same(
            ours,
            floats(codes, ml_dtypes.float8_e4m3fn) * np.repeat(floats(scale, ml_dtypes.float8_e8m0fnu), 32, axis=1),
        )


def test_nvfp4_of_every_code_with_every_scale() -> None:
    packed = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    unpacked = np.stack([packed & 15, packed >> 4], -1).reshape(256, 512)
    scale = np.tile(np.arange(256, dtype=np.uint8).reshape(256, 1), (1, 32))
    g = np.array([0.00731], np.float32)
    parts = {"codes": packed.view(np.int8), "scale": scale.view(np.int8), "global_scale": g}
    of_group = (floats(scale, ml_dtypes.float8_e4m3fn).astype(np.float32) * g).astype(np.float64)
    same(
        dequantize(FORMATS["nvfp4"], parts),
        floats(unpacked, ml_dtypes.float4_e2m1fn) * np.repeat(of_group, 16, axis=1),
    )


@pytest.mark.parametrize("name", ["fp8_tensor", "fp8_channel", "fp8_block128"])
def test_fp8_scales(name: str) -> None:
    n, k = 133, 288
    fmt = FORMATS[name]
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (n, k), dtype=np.uint8)
    scale = rng.standard_normal(fmt.parts(n, k)["scale"][0]).astype(np.float32)
    wide = {"fp8_tensor": (n, k), "fp8_channel": (1, k), "fp8_block128": (128, 128)}[name]
    per_weight = np.kron(scale, np.ones(wide, np.float32))[:n, :k].astype(np.float64)
    same(
        dequantize(fmt, {"codes": codes.view(np.int8), "scale": scale}),
        floats(codes, ml_dtypes.float8_e4m3fn) * per_weight,
    )


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_weights_that_mlx_quantized(mode: str) -> None:
    weight = mx.array(np.random.default_rng(1).standard_normal((8, 128)).astype(np.float32))
    codes, scale = mx.quantize(weight, mode=mode)
    parts = {"codes": np.array(codes).view(np.int8), "scale": np.array(scale).view(np.int8)}
    if mode == "nvfp4":
        parts["global_scale"] = np.ones(1, np.float32)
    expected = np.array(mx.dequantize(codes, scale, mode=mode, dtype=mx.float32))
    same(dequantize(FORMATS[mode], parts), expected)


@pytest.mark.parametrize("bits", BITS)
def test_affine_weights_that_mlx_quantized(bits: int) -> None:
    for group, dtype in zip(GROUPS, (mx.float32, mx.float16, mx.bfloat16), strict=True):
        weight = mx.array(np.random.default_rng(bits).standard_normal((5, 384)).astype(np.float32)).astype(dtype)
        codes, scale, bias = mx.quantize(weight, group_size=group, bits=bits)
        fmt = FORMATS[f"affine{bits}_g{group}"]
        expected = np.array(
            mx.dequantize(codes, scale.astype(mx.float32), bias.astype(mx.float32), group_size=group, bits=bits)
        )
        as_stored = np.float16 if dtype == mx.float16 else ml_dtypes.bfloat16 if dtype == mx.bfloat16 else np.float32
        parts = {
            "codes": np.array(codes).view(np.int32),
            "scale": np.array(scale.astype(mx.float32)).astype(as_stored),
            "bias": np.array(bias.astype(mx.float32)).astype(as_stored),
        }
        assert {p: v.shape for p, v in parts.items()} == {p: shape for p, (shape, _) in fmt.parts(5, 384).items()}
        np.testing.assert_allclose(dequantize(fmt, parts), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_streams_of_bits(bits: int) -> None:
    """Any words unpack and pack to themselves, and the first code is in the lowest bits."""
    rng = np.random.default_rng(bits)
    words = rng.integers(-(2**31), 2**31, (6, 8 * bits), np.int64).astype(np.int32)
    words[0] = -1
    codes = np.asarray(unpack_stream(jnp.asarray(words), bits))
    whole = [int.from_bytes(row.tobytes(), "little") for row in words]
    assert all(codes[r, c] == (whole[r] >> (bits * c)) % 2**bits for r in range(6) for c in range(256))
    assert np.array_equal(pack_stream(codes, bits), words)


def random_parts(name: str, n: int, k: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    made = {}
    for part, (shape, dtype) in FORMATS[name].parts(n, k).items():
        if dtype.kind == "f":
            made[part] = rng.standard_normal(shape).astype(dtype)
        else:
            made[part] = rng.integers(-(2 ** (8 * dtype.itemsize - 1)), 2 ** (8 * dtype.itemsize - 1), shape).astype(
                dtype
            )
    return made


@pytest.mark.parametrize("name", FORMATS)
def test_taken_rows_are_rows_of_the_weight(name: str) -> None:
    n, k = 140, 512
    parts = {p: jnp.asarray(v) for p, v in random_parts(name, n, k).items()}
    rows = jnp.array([139, 0, 127, 128, 5, 5, 1000, 64], jnp.int32)
    whole = np.asarray(dequantize(FORMATS[name], parts))
    taken = np.asarray(dequantize_rows(FORMATS[name], parts, rows))
    assert np.array_equal(taken, whole[np.minimum(np.asarray(rows), n - 1)], equal_nan=True)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "fp8_block128", "affine3_g32", "q2_k"])
def test_the_matmul_of_the_reference(name: str) -> None:
    parts = random_parts(name, 9, 256)
    if name in ("mxfp4",):
        parts["scale"] = np.full_like(parts["scale"], 120)
    x = np.random.default_rng(3).standard_normal((2, 256)).astype(np.float32)
    weight = np.asarray(dequantize(FORMATS[name], parts)).astype(np.float64)
    y = quantized_matmul(x, {p: jnp.asarray(v) for p, v in parts.items()}, name)
    np.testing.assert_allclose(y, x @ weight.T, rtol=2e-5, atol=2e-5 * np.nanmax(np.abs(weight)))


@pytest.mark.parametrize("name", FORMATS)
def test_columns_that_no_weight_has_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        FORMATS[name].parts(4, 48)
