"""`strixhlo.layer_norm`: a LayerNorm of rows, for what is no matmul that does it on its way in (ops/fused_matmul.py).

  y[m, k] = (x[m, k] - mean of the row) / its standard deviation * weight[k] + bias[k]

Operands: x [M, K] (activations.py); weight float32 [K], to which `offset` is added; where `biased`, bias float32 [K].
Attributes: epsilon, offset, biased. Result: [M, K] of the type of x. Source: arXiv:1607.06450.
"""

from __future__ import annotations

import jax

from .activations import alike, float32
from .norm import layer_norm as layer_norm_of

NAME = "strixhlo.layer_norm"


def reference(
    x: jax.Array, weight: jax.Array, *bias: jax.Array, epsilon: float, offset: float, biased: bool
) -> jax.Array:
    """The semantics in plain jnp."""
    y = layer_norm_of(float32(x), weight + offset, epsilon)
    return (y + bias[0] if biased else y).astype(x.dtype)


_composite = jax.lax.composite(reference, name=NAME)


def layer_norm(
    x: jax.Array, weight: jax.Array, bias: jax.Array | None = None, *, epsilon: float, offset: float = 0.0
) -> jax.Array:
    """x [M, K], weight and bias float32 [K] -> [M, K]. See the module's text."""
    alike(x)
    further = () if bias is None else (bias,)
    return _composite(x, weight, *further, epsilon=epsilon, offset=offset, biased=bias is not None)
