"""`strixhlo.argmax`: the index of the largest value of each row, so that a greedy step returns 4 bytes a row.

Operand: x float32 [rows, n]. Result: int32 [rows]. Of equal values the lowest index wins. A row without a largest
finite value (it holds NaN or +infinity, or nothing but -infinity) gives -1: the caller must not take it for a token.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

NAME = "strixhlo.argmax"


def reference(x: jax.Array) -> jax.Array:
    """The semantics in plain jnp."""
    n = x.shape[1]
    best = jnp.max(x, axis=1, keepdims=True)
    index = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    first = jnp.min(jnp.where(x == best, index, n), axis=1)
    broken = jnp.any(~(x < jnp.inf), axis=1) | (best[:, 0] == -jnp.inf)
    return jnp.where(broken, -1, first).astype(jnp.int32)


argmax = jax.lax.composite(reference, name=NAME)
