"""`strixhlo.dense_matmul`: y[m, n] = sum over k of x[m, k] * weight[n, k], the weight in float32, float16 or bfloat16.

Operands: x float32 [M, K], weight [N, K]. Result: float32 [M, N], accumulated in float32. No attributes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

NAME = "strixhlo.dense_matmul"


def reference(x: jax.Array, weight: jax.Array) -> jax.Array:
    """The semantics in plain jnp."""
    return jnp.einsum("mk,nk->mn", x, weight.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)


dense_matmul = jax.lax.composite(reference, name=NAME)
