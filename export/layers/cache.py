"""The paged KV cache as the traced functions see it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp

from ...custom_kernels.ops.attention import attention
from ...custom_kernels.ops.kv_append import kv_append


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """Pools [layers, pool_rows, width], where the new tokens stand, and where their pool rows are.

    positions int32 [T] (-1: padding), rows int32 [T] (-1: padding), block_table int32 [sequences, blocks]. With places,
    (group, layer of the pool) for each layer of the model, rows are [groups, T] and block_table is
    [groups, sequences, blocks].
    """

    k_pool: jax.Array
    v_pool: jax.Array
    block_table: jax.Array
    positions: jax.Array
    rows: jax.Array
    block_size: int = field(metadata={"static": True})
    places: tuple[tuple[int, int], ...] | None = field(default=None, metadata={"static": True})

    @classmethod
    def create(
        cls,
        k_pool: jax.Array,
        v_pool: jax.Array,
        block_table: jax.Array,
        positions: jax.Array,
        block_size: int,
        places: tuple[tuple[int, int], ...] | None = None,
    ) -> Cache:
        """Works out the pool row of every token: row t belongs to sequence t // (T / sequences)."""
        *groups, sequences, blocks = block_table.shape
        block = jnp.clip(positions, 0) // block_size
        sequence = jnp.arange(len(positions), dtype=jnp.int32) // (len(positions) // sequences)
        entries = block_table.reshape(*groups, -1)
        first = jnp.take(entries, sequence * blocks + block, axis=-1, mode="clip") * block_size
        rows = jnp.where(positions < 0, -1, first + positions % block_size)
        return cls(k_pool, v_pool, block_table, positions, rows, block_size, places)

    def group(self, layer: int) -> tuple[jax.Array, jax.Array, int]:
        """Block table [sequences, blocks] and rows [T] of a layer's group, and the layer's number in the pools."""
        if self.places is None:
            return self.block_table, self.rows, layer
        group, index = self.places[layer]
        return self.block_table[group], self.rows[group], index

    def attend(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        layer: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: jax.Array | None = None,
    ) -> tuple[jax.Array, Cache]:
        """Append k, v float32 [T, kv_heads, head_dim] to a layer, then attend with q float32 [T, heads, head_dim].

        Returns float32 [T, heads * head_dim] and the new cache.
        """
        t, kv_heads, _ = k.shape
        _, rows, index = self.group(layer)
        k_pool, v_pool = kv_append(self.k_pool, self.v_pool, k.reshape(t, -1), v.reshape(t, -1), rows, index)
        cache = replace(self, k_pool=k_pool, v_pool=v_pool)
        mixed = cache.read(q, kv_heads=kv_heads, layer=layer, scale=scale, window=window, softcap=softcap, sinks=sinks)
        return mixed, cache

    def read(
        self,
        q: jax.Array,
        *,
        kv_heads: int,
        layer: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: jax.Array | None = None,
    ) -> jax.Array:
        """Attend with q float32 [T, heads, head_dim] to what a layer holds; float32 [T, heads * head_dim]."""
        table, _, index = self.group(layer)
        mixed = attention(
            q,
            self.k_pool,
            self.v_pool,
            table,
            self.positions,
            sinks,
            layer=index,
            kv_heads=kv_heads,
            block_size=self.block_size,
            window=window,
            scale=scale,
            softcap=softcap,
        )
        return mixed.reshape(len(q), -1)
