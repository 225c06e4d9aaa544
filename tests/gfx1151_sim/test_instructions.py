"""Single vector and scalar instructions over edge values, against numpy semantics written independently."""

from __future__ import annotations

import numpy as np
import pytest

from gfx1151_sim.instruction_meanings import CLOSE, COMPARES, EXACT, M32, SCALARS, Array, as_float, bits
from gfx1151_sim.instruction_runs import Inputs, Instructions, Results, edge_inputs


def name_of(text: str) -> str:
    return "t_" + "".join(ch if ch.isalnum() else "_" for ch in text)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Instructions:
    texts = [*EXACT, *CLOSE, *COMPARES, *SCALARS]
    return Instructions({name_of(t): t for t in texts}, tmp_path_factory.mktemp("instructions"))


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return edge_inputs(seed=1)


def active_lanes(inputs: Inputs) -> Array:
    return ((inputs.exec[:, None] >> np.arange(32, dtype=np.uint32)) & 1).astype(bool).reshape(-1)


def check_vector(text: str, results: Results, inputs: Inputs, expected: Array, relative: float) -> None:
    active = active_lanes(inputs)
    wide = "v[8:9]" in text
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) if wide else M32
    np.testing.assert_array_equal(results.vector[~active], inputs.old[~active])
    if not wide:
        np.testing.assert_array_equal(results.vector >> np.uint64(32), inputs.old >> np.uint64(32))
    got, want = results.vector[active] & mask, bits(expected)[active] & mask
    if expected.dtype.kind == "f":
        got_floats = got.astype(np.uint64 if wide else np.uint32).view(expected.dtype)
        want_floats = expected[active]
        np.testing.assert_array_equal(np.isnan(got_floats), np.isnan(want_floats), err_msg=text)
        numbers = ~np.isnan(want_floats)
        if relative:
            np.testing.assert_allclose(got_floats[numbers], want_floats[numbers], rtol=relative, atol=1e-37)
            return
        got, want = got[numbers], want[numbers]
    elif "f16" in text and "pk" not in text and "mix" not in text:
        is_nan = ((want & np.uint64(0x7FFF)) > np.uint64(0x7C00)) & ((got & np.uint64(0x7FFF)) > np.uint64(0x7C00))
        got, want = got[~is_nan], want[~is_nan]
    elif "f16" in text:
        same_nan = np.ones(len(got), bool)
        for at in (np.uint64(0), np.uint64(16)):
            one, other = got >> at & np.uint64(0x7FFF), want >> at & np.uint64(0x7FFF)
            same_nan &= (one == other) | ((one > np.uint64(0x7C00)) & (other > np.uint64(0x7C00)))
        assert same_nan.all(), text
        return
    np.testing.assert_array_equal(got, want, err_msg=text)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("text", [*EXACT, *CLOSE])
def test_vector(text: str, kernels: Instructions, inputs: Inputs) -> None:
    meaning, relative = (EXACT[text], 0.0) if text in EXACT else (CLOSE[text], 3e-7)
    expected = np.asarray(meaning(inputs.a, inputs.b, inputs.c, inputs.old))
    results = kernels.run(name_of(text), inputs)
    check_vector(text, results, inputs, expected, relative)
    np.testing.assert_array_equal(results.exec, inputs.exec)
    np.testing.assert_array_equal(results.scc, inputs.scc)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("text", COMPARES)
def test_compare(text: str, kernels: Instructions, inputs: Inputs) -> None:
    true = COMPARES[text](inputs.a, inputs.b) & active_lanes(inputs)
    masks = (true.reshape(-1, 32).astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=1)
    results = kernels.run(name_of(text), inputs)
    np.testing.assert_array_equal(results.vcc, masks, err_msg=text)
    np.testing.assert_array_equal(results.vector, inputs.old)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("text", SCALARS)
def test_scalar(text: str, kernels: Instructions) -> None:
    inputs = edge_inputs(seed=2, groups=256)
    results = kernels.run(name_of(text), inputs)
    for k in range(len(inputs.scc)):
        a, b, d = (int(x[k]) & 0xFFFFFFFF for x in (inputs.scalar_a, inputs.scalar_b, inputs.scalar_old))
        value, scc = SCALARS[text](a, b, d, int(inputs.scc[k]))
        got = int(results.scalar[k])
        want = (int(inputs.scalar_old[k]) & 0xFFFFFFFF) if value is None else value
        is_nan = "f32" in text and np.isnan(as_float(want)) and np.isnan(as_float(got & 0xFFFFFFFF))
        assert got & 0xFFFFFFFF == want or is_nan, f"{text}: {a:#x}, {b:#x}, SCC {inputs.scc[k]}"
        assert got >> 32 == int(inputs.scalar_old[k]) >> 32, text
        assert results.scc[k] == scc, f"{text}: SCC of {a:#x}, {b:#x}"
