"""A linear layer of its own for each head, as the experts' second matmul over tokens that all go to every head."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...custom_kernels.ops.moe_matmul import moe_down
from ...custom_kernels.ops.moe_route import TILE, Routing, most_tiles
from .weights import Weight


def head_linear(x: jax.Array, weight: Weight) -> jax.Array:
    """x [T, heads, K] -> [T, heads, N]; weight [heads * N, K]: row n of head h is row h * N + n."""
    t, heads, k = x.shape
    y = moe_down(x.swapaxes(0, 1).reshape(heads * t, k), all_heads(t, heads), weight.parts, format=weight.format)
    return y.reshape(t, heads, -1)


def all_heads(t: int, heads: int) -> Routing:
    """The routing of T * heads rows, row (t, h) to expert h with weight 1."""
    row = jnp.arange(t * heads, dtype=jnp.int32)
    head, token = row // t, row % t  # of a sorted row
    per_head = -(-t // TILE)
    tile = jnp.arange(most_tiles(t * heads, heads), dtype=jnp.int32)
    first = tile // per_head * t + tile % per_head * TILE
    return Routing(
        ids=(row % heads)[:, None],
        weights=jnp.ones((t * heads, 1), jnp.float32),
        places=(row % heads * t + row // heads)[:, None],
        order=token * heads + head,
        expert=head,
        offsets=jnp.arange(heads + 1, dtype=jnp.int32) * t,
        tiles=jnp.where(tile < heads * per_head, first, -1),
    )
