"""The paged KV cache as the traced functions see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax

from ...custom_kernels.ops.attention import attention
from ...custom_kernels.ops.rope_and_append import HeadNorm, rope_and_append


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """Pools [layers, pool_rows, width], where the new tokens stand, and where their pool rows are.

    positions int32 [T] (-1: padding), block_table int32 [sequences, blocks]; row t belongs to sequence
    t // (T / sequences). With places, (group, layer of the pool) for each layer of the model, block_table is
    [groups, sequences, blocks].
    """

    k_pool: jax.Array
    v_pool: jax.Array
    block_table: jax.Array
    positions: jax.Array
    block_size: int = field(metadata={"static": True})
    places: tuple[tuple[int, int], ...] | None = field(default=None, metadata={"static": True})
    keys_before: jax.Array | None = None  # of `attend_keys` in the layer before

    def group(self, layer: int) -> tuple[jax.Array, int]:
        """Block table [sequences, blocks] of a layer's group, and the layer's number in the pools."""
        if self.places is None:
            return self.block_table, layer
        group, index = self.places[layer]
        return self.block_table[group], index

    def append(
        self,
        projections: Sequence[jax.Array],
        *,
        heads: int,
        kv_heads: int,
        layer: int,
        norm: HeadNorm | None = None,
        table: jax.Array | None = None,
        interleaved: bool = False,
        query_scale: jax.Array | None = None,
    ) -> tuple[jax.Array, Cache]:
        """Normalize and rotate the projections q, k and v of the new tokens, and write keys and values to a layer.

        projections: q, k, v [T, their heads * head_dim], or those beside each other as one; the rest as the op
        rope_and_append takes it. Returns q [T, heads, head_dim] and the new cache.
        """
        block_table, index = self.group(layer)
        q, k_pool, v_pool = rope_and_append(
            self.k_pool,
            self.v_pool,
            block_table,
            self.positions,
            projections,
            layer=index,
            block_size=self.block_size,
            heads=heads,
            kv_heads=kv_heads,
            table=table,
            interleaved=interleaved,
            norm=norm,
            query_scale=query_scale,
        )
        return q.reshape(len(q), heads, -1), replace(self, k_pool=k_pool, v_pool=v_pool)

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
    ) -> tuple[jax.Array, Cache]:
        """Append k, v [T, kv_heads, head_dim] to a layer, then attend with q [T, heads, head_dim].

        Returns [T, heads * head_dim] and the new cache.
        """
        t, heads, kv_heads = len(q), q.shape[1], k.shape[1]
        rows = [x.reshape(t, -1) for x in (q, k, v)]
        q, cache = self.append(rows, heads=heads, kv_heads=kv_heads, layer=layer)
        return cache.read(q, kv_heads=kv_heads, layer=layer, scale=scale, window=window, softcap=softcap), cache

    def attend_keys(
        self, q: jax.Array, keys: jax.Array, *, layer: int, scale: float, value_dim: int
    ) -> tuple[jax.Array, Cache]:
        """Append keys [T, head_dim] to a layer, then attend with q [T, heads, head_dim] to one key head
        whose values begin its keys. Returns [T, heads, value_dim] and the new cache.

        Layers 2 n and 2 n + 1 are the n-th of k_pool and of v_pool. Both pools are written at once: the first of the
        two layers writes its keys to both, the second writes its own beside them.
        """
        first = keys if layer % 2 == 0 else self.keys_before
        assert first is not None
        _, cache = self.append((keys, first, keys), heads=1, kv_heads=1, layer=layer // 2)  # q needs nothing
        pool = cache.k_pool if layer % 2 == 0 else cache.v_pool
        mixed = attention(
            q,
            pool,
            pool,
            self.block_table,
            self.positions,
            layer=layer // 2,
            kv_heads=1,
            block_size=self.block_size,
            scale=scale,
            value_dim=value_dim,
        )
        return mixed, replace(cache, keys_before=keys)

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
        """Attend with q [T, heads, head_dim] to what a layer holds; [T, heads * head_dim]."""
        block_table, index = self.group(layer)
        mixed = attention(
            q,
            self.k_pool,
            self.v_pool,
            block_table,
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
