"""Faults planted into the machine code of strixhlo's own kernels are caught."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from gfx1151_sim.device import CodeObject, HipError
from strixhlo.custom_kernels.gpu.kernels import build_hsaco
from strixhlo.custom_kernels.gpu.launches import quantized_matmul_launches
from strixhlo.custom_kernels.ops.formats import FORMATS, dequantize

S_BARRIER, S_NOP = 0xBFBD0000, 0xBF800000
BFE_U32, DS_BPERMUTE = 0xD610, 0xDACC


def drop_barriers(words: np.ndarray) -> int:
    """Every barrier becomes a no-operation."""
    found = words == S_BARRIER
    words[found] = S_NOP
    return int(found.sum())


def swap_nibbles(words: np.ndarray) -> int:
    """Every 4-bit field is taken from the other half of its byte."""
    first, second = words[:-1], words[1:]
    offset, width = second >> 9 & 511, second >> 18 & 511
    found = np.nonzero((first >> 16 == BFE_U32) & (width == 128 + 4) & (offset >= 128) & (offset < 160))[0]
    words[found + 1] ^= 4 << 9
    return len(found)


def shift_lanes(words: np.ndarray) -> int:
    """Every exchange between lanes reads 16 lanes too far."""
    found = np.nonzero(words[:-1] >> 16 == DS_BPERMUTE)[0]
    words[found] |= 64
    return len(found)


def planted(symbol: str, fault: Callable[[np.ndarray], int] | None, out: Path) -> CodeObject:
    image = build_hsaco("gfx1151", [symbol]).read_bytes()
    words = np.frombuffer(image, np.uint32, len(image) // 4).copy()
    if fault:
        assert fault(words), "there is nothing to plant this fault into"
    out.write_bytes(words.tobytes() + image[4 * len(words) :])
    return CodeObject(out)


def error(m: int, fault: Callable[[np.ndarray], int] | None, out: Path) -> float:
    """The worst error of a q4_1 matmul relative to the largest result."""
    fmt, n, k = FORMATS["q4_1"], 64, 256
    rng = np.random.default_rng(0)
    parts = {}
    for name, (shape, dtype) in fmt.parts(n, k).items():
        wide = rng.standard_normal(shape) if dtype == np.float16 else rng.integers(-(2**31), 2**31, shape)
        parts[name] = wide.astype(dtype)
    x = rng.standard_normal((m, k), np.float32)
    (launch,) = quantized_matmul_launches(fmt, m, n, k)
    y = np.zeros((m, n), np.float32)
    code = planted(launch.symbol, fault, out)
    arrays = [x if name == "x" else parts[name] for name in launch.inputs]
    code.launch(launch.symbol, [launch.workgroups], [launch.threads], [*arrays, y, *launch.scalars])
    expected = x @ np.asarray(dequantize(fmt, {p: jnp.asarray(v) for p, v in parts.items()})).T
    return float(np.abs(y - expected).max() / np.abs(expected).max())


def test_without_a_fault(tmp_path: Path) -> None:
    assert error(1, None, tmp_path / "k.hsaco") < 1e-5
    assert error(16, None, tmp_path / "k.hsaco") < 1e-5


@pytest.mark.parametrize("fault", [swap_nibbles, shift_lanes])
def test_wrong_results(fault: Callable[[np.ndarray], int], tmp_path: Path) -> None:
    assert error(1, fault, tmp_path / "k.hsaco") > 0.01


def test_dropped_barriers(tmp_path: Path) -> None:
    with pytest.raises(HipError, match=r"kernel strixhlo_gemm_q4_1_m16, ds_.* race: it"):
        error(16, drop_barriers, tmp_path / "k.hsaco")
