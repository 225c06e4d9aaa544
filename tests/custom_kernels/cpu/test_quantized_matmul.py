"""`strixhlo_qmm_*` and `strixhlo_quantize_rows` against the formats' definition, in float64."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from kernel_tolerances import RELATIVE_L2
from quantized_activations import activations, quantize, relative
from quantized_weights import CASES, GGUF_CASES, Case, first_rows, random_weight

from strixhlo.custom_kernels.cpu.direct import run_launches
from strixhlo.custom_kernels.cpu.launches import quantized_matmul_launches
from strixhlo.custom_kernels.ops.formats import FORMATS, dequantize
from strixhlo.custom_kernels.ops.formats_gguf import RUN, pack_codes

MODES = [(name, fast) for name, case in CASES.items() for fast in (False, True) if case.integer or not fast]
BY_MODE = pytest.mark.parametrize(("name", "fast"), MODES, ids=[f"{n}-{'int8' if f else 'f32'}" for n, f in MODES])
MANY = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 127, 128)


class Matmul:
    """One library, run with guards around everything that it may touch."""

    def __init__(self, kernels: ctypes.CDLL, fenced: Callable, guarded: Callable) -> None:
        self.kernels, self.fenced, self.guarded = kernels, fenced, guarded

    def __call__(self, case: Case, x: np.ndarray, n: int, *, fast: bool) -> dict[str, np.ndarray]:
        m, k = x.shape
        parts = first_rows(case, random_weight(case, k)[0], n, k)
        y, check = self.guarded((m, n))
        inputs = {name: self.fenced(part) for name, part in parts.items()}
        buffers = {"x": self.fenced(x), **inputs, "y": y}
        run_launches(self.kernels, quantized_matmul_launches(case.format, m, n, k, fast, case.dtypes), buffers)
        check()
        return buffers


@pytest.fixture
def matmul(kernels: ctypes.CDLL, fenced: Callable, guarded: Callable) -> Matmul:
    return Matmul(kernels, fenced, guarded)


def used(x: np.ndarray, fast: bool) -> np.ndarray:
    """The activations that enter the products, in float64."""
    if not fast:
        return x.astype(np.float64)
    xq, xs, _ = quantize(x)
    return (xq.reshape(*xs.shape, RUN) * xs[..., None].astype(np.float64)).reshape(x.shape)


@BY_MODE
def test_matches_the_definition(matmul: Matmul, name: str, fast: bool) -> None:
    case = CASES[name]
    for k in case.columns:
        _, values = random_weight(case, k)
        for m in MANY:
            x = activations(m, k)
            for n in (1, 17, case.rows) if m in (1, 9, 17, 127) else (case.rows,):
                y = matmul(case, x, n, fast=fast)["y"]
                error = relative(y, used(x, fast) @ values[:n].T)
                assert error < RELATIVE_L2["f32"], f"M={m} N={n} K={k}: {error}"


@BY_MODE
def test_a_row_does_not_depend_on_its_company(matmul: Matmul, name: str, fast: bool) -> None:
    case = CASES[name]
    x = activations(8, case.columns[-1])
    alone = np.concatenate([matmul(case, x[i : i + 1], 17, fast=fast)["y"] for i in range(8)])
    for m in range(2, 9):
        together = matmul(case, x[:m], 17, fast=fast)["y"]
        np.testing.assert_array_equal(together.view(np.int32), alone[:m].view(np.int32), err_msg=f"M={m}")


@pytest.mark.parametrize("m", [1, 5, 33])
def test_8_bit_activations_bit_for_bit(matmul: Matmul, m: int) -> None:
    k = 576
    x = activations(m, k)
    x[0, :32] = 0
    x[0, 32:64] = np.linspace(-1e-39, 1e-39, 32)  # a scale that is not a normal float: zero
    x[0, 64:96] = np.arange(-16, 16) + 0.5  # ties
    x[0, 79] = 127
    x[-1, 96:128] *= 1e36
    buffers = matmul(CASES["q8_0"], x, 3, fast=True)
    for name, expected in zip(("xq", "xs", "xsum"), quantize(x), strict=True):
        np.testing.assert_array_equal(buffers[name], expected, err_msg=name)
    assert buffers["xq"][0, 64:67].tolist() == [-16, -14, -14]


SIZES = np.float32([1.0, 1e-33, 1e33, 1e-20, 1.0, 1e31, 1e20, 1.0])  # of rows: what three digits hold, and what not


@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q6_k", "q4_k", "affine8_g64", "affine3_g64", "mxfp4", "nvfp4"])
def test_float32_rows_of_any_size(matmul: Matmul, name: str) -> None:
    """Rows of more columns than are prepared at once, some of which are too small or too large for digits: each is
    right, and the same alone and in company."""
    case, k = CASES[name], 4608
    unit = activations(8, k)
    unit /= np.abs(unit).max(1, keepdims=True)
    unit[:, 64:96] = 0
    unit[4, 128:160] *= np.float32(1e-36)  # one group of an ordinary row
    alone = [matmul(case, x[None], 17, fast=False)["y"] for x in unit * SIZES[:, None]]
    for row, x, size in zip(alone, unit, SIZES, strict=True):
        assert (
            relative(row / np.float64(size), x.astype(np.float64) @ random_weight(case, k)[1][:17].T)
            < RELATIVE_L2["f32"]
        )
    for m in (2, 3, 8):
        together = matmul(case, unit[:m] * SIZES[:m, None], 17, fast=False)["y"]
        np.testing.assert_array_equal(
            together.view(np.int32), np.concatenate(alone[:m]).view(np.int32), err_msg=f"M={m}"
        )


@pytest.mark.parametrize("m", [3, 18])
@pytest.mark.parametrize("name", CASES)
def test_nan_and_infinity_in_float32(matmul: Matmul, name: str, m: int) -> None:
    case = CASES[name]
    k = case.columns[-1]
    x = activations(m, k)
    x[0, 5] = np.nan
    x[1, 40] = np.inf
    y = matmul(case, x, case.rows, fast=False)["y"]
    with np.errstate(invalid="ignore"):
        reference = x.astype(np.float64) @ random_weight(case, k)[1].T
    assert np.isnan(y[0]).all()
    np.testing.assert_array_equal(y[1], reference[1])  # infinity with the weight's sign, NaN where the weight is zero
    assert relative(y[2:], reference[2:]) < RELATIVE_L2["f32"]


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("m", [3, 18])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.integer])
def test_nan_and_infinity_with_8_bits_make_the_row_nan(matmul: Matmul, name: str, m: int, broken: float) -> None:
    case = CASES[name]
    k = case.columns[-1]
    x = activations(m, k)
    x[1, 40] = broken
    y = matmul(case, x, case.rows, fast=True)["y"]
    assert np.isnan(y[1]).all()
    rest = np.arange(m) != 1
    assert relative(y[rest], used(x[rest], True) @ random_weight(case, k)[1].T) < RELATIVE_L2["f32"]


@pytest.mark.parametrize("extreme", ["smallest", "largest"])
@pytest.mark.parametrize("name", GGUF_CASES)
def test_extreme_scales_and_codes(kernels: ctypes.CDLL, name: str, extreme: str) -> None:
    """Codes and scales at the end of their ranges, and activations as large as 8 bits hold: nothing saturates."""
    fmt = FORMATS[name]
    n, k = 5, CASES[name].columns[-1]
    half = np.float16(6e-8 if extreme == "smallest" else 65504.0)
    code = -128 if fmt.bits == 8 else (1 << fmt.bits) - 1
    parts = pack_codes(np.full((n, k), code).astype(np.int8), fmt.bits)
    for part, (shape, dtype) in fmt.parts(n, k).items():
        if part not in parts:
            parts[part] = np.full(shape, half if dtype == np.float16 else -128, dtype)
    values = np.asarray(dequantize(fmt, parts)).astype(np.float64)
    for m in (2, 16):
        x = np.full((m, k), 127.0, np.float32)
        x[1] = -127.0
        x[1, ::5] = 0.0
        for fast in (False, True):
            buffers = {"x": x, **{part: np.ascontiguousarray(v) for part, v in parts.items()}}
            run_launches(kernels, quantized_matmul_launches(name, m, n, k, fast, {}), buffers)
            assert relative(buffers["y"], x.astype(np.float64) @ values.T) < RELATIVE_L2["f32"], f"M={m} fast={fast}"


def test_many_workgroups_cover_every_column_once(kernels: ctypes.CDLL) -> None:
    n, k = 2085, 32
    rng = np.random.default_rng(0)
    parts = {"codes": rng.integers(-128, 128, (n, k)).astype(np.int8), "scale": np.ones((n, 1), np.float16)}
    x = rng.integers(-127, 128, (2, k)).astype(np.float32)
    x[:, 0] = 127
    for fast in (False, True):
        launches = quantized_matmul_launches("q8_0", 2, n, k, fast, {})
        assert launches[-1].scalars[3] > 16, "the case is meant to have more than one tile a workgroup"
        buffers = {"x": x, **parts, "y": np.full((2, n), np.nan, np.float32)}
        run_launches(kernels, launches, buffers)
        np.testing.assert_allclose(buffers["y"], x @ parts["codes"].T.astype(np.float32), rtol=1e-5, atol=1e-3)
