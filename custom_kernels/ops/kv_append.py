"""`strixhlo.kv_append`: writes the keys and values of new tokens into the KV pools of one layer, in place.

Operands: k_pool, v_pool [layers, pool_rows, width] (float16, float32, or int8
that holds E4M3: cache_types.py; updated in place), k, v float32 [T, width],
rows int32 [T] (the pool row of each token; a negative one is dropped). Attribute: `layer`. Results: the two pools.
k and v may be n times as wide as the pool, which is then taken as [layers / n, pool_rows, n * width] (attention.py).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .cache_types import pool_elements

NAME = "strixhlo.kv_append"


def reference(
    k_pool: jax.Array, v_pool: jax.Array, k: jax.Array, v: jax.Array, rows: jax.Array, *, layer: int
) -> tuple[jax.Array, jax.Array]:
    """The semantics in plain jnp: round to the pool's dtype, scatter, drop rows outside of the pool."""
    rows = jnp.where(rows < 0, k_pool.shape[1], rows)  # jnp counts negative indices from the end

    def appended(pool: jax.Array, new: jax.Array) -> jax.Array:
        wide = pool.reshape(-1, pool.shape[1], new.shape[1])
        return wide.at[layer, rows].set(pool_elements(new, pool.dtype), mode="drop").reshape(pool.shape)

    return appended(k_pool, k), appended(v_pool, v)


_composite = jax.lax.composite(reference, name=NAME)


def kv_append(
    k_pool: jax.Array, v_pool: jax.Array, k: jax.Array, v: jax.Array, rows: jax.Array, layer: int
) -> tuple[jax.Array, jax.Array]:
    """k, v float32 [T, width] into row `rows[t]` of layer `layer` -> the updated pools."""
    return _composite(k_pool, v_pool, k, v, rows, layer=layer)
