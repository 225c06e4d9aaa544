"""`strixhlo.dense_matmul`: y[m, n] = sum over k of x[m, k] * weight[n, k], the weight in float32, float16 or bfloat16.

Operands: x [M, K] (float32, float16 or bfloat16: activations.py), weight [N, K]. Result: [M, N] of the type of x,
accumulated in float32. No attributes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .activations import float32

NAME = "strixhlo.dense_matmul"


def reference(x: jax.Array, weight: jax.Array) -> jax.Array:
    """The semantics in plain jnp."""
    y = jnp.einsum("mk,nk->mn", float32(x), float32(weight), precision=jax.lax.Precision.HIGHEST)
    return y.astype(x.dtype)


dense_matmul = jax.lax.composite(reference, name=NAME)
