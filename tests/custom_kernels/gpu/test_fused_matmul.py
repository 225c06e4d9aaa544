"""The GPU's launches of `fused_matmul` against its reference, on each machine that conftest.py offers."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused_matmul_cases import CASES, K_QUANTS, TYPES, operands_of, whole
from kernel_tolerances import RELATIVE_L2

from strixhlo.custom_kernels.gpu.fused_launches import fused_matmul
from strixhlo.custom_kernels.gpu.launches import GFX1151
from strixhlo.custom_kernels.ops.fused_matmul import reference
from strixhlo.custom_kernels.ops.launch import Launch


def launched(
    run_launches, case: str, m: int, in_one_buffer: bool = False
) -> tuple[tuple[np.ndarray, ...], tuple[Launch, ...]]:
    attributes, operands = operands_of(case, m)
    if in_one_buffer:
        attributes, operands = whole(attributes, operands)
    lowering = fused_matmul(GFX1151, attributes, [(a.shape, TYPES[str(a.dtype)]) for a in operands.values()])
    assert lowering
    arrays = {n: a.view(np.int16) if a.dtype == jnp.bfloat16 else a for n, a in operands.items()}
    values = run_launches(lowering.launches, arrays)
    return tuple(values[name] for name in lowering.results), lowering.launches


def as_the_reference(results: tuple[np.ndarray, ...], case: str, m: int) -> None:
    attributes, operands = operands_of(case, m)
    wanted = jax.jit(partial(reference, **attributes))(*map(jnp.asarray, operands.values()))
    for got, want in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert np.isfinite(got).all()
        assert np.linalg.norm(got - want) <= RELATIVE_L2["f32"] * np.linalg.norm(want)


@pytest.mark.parametrize("m", [1, 3, 8, 17])
@pytest.mark.parametrize("case", CASES)
def test_against_the_reference(run_launches, case, m):
    results, launches = launched(run_launches, case, m)
    as_the_reference(results, case, m)
    if m <= 8:
        assert len(launches) == 1
        if m < 8:
            for alone, together in zip(results, launched(run_launches, case, 8)[0], strict=True):
                assert together[:m].tobytes() == alone.tobytes()


@pytest.mark.parametrize("case", K_QUANTS)
def test_weights_of_one_buffer(run_launches, case):
    """More parts than a launch has buffers: one launch where each weight is one buffer, and of many rows no more than
    there are formats, beside the norm, the sum and, of two formats, the activation."""
    for m in (1, 8, 17):
        results, launches = launched(run_launches, case, m, in_one_buffer=True)
        as_the_reference(results, case, m)
        assert len(launches) == (1 if m <= 8 else 3 + 2 * (case == "gated K-quants"))


def test_more_parts_than_buffers(run_launches):
    """The rest goes into the columns of a result that is there already."""
    results, launches = launched(run_launches, "K-quants", 3)
    as_the_reference(results, "K-quants", 3)
    assert len(launches) == 2 and launches[1].symbol.endswith("_more")


@pytest.mark.parametrize("case", ["residual", "gated"])
def test_up_to_16_rows(run_launches, case):
    """Tiles whose waves share the columns."""
    (got,), launches = launched(run_launches, case, 12)
    attributes, operands = operands_of(case, 12)
    want = np.asarray(reference(*map(jnp.asarray, operands.values()), **attributes))
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)
    assert len(launches) == 1 + attributes["normed"]
