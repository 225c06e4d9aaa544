"""Linear layers and embeddings over weights of any format."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from ...custom_kernels.ops.dense_matmul import dense_matmul
from ...custom_kernels.ops.formats import FORMATS, dequantize_rows
from ...custom_kernels.ops.quantized_matmul import quantized_matmul
from .weights import DENSE, Weight


def linear(x: jax.Array, weight: Weight) -> jax.Array:
    """x float32 [T, in] times the transpose of a weight [out, in] -> float32 [T, out]."""
    if weight.format in FORMATS:
        return quantized_matmul(x, weight.parts, weight.format)
    return dense_matmul(x, weight.parts[DENSE])


def embedding(tokens: jax.Array, weight: Weight) -> jax.Array:
    """Rows of a weight [vocabulary, hidden]: tokens int32 [T] -> float32 [T, hidden]. Only they are dequantized."""
    if weight.format in FORMATS:
        return dequantize_rows(FORMATS[weight.format], weight.parts, tokens)
    return jnp.take(weight.parts[DENSE], tokens, axis=0, mode="clip").astype(jnp.float32)


def attention_shapes(
    prefix: str, hidden: int, heads: int, kv_heads: int, head_dim: int
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name and shape of a layer's q, k, v and output projections; prefix: "model.layers.0."."""
    for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        yield f"{prefix}self_attn.{name}_proj.weight", (rows * head_dim, hidden)
    yield f"{prefix}self_attn.o_proj.weight", (hidden, heads * head_dim)


def mlp_shapes(prefix: str, hidden: int, intermediate: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name and shape of a layer's gated MLP."""
    yield f"{prefix}mlp.gate_proj.weight", (intermediate, hidden)
    yield f"{prefix}mlp.up_proj.weight", (intermediate, hidden)
    yield f"{prefix}mlp.down_proj.weight", (hidden, intermediate)
