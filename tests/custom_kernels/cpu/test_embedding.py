"""`strixhlo_embedding`: rows of every format, decoded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from quantized_weights import CASES, random_weight

from strixhlo.custom_kernels.cpu.direct import run_launches
from strixhlo.custom_kernels.cpu.embedding_launches import embedding

DENSE = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
TYPES = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16", np.dtype(np.int32): "i32", np.dtype(np.int8): "i8"}
TOKENS = np.int32([3, 0, 66, 3, -5, 2**31 - 1])


@pytest.mark.parametrize("name", [*CASES, *DENSE])
def test_rows_of_every_format(kernels: ctypes.CDLL, fenced: Callable, guarded: Callable, name: str) -> None:
    if name in CASES:
        k, format = CASES[name].columns[-1], CASES[name].format
        parts, values = random_weight(CASES[name], k)
        dtypes = {part: CASES[name].dtypes.get(part) or TYPES[array.dtype] for part, array in parts.items()}
        dtypes |= {part: TYPES[a.dtype] for part, a in parts.items() if a.dtype in TYPES and "affine" not in format}
    else:
        k, format = 83, name
        dense = np.random.default_rng(0).standard_normal((67, k)).astype(DENSE[name])
        parts, dtypes, values = {"dense": dense}, {"dense": name}, dense.astype(np.float64)
    attributes = {"format": format, "columns": k, "scale": 1.5, "dtype": "f32"}
    types = [(TOKENS.shape, "i32"), *((a.shape, dtypes[part]) for part, a in parts.items())]
    lowering = embedding(attributes, types)
    assert lowering.operands == ("tokens", *parts)
    arrays = {part: a.view(np.uint16) if a.dtype == ml_dtypes.bfloat16 else a for part, a in parts.items()}
    y, check = guarded((len(TOKENS), k))
    buffers = {n: fenced(a) for n, a in ({"tokens": TOKENS} | arrays).items()} | {"y": y}
    run_launches(kernels, lowering.launches, buffers)
    check()
    want = values[np.clip(TOKENS, 0, len(values) - 1)] * 1.5
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-7 * np.nanmax(np.abs(want[np.isfinite(want)])))
