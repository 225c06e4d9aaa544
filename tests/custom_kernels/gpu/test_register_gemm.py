"""Matmuls of 9 to 16 rows as NVIDIA's GPUs do them (register_gemm.h) against their definition."""

from __future__ import annotations

import fused_matmul_cases
import jax.numpy as jnp
import numpy as np
import pytest
from cuda_kit.recording import NVIDIA
from extreme_weights import DTYPES, random_parts, split
from fused_matmul_cases import TYPES, operands_of
from kernel_tolerances import assert_near
from one_tile import chip

from strixhlo.custom_kernels.gpu.fused_launches import fused_matmul
from strixhlo.custom_kernels.gpu.launches import quantized_matmul_launches
from strixhlo.custom_kernels.ops.formats import dequantize
from strixhlo.custom_kernels.ops.fused_matmul import reference

# Of each way in which codes, and in which scales, are found; test_rows.py has q4_0.
NAMES = ("q8_0", "q4_k", "q5_k", "q6_k", "q3_k", "mxfp4", "nvfp4", "mxfp8", "fp8_channel")
AFFINE = ("affine4_g64_bf16_bf16", "affine5_g64_bf16_bf16", "affine8_g64_bf16_bf16")
CASES = [(name, "bf16") for name in (*NAMES, *AFFINE)]
CASES += [("mxfp4", "f32"), ("q4_1", "f32"), ("nvfp4", "f16"), ("affine8_g64_bf16_bf16", "f16")]
CASES += [("mxfp8", "f32"), ("fp8_tensor", "bf16"), ("affine4_g32_bf16_bf16", "bf16"), ("affine4_g128_f16_f16", "bf16")]
TILES = {("q4_k", "bf16"): "16r7x12", ("nvfp4", "bf16"): "16r7x12", ("affine8_g64_bf16_bf16", "bf16"): "16r7x8"}
TILES |= {
    ("mxfp4", "bf16"): "16r7x8",
    ("fp8_tensor", "bf16"): "16r7x8",
    ("q6_k", "bf16"): "16r7x8",
    ("mxfp8", "f32"): "16r7x8",
}
LONG = {"mxfp4": 1280, "affine8_g64_bf16_bf16": 1664, "q8_0": 1152, "q4_k": 1280, "q6_k": 1280, "mxfp8": 1152}
ACTIVATIONS = {"x", "residual"}


on_nvidia = pytest.mark.parametrize("machine", NVIDIA, indirect=True)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.int16) if array.dtype == DTYPES["bf16"] else array


@on_nvidia
@pytest.mark.parametrize(("name", "x"), CASES)
def test_against_the_definition(run_launches, name, x):
    """Stripes that are not whole; extreme and subnormal scales. Of LONG rows some waves have several pieces, and the
    second workgroup begins within the row."""
    (fmt, dtypes), n, k = split(name), 131 if name in LONG else 67, LONG.get(name, 512)
    parts = random_parts(name, n, k, seed=9)
    weight = np.asarray(dequantize(fmt, parts)).astype(np.float64)
    given = np.random.default_rng(9).standard_normal((16, k))
    given *= 2.0 ** np.random.default_rng(8).integers(-20, 1, (16, 1))
    if x == "f16":  # results within its range
        given *= 2.0 ** np.floor(np.log2(6e3 / np.linalg.norm(weight, axis=1).max()))
    given = given.astype(DTYPES[x])
    exact = given.astype(np.float64) @ weight.T
    tile = TILES.get((name, x), "16r3x12" if x == "f32" else "16r4x8")
    for m in (9, 16):
        launches = quantized_matmul_launches(fmt, m, n, k, dtypes, chip(tile), x)
        assert f"_m{tile}" in launches[0].symbol
        y = run_launches(launches, {"x": bits(given[:m]), **{p: bits(v) for p, v in parts.items()}})["y"]
        assert_near(y.view(DTYPES[x]), exact[:m], x)


@on_nvidia
@pytest.mark.parametrize("x", ["bf16", "f32"])
@pytest.mark.parametrize("case", ["q, k, v", "residual", "gated"])
def test_fused(run_launches, monkeypatch, case, x):
    """Several tensors; biases, activation and residual."""
    monkeypatch.setattr(fused_matmul_cases, "K", 256)
    attributes, operands = operands_of(case, 12)
    for name in ACTIVATIONS & set(operands):
        operands[name] = operands[name].astype(DTYPES[x])
    tile = "16r7x8" if case == "gated" else "16r2x12" if x == "f32" else "16r2x8"
    lowering = fused_matmul(chip(tile), attributes, [(a.shape, TYPES[str(a.dtype)]) for a in operands.values()])
    assert lowering and f"_m{tile}" in lowering.launches[-1].symbol
    exact = {n: jnp.asarray(a, jnp.float32) if n in ACTIVATIONS else jnp.asarray(a) for n, a in operands.items()}
    want = np.asarray(reference(*exact.values(), **attributes))
    values = run_launches(lowering.launches, {name: bits(a) for name, a in operands.items()})
    assert_near(values["y"].view(DTYPES[x]), want, x)
