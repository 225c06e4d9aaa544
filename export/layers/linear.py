"""Linear layers and embeddings over weights of any format."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...custom_kernels.ops.dense_matmul import dense_matmul
from ...custom_kernels.ops.formats import FORMATS, dequantize
from ...custom_kernels.ops.quantized_matmul import quantized_matmul
from .weights import DENSE, Weight


def linear(x: jax.Array, weight: Weight) -> jax.Array:
    """x float32 [T, in] times the transpose of a weight [out, in] -> float32 [T, out]."""
    if weight.format in FORMATS:
        return quantized_matmul(x, weight.parts, weight.format)
    return dense_matmul(x, weight.parts[DENSE])


def embedding(tokens: jax.Array, weight: Weight) -> jax.Array:
    """Rows of a weight [vocabulary, hidden]: tokens int32 [T] -> float32 [T, hidden]. Only they are dequantized."""
    rows = {name: jnp.take(part, tokens, axis=0, mode="clip") for name, part in weight.parts.items()}
    if weight.format in FORMATS:
        return dequantize(FORMATS[weight.format], rows)
    return rows[DENSE].astype(jnp.float32)
