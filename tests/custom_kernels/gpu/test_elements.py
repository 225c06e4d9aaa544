"""Every GPU kernel with activations of 16 bits against its reference, and the conversions, on each machine."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from cuda_kit.recording import NVIDIA
from element_cases import OpCall, cases, matmul
from kernel_tolerances import ARRAYS, assert_near

from strixhlo.custom_kernels.gpu.elements import ELEMENTS, elements_of, with_elements
from strixhlo.custom_kernels.gpu.kernels import KERNELS, kernel_line
from strixhlo.custom_kernels.ops.launch import Launch, Output

# The simulated gfx1151 takes the longest to build for: of the two types it gets one.
MACHINES = [*product(NVIDIA, ("f16", "bf16")), ("gfx1151", "bf16")]
on_each_machine = pytest.mark.parametrize(("machine", "dtype"), MACHINES, indirect=["machine"])
POOLS = ("k_pool_out", "v_pool_out")


def results(run_launches, call: OpCall) -> dict[str, np.ndarray]:
    lowering = call.lowering()
    found = run_launches(lowering.launches, dict(zip(lowering.operands, call.operands, strict=True)))
    return {name: found[name] for name in lowering.results}


@on_each_machine
@pytest.mark.parametrize("case", cases())
def test_against_the_reference(run_launches, case, dtype):
    call = cases()[case].of(dtype)
    got = results(run_launches, call)
    for (name, y), want in zip(got.items(), call.wanted(), strict=True):
        if y.dtype == np.int32:
            np.testing.assert_array_equal(y, want)
        elif name in POOLS:
            assert_near(y, want, "f16")
        elif call.op == "moe_gate_up":  # rows of no expert hold anything
            rows = call.operands[1] < call.operands[3].size - 1
            assert_near(y[rows], want[rows], dtype)
        else:
            assert_near(y, want, "f32" if y.dtype == np.float32 else dtype)
            assert y.dtype == (np.float32 if call.op == "moe_route" else ARRAYS[dtype])


@on_each_machine
@pytest.mark.parametrize("m", [3, 17])
def test_numbers_that_are_none_stay_in_their_row(run_launches, m, dtype):
    clean = matmul("q4_1", m).of(dtype)
    broken = OpCall(clean.op, clean.attributes, (clean.operands[0].copy(), *clean.operands[1:]))
    broken.operands[0][1, 5] = np.nan
    broken.operands[0][2, 7] = np.inf
    (y,), (before,) = (results(run_launches, call).values() for call in (broken, clean))
    assert np.isnan(y[1]).all() and not np.isfinite(y[2]).any()
    others = np.setdiff1d(np.arange(m), [1, 2])
    assert y[others].tobytes() == before[others].tobytes()


@pytest.mark.parametrize("machine", NVIDIA, indirect=True)
@pytest.mark.parametrize("scale", [1e-7, 3e-6, 3e4])
@pytest.mark.parametrize("m", [2, 17])
def test_the_ends_of_float16(run_launches, m, scale):
    """Subnormal activations, subnormal results, and results beyond the largest number."""
    call = matmul("f16", m)
    call = OpCall(call.op, call.attributes, (call.operands[0] * np.float32(scale), *call.operands[1:])).of("f16")
    (y,) = results(run_launches, call).values()
    (want,) = call.wanted()
    with np.errstate(over="ignore"):
        rounded = want.astype(np.float16)
    assert np.isfinite(rounded).all() == (scale < 1)
    near = np.abs(want) > 65000  # whether these are infinite a last bit decides
    np.testing.assert_array_equal(np.isfinite(y)[~near], np.isfinite(rounded)[~near])
    inside = np.isfinite(y) & np.isfinite(rounded)
    error = np.abs(y[inside].astype(np.float64) - want[inside])
    assert (error <= np.abs(want[inside]) * 2.0**-10 + 2.0**-24).all()


@on_each_machine
@pytest.mark.parametrize("factor", [1.0, 0.33333334, 1.001953125, 255.99998, 2.0**-12])
def test_every_number(run_launches, dtype, factor):
    """All 65,536 of a type, times a float32 number, rounded back: overflow, ties, subnormal numbers, NaN."""
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).reshape(64, 1024)
    x, zero = bits.view(ARRAYS[dtype]), np.zeros((64, 1024), ARRAYS[dtype])
    shape = (64, 1024, 0, 0, 1024, 1024, 0, 1024, 2, 3)  # columns of 1024, a residual, no activation
    scalars = (*shape, 0, int(np.float32(factor).view(np.int32)))
    symbol = with_elements("strixhlo_finish", dtype)
    launch = Launch(symbol, ("x", "x", "x", "x", "zero"), (Output("y", x.shape, dtype),), scalars, 256, 256)
    y = run_launches((launch,), {"x": x, "zero": zero})["y"]
    with np.errstate(over="ignore", invalid="ignore"):
        product = x.astype(np.float32) * np.float32(factor)
        want = product.astype(ARRAYS[dtype])
    nan = np.isnan(product)
    np.testing.assert_array_equal(np.isnan(y), nan)
    kept = ~nan & (np.abs(product) >= 2.0**-126)  # subnormal numbers of float32 may be zero on a GPU
    np.testing.assert_array_equal(y[kept], want[kept])
    assert (np.abs(y[~nan & ~kept].astype(np.float32)) <= 2.0**-126).all()


def test_what_takes_16_bits():
    """All kernels but argmax, whose operand is logits, and no type that is not known."""
    for symbol in KERNELS.keys() - {"strixhlo_argmax"}:
        for dtype in ELEMENTS:
            named = with_elements(symbol, dtype)
            assert elements_of(named) == (symbol, dtype)
            assert f"({named}, {ELEMENTS[dtype]}, " in kernel_line(named).replace(")", ", ")
    for unknown in ("strixhlo_argmax_xf16", "strixhlo_gemv_q4_1_m1_xf64", "strixhlo_gemv_q4_1_m1_xbf16_xf16"):
        with pytest.raises(KeyError):
            kernel_line(unknown)
