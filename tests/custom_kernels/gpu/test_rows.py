"""Matmuls of every number of rows at which a kernel ends or begins, with every type of activations.

What differs between formats is how a weight becomes numbers, in functions that know no rows; every format is tested
at a few numbers of rows elsewhere (test_kernels.py, test_stream_formats.py, test_gemm_tiles.py). So here one of them
has the rules of both chips on the host, and an NVIDIA GPU gets all.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuda_kit.recording import NVIDIA
from extreme_weights import random_parts, split
from gfx1151_sim.kernel_machine import AFFINE
from kernel_tolerances import ARRAYS, assert_near

from strixhlo.custom_kernels.gpu.kernels import DENSE
from strixhlo.custom_kernels.gpu.launches import GFX1151, H200, Chip, dense_matmul_launches, quantized_matmul_launches
from strixhlo.custom_kernels.ops.formats import FORMATS, dequantize
from strixhlo.custom_kernels.ops.formats_affine import AFFINE_FORMATS
from strixhlo.custom_kernels.ops.launch import Launch

ROWS = (*range(1, 10), 16, 17, 127, 128, 512)
EVERY = (*(name for name in FORMATS if name not in AFFINE_FORMATS), *AFFINE, *DENSE)
CASES = [("host", GFX1151, "q4_0"), ("host", H200, "q4_0"), ("gfx1151", GFX1151, "q4_0")]
CASES += [("cuda", H200, name) for name in EVERY if "cuda" in NVIDIA]
N, K = 19, 256  # K-quants have groups of 256
# Of dense weights: a row has 16 lanes, and N rows fit into a workgroup of H200's 8 waves as of the host build's 16.
DENSE_K = 128


@pytest.mark.parametrize("x", ARRAYS)
@pytest.mark.parametrize(("machine", "chip", "name"), CASES, indirect=["machine"])
def test_every_number_of_rows(run_launches, chip: Chip, name: str, x: str) -> None:
    """Extreme and subnormal scales; results within the type's range, and rows that no row depends on."""
    parts, weight = weights(name)
    given = np.random.default_rng(0).standard_normal((max(ROWS), weight.shape[1]))
    if x == "f16":
        given *= 2.0 ** np.floor(np.log2(6e3 / np.linalg.norm(weight, axis=1).max()))
    given = given.astype(ARRAYS[x])
    exact = given.astype(np.float64) @ weight.T
    for m in ROWS:
        y = run_launches(launches_of(name, m, chip, x), {"x": bits(given[:m]), **parts})["y"]
        assert_near(y.view(ARRAYS[x]), exact[:m], x)


def weights(name: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A weight [N, K or DENSE_K] as kernels take it, and its values in float64."""
    if name in DENSE:
        rng = np.random.default_rng(1)
        dense = (rng.standard_normal((N, DENSE_K)) * 3.0 ** rng.integers(-9, 2, (N, 1))).astype(ARRAYS[name])
        return {"w": bits(dense)}, dense.astype(np.float64)
    parts = random_parts(name, N, K, seed=1)
    values = np.asarray(dequantize(split(name)[0], parts)).astype(np.float64)
    return {part: bits(a) for part, a in parts.items()}, values


def launches_of(name: str, m: int, chip: Chip, x: str) -> tuple[Launch, ...]:
    if name in DENSE:
        return dense_matmul_launches(name, m, N, DENSE_K, chip, x) or ()
    fmt, dtypes = split(name)
    return quantized_matmul_launches(fmt, m, N, K, dtypes, chip, x)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.int16) if array.dtype == ARRAYS["bf16"] else array
