"""Matmuls of 9 to 16 rows as NVIDIA's GPUs do them (register_gemm.h) against their definition."""

from __future__ import annotations

from dataclasses import replace

import fused_matmul_cases
import jax.numpy as jnp
import numpy as np
import pytest
from cuda_kit.recording import NVIDIA
from extreme_weights import DTYPES, random_parts, split
from fused_matmul_cases import TYPES, operands_of
from kernel_tolerances import assert_near

from strixhlo.custom_kernels.gpu.fused_launches import fused_matmul
from strixhlo.custom_kernels.gpu.gemm_tiles import REGISTER_TILES
from strixhlo.custom_kernels.gpu.launches import H200, quantized_matmul_launches
from strixhlo.custom_kernels.ops.formats import dequantize
from strixhlo.custom_kernels.ops.fused_matmul import reference

# Of each way in which codes, and in which scales, are found; test_rows.py has q4_0.
NAMES = ("q8_0", "q4_k", "q5_k", "q6_k", "q3_k", "mxfp4", "nvfp4", "mxfp8", "fp8_channel")
AFFINE = ("affine4_g64_bf16_bf16", "affine5_g64_bf16_bf16", "affine8_g64_bf16_bf16")
CASES = [(name, "bf16") for name in (*NAMES, *AFFINE)]
CASES += [("mxfp4", "f32"), ("q4_1", "f32"), ("nvfp4", "f16"), ("affine8_g64_bf16_bf16", "f16")]
ACTIVATIONS = {"x", "residual"}
on_nvidia = pytest.mark.parametrize("machine", NVIDIA, indirect=True)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.int16) if array.dtype == DTYPES["bf16"] else array


@on_nvidia
@pytest.mark.parametrize(("name", "x"), CASES)
def test_against_the_definition(run_launches, name, x):
    """Six stripes, the last one not whole, for one workgroup in rounds, and for several; extreme and subnormal scales."""
    (fmt, dtypes), n, k = split(name), 83, 1280
    parts = random_parts(name, n, k, seed=9)
    weight = np.asarray(dequantize(fmt, parts)).astype(np.float64)
    given = np.random.default_rng(9).standard_normal((16, k))
    given *= 2.0 ** np.random.default_rng(8).integers(-20, 1, (16, 1))
    if x == "f16":  # results within its range
        given *= 2.0 ** np.floor(np.log2(6e3 / np.linalg.norm(weight, axis=1).max()))
    given = given.astype(DTYPES[x])
    exact = given.astype(np.float64) @ weight.T
    for m, workgroups in ((9, 1), (16, 4)):
        (launch,) = quantized_matmul_launches(fmt, m, n, k, dtypes, H200, x)
        assert f"_m{REGISTER_TILES[x].name}" in launch.symbol
        buffers = {"x": bits(given[:m]), **{p: bits(v) for p, v in parts.items()}}
        y = run_launches((replace(launch, workgroups=workgroups),), buffers)["y"]
        assert_near(y.view(DTYPES[x]), exact[:m], x)


@on_nvidia
@pytest.mark.parametrize("x", ["bf16", "f32"])
@pytest.mark.parametrize("case", ["q, k, v", "residual", "gated"])
def test_fused(run_launches, monkeypatch, case, x):
    """Stripes of several tensors, in one workgroup too; biases, activation and residual."""
    monkeypatch.setattr(fused_matmul_cases, "K", 256)
    attributes, operands = operands_of(case, 12)
    for name in ACTIVATIONS & set(operands):
        operands[name] = operands[name].astype(DTYPES[x])
    lowering = fused_matmul(H200, attributes, [(a.shape, TYPES[str(a.dtype)]) for a in operands.values()])
    assert lowering and f"_m{REGISTER_TILES[x].name}" in lowering.launches[-1].symbol
    exact = {n: jnp.asarray(a, jnp.float32) if n in ACTIVATIONS else jnp.asarray(a) for n, a in operands.items()}
    want = np.asarray(reference(*exact.values(), **attributes))
    for last in (lowering.launches[-1], replace(lowering.launches[-1], workgroups=2)):
        values = run_launches((*lowering.launches[:-1], last), {name: bits(a) for name, a in operands.items()})
        assert_near(values["y"].view(DTYPES[x]), want, x)
