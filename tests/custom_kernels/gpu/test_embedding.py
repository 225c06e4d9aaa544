"""`strixhlo_embedding_*` against the op's reference, on each machine that conftest.py offers."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from gfx1151_sim.kernel_machine import EMBEDDINGS

from strixhlo.custom_kernels.gpu.embedding_launches import embedding
from strixhlo.custom_kernels.gpu.fused_kernels import format_of_name
from strixhlo.custom_kernels.ops.embedding import operand_names, reference
from strixhlo.custom_kernels.ops.formats import FORMATS

TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int8": "i8"}
ROWS, K = 9, 256
TOKENS = np.int32([3, 0, 8, 3, -5, 2**31 - 1])


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_rows(run_launches, name):
    rng = np.random.default_rng(len(name))
    format, reals = format_of_name(name)
    operands = {"tokens": TOKENS}
    shapes = FORMATS[format].parts(ROWS, K) if format in FORMATS else {"dense": ((ROWS, K), np.dtype(np.float32))}
    for part, (shape, dtype) in shapes.items():
        if dtype.kind == "i":
            low, high = (-(2**31), 2**31) if dtype == np.int32 else (-128, 127)
            if part == "scale" and "fp" in name:
                low = 90  # about 1, and no NaN
            made = rng.integers(low, high, shape).astype(dtype)
            made = np.where(made == -1, -2, made)  # of an E4M3 code NaN
        else:
            made = (rng.standard_normal(shape) / 20).astype(dtype)
        given = dict(zip(("scale", "bias"), reals, strict=False)).get(part) or (name if part == "dense" else "")
        operands[part] = np.asarray(
            jnp.asarray(made, {"f16": jnp.float16, "bf16": jnp.bfloat16}.get(given, made.dtype))
        )
    attributes = {"format": format, "columns": K, "scale": 1.5, "dtype": "f32"}
    assert tuple(operands) == operand_names(attributes)
    lowering = embedding(attributes, [(a.shape, TYPES[str(a.dtype)]) for a in operands.values()])
    assert lowering
    arrays = {n: a.view(np.int16) if a.dtype == jnp.bfloat16 else a for n, a in operands.items()}
    y = run_launches(lowering.launches, arrays)["y"]
    want = np.asarray(reference(*map(jnp.asarray, operands.values()), **attributes))
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-6 * np.nanmax(np.abs(want)))


def test_shapes_without_a_kernel():
    types = [((1,), "i32"), ((9, 100), "f16")]
    assert embedding({"format": "f16", "columns": 100, "scale": 1.0, "dtype": "f32"}, types) is None
