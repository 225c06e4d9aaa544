"""Linear layers and embeddings over weights of any format."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from ...custom_kernels.ops.dense_matmul import dense_matmul
from ...custom_kernels.ops.formats import FORMATS, dequantize_rows
from ...custom_kernels.ops.quantized_matmul import quantized_matmul
from .weights import DENSE, Weight, Weights


def linear(x: jax.Array, weight: Weight) -> jax.Array:
    """x float32 [T, in] times the transpose of a weight [out, in] -> float32 [T, out]."""
    if weight.format in FORMATS:
        return quantized_matmul(x, weight.parts, weight.format)
    return dense_matmul(x, weight.parts[DENSE])


def projection(x: jax.Array, w: Weights, name: str, bias: bool = False) -> jax.Array:
    """x float32 [T, in] through the linear layer `name`: name.weight [out, in] and, with `bias`, name.bias [out]."""
    y = linear(x, w[f"{name}.weight"])
    return y + w[f"{name}.bias"].dense if bias else y


def projection_shapes(name: str, rows: int, columns: int, bias: bool = False) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of the tensors of a linear layer."""
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def embedding(tokens: jax.Array, weight: Weight) -> jax.Array:
    """Rows of a weight [vocabulary, hidden]: tokens int32 [T] -> float32 [T, hidden]. Only they are dequantized."""
    if weight.format in FORMATS:
        return dequantize_rows(FORMATS[weight.format], weight.parts, tokens)
    return jnp.take(weight.parts[DENSE], tokens, axis=0, mode="clip").astype(jnp.float32)
