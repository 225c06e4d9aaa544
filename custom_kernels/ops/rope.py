"""Rotary position embedding (Su et al., arXiv:2104.09864) by a table of angles that is made at export."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rope(x: jax.Array, table: jax.Array, positions: jax.Array, interleaved: bool = False) -> jax.Array:
    """x float32 [T, heads, head_dim], of each head the first `dims` values rotated to `positions` int32 [T].

    table float32 [context, 4, dims / 2]: of each position the rotation matrix column by column, cos, sin, -sin, cos.
    interleaved: values 2i and 2i + 1 are a pair; otherwise i and i + dims / 2 (Hugging Face's half-split layout).
    """
    t, heads, head_dim = x.shape
    half = table.shape[-1]
    dims = 2 * half
    matrix = jnp.take(table, positions, axis=0, mode="clip").reshape(t, 1, 2, 2, half)
    if interleaved:
        columns = matrix.swapaxes(-1, -2)  # [T, 1, column, pair, row]
        pairs = x[:, :, :dims].reshape(t, heads, half, 2)
        rotated = pairs[..., 0:1] * columns[:, :, 0] + pairs[..., 1:2] * columns[:, :, 1]
    else:
        halves = x[:, :, :dims].reshape(t, heads, 2, half)
        rotated = halves[:, :, 0:1] * matrix[:, :, 0] + halves[:, :, 1:2] * matrix[:, :, 1]
    rotated = rotated.reshape(t, heads, dims)
    return rotated if dims == head_dim else jnp.concatenate([rotated, x[:, :, dims:]], axis=-1)
