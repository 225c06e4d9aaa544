"""The matmuls of few rows on NVIDIA's matrix units (stripes.h), in the host emulation and on an NVIDIA GPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest
from cuda_kit.recording import NVIDIA
from extreme_weights import random_parts, split
from fused_matmul_cases import TYPES, operands_of, whole

from strixhlo.custom_kernels.choices import Asked, Choices
from strixhlo.custom_kernels.gpu.fused_launches import fused_matmul
from strixhlo.custom_kernels.gpu.launches import (
    H200,
    SM_90,
    STRIPE_COLUMNS,
    Chip,
    quantized_matmul_launches,
    shared_out,
)
from strixhlo.custom_kernels.ops.formats import dequantize
from strixhlo.custom_kernels.ops.fused_matmul import reference
from strixhlo.custom_kernels.ops.launch import Launch

# Of each way in which codes, and in which scales, are found; benchmarks/gpu_kernels.py checks all on a device.
NAMES = ("q4_0", "q8_0", "q5_k", "q6_k", "q3_k", "mxfp4", "nvfp4", "mxfp8", "fp8_block128")
AFFINE_NAMES = ("affine4_g64_bf16_bf16", "affine5_g64_f32_f16", "affine8_g64_f16_f16")
on_each_machine = pytest.mark.parametrize("machine", NVIDIA, indirect=True)


def matmul(
    run_launches, name: str, x: np.ndarray, parts: dict[str, np.ndarray], n: int, chip: Chip = H200
) -> np.ndarray:
    fmt, dtypes = split(name)
    launches = quantized_matmul_launches(fmt, len(x), n, x.shape[1], dtypes, chip)
    assert ["stripes_" in launch.symbol for launch in launches] == [True]
    return run_launches(launches, {"x": x, **parts})["y"]


@pytest.mark.parametrize(("case", "choice"), [("residual", "stripes"), ("gated", "gated_stripes")])
def test_fused_stripes_are_a_choice(case: str, choice: str) -> None:
    """Which `strixhlo tune` measures: with how many workgroups, or other kernels."""

    def launched(choices: Choices) -> Launch:
        attributes, operands = operands_of(case, 2)
        types = [(a.shape, TYPES[str(a.dtype)]) for a in operands.values()]
        lowering = fused_matmul(replace(H200, choices=choices), attributes, types)
        assert lowering and len(lowering.launches) == 1
        return lowering.launches[0]

    asked = Asked()
    assert "_stripes_" in launched(asked).symbol
    question = next(q for q in asked.asked if q.choice == choice)
    for answer in asked.asked[question][1]:
        launch = launched(Choices({question: answer}))
        assert ("_stripes_" in launch.symbol) == bool(answer["stripe_workgroups"])
        assert launch.workgroups == answer["stripe_workgroups"] or not answer["stripe_workgroups"]


@on_each_machine
@pytest.mark.parametrize("name", (*NAMES, *AFFINE_NAMES))
def test_against_the_definition(run_launches, name):
    fmt, _ = split(name)
    width = 256 if name.endswith("_k") else 288 if name.startswith(("q", "mx", "nv")) else 384
    for m, n, k in ((1, 35, width), (3, 16, width), (8, 1, 2048 + width)):
        parts = random_parts(name, n, k, seed=m)
        weight = np.asarray(dequantize(fmt, parts)).astype(np.float64)
        x = np.random.default_rng(m).standard_normal((m, k), np.float32)
        y = matmul(run_launches, name, x, parts, n)
        bound = np.abs(x).astype(np.float64) @ np.abs(weight).T * 2e-6 + 1e-30
        exact = x.astype(np.float64) @ weight.T
        assert (np.abs(y - exact) <= bound).all(), (m, np.max(np.abs(y - exact) / bound))
        assert np.linalg.norm(y - exact) <= 1e-5 * np.linalg.norm(exact), m


@on_each_machine
def test_rows_do_not_depend_on_each_other_and_nan_stays(run_launches):
    n, k = 19, 256
    parts = random_parts("mxfp8", n, k, seed=7)
    parts["scale"][:] = 127
    codes = parts["codes"].view(np.uint8).reshape(n, -1)
    codes[3, 70] = 0xFF  # NaN
    x = np.random.default_rng(7).standard_normal((8, k), np.float32)
    x[2, 40] = np.inf
    x[4] *= np.float32(2.0**-100)
    x[5] *= np.float32(2.0**100)
    together = matmul(run_launches, "mxfp8", x, parts, n)
    for m in (1, 3):
        assert matmul(run_launches, "mxfp8", x[:m], parts, n).tobytes() == together[:m].tobytes()
    assert np.isnan(together[:, 3]).all() and not np.isfinite(together[2]).any()
    weight = np.asarray(dequantize(split("mxfp8")[0], parts)).astype(np.float64)
    rows, columns = [i for i in range(8) if i != 2], [i for i in range(n) if i != 3]
    exact = x[rows].astype(np.float64) @ weight[columns].T
    got = together[rows][:, columns]
    assert (np.abs(got - exact) <= 1e-5 * np.linalg.norm(exact, axis=1, keepdims=True)).all()


@on_each_machine
@pytest.mark.parametrize(("name", "bits"), (("mxfp4", 0xFF), ("nvfp4", 0x7F), ("q8_0", 0x7C00), ("q8_0", 0x7E01)))
def test_a_scale_that_is_not_finite_spoils_its_row_alone(run_launches, name, bits):
    n, k = 18, 288
    parts = random_parts(name, n, k, seed=3)
    stored = parts["scale"].view(np.uint16 if name == "q8_0" else np.uint8)
    stored[:] = {"mxfp4": 127, "nvfp4": 0x38, "q8_0": 0x3C00}[name]
    stored[10, 3] = bits
    y = matmul(run_launches, name, np.random.default_rng(3).standard_normal((1, k), np.float32), parts, n)[0]
    assert [i for i in range(n) if not np.isfinite(y[i])] == [10]
    assert np.isnan(y[10]) or bits == 0x7C00


@pytest.fixture
def every_row_is_long(monkeypatch):
    """Rows of x that tests can have get what sm_90 has for long ones, too."""
    monkeypatch.setattr("strixhlo.custom_kernels.gpu.launches.STRIPE_COLUMNS", dict.fromkeys(STRIPE_COLUMNS, 0))


# Rows of weights and of x, columns: more stripes than meet at once, stages for some waves only, columns after those
# that are in local memory together.
DEEP = (("mxfp4", 149, 3, 288), ("q8_0", 52, 8, 2336), ("q4_0", 20, 2, 8480), ("mxfp8", 9, 3, 26912))


@pytest.mark.usefixtures("every_row_is_long")
@pytest.mark.parametrize("machine", ["host"], indirect=True)
@pytest.mark.parametrize(("name", "n", "m", "k"), DEEP)
def test_workgroups_of_512_threads(run_launches, name, n, m, k):
    chip = replace(SM_90, multiprocessors=1)
    parts = random_parts(name, n, k, seed=5)
    weight = np.asarray(dequantize(split(name)[0], parts)).astype(np.float64)
    x = np.random.default_rng(5).standard_normal((m, k), np.float32)
    y = matmul(run_launches, name, x, parts, n, chip)
    exact = x.astype(np.float64) @ weight.T
    assert np.linalg.norm(y - exact) <= 1e-5 * np.linalg.norm(exact)
    assert matmul(run_launches, name, x[:1], parts, n, chip).tobytes() == y[:1].tobytes()


@pytest.mark.parametrize("x", STRIPE_COLUMNS)
def test_a_long_row_has_deep_workgroups_where_there_is_room(x):
    """Whatever the number of rows."""
    for m, more in product((1, 8), (0, 128)):
        k = STRIPE_COLUMNS[x] + more
        (plain,) = quantized_matmul_launches(split("q8_0")[0], m, 4096, k, chip=H200, x=x)
        (chosen,) = quantized_matmul_launches(split("q8_0")[0], m, 4096, k, chip=SM_90, x=x)
        assert plain.symbol.startswith("strixhlo_stripes_") and plain.local_memory == 98 << 10
        if not more:
            assert chosen == plain
            continue
        assert chosen.symbol.startswith("strixhlo_deep_stripes_")
        assert (chosen.workgroups, chosen.threads, chosen.local_memory) == (132, 512, 226 << 10)


FUSED = ("q, k, v", "residual", "a sum", "one of another format", "K-quants", "three K-quants")
DEEP_FUSED = ("q, k, v", "residual", "a sum", "gated", "K-quants")


def fused(run_launches, case: str, m: int, chip: Chip = H200) -> tuple[np.ndarray, ...]:
    attributes, operands = operands_of(case, m)
    if case == "q, k, v" or "K-quants" in case:  # as of weights that are one buffer each
        attributes, operands = whole(attributes, operands)
    lowering = fused_matmul(chip, attributes, [(a.shape, TYPES[str(a.dtype)]) for a in operands.values()])
    assert lowering
    kind = "deep_stripes" if chip.deep_stripes else "stripes"
    assert [launch.symbol.startswith(f"strixhlo_fused_{kind}_") for launch in lowering.launches] == [True]
    values = run_launches(lowering.launches, operands)
    return tuple(values[name] for name in lowering.results)


def check_fused(run_launches, case: str, chip: Chip) -> None:
    alone, together = fused(run_launches, case, 1, chip), fused(run_launches, case, 8, chip)
    attributes, operands = operands_of(case, 8)
    wanted = reference(*map(jnp.asarray, operands.values()), **attributes)
    for one, got, want in zip(alone, together, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)
        assert got[:1].tobytes() == one.tobytes()


@on_each_machine
@pytest.mark.parametrize("case", FUSED)
def test_fused(run_launches, case):
    check_fused(run_launches, case, H200)


@pytest.mark.usefixtures("every_row_is_long")
@pytest.mark.parametrize("machine", ["host"], indirect=True)
@pytest.mark.parametrize("case", DEEP_FUSED)
def test_fused_of_512_threads(run_launches, case):
    check_fused(run_launches, case, replace(SM_90, multiprocessors=3))


def test_formats_share_the_workgroups():
    """Those of more and of larger stripes get more; each has one."""
    assert shared_out([320, 64], [144, 210], 264) == [200, 64]
    assert shared_out([1, 1000, 1], [1, 1, 1], 3) == [1, 1, 1]
    for workgroups in (3, 7, 132):
        given = shared_out([40, 9, 80], [4, 9, 5], workgroups)
        assert sum(given) == workgroups and min(given) >= 1
