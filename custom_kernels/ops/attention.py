"""`strixhlo.attention`: causal grouped-query attention of new tokens over the paged KV pools of one layer.

Operands: q [T, q_heads, head_dim] (activations.py); k_pool, v_pool [layers, pool_rows, kv_heads * head_dim] (float16,
bfloat16, float32, or int8 that holds E4M3: cache_types.py); block_table int32 [S, blocks]; positions int32 [T]. The T
rows belong to S sequences, T / S to each, in order.
Heads may fill a multiple of the pool's width (layers of unequal heads share one pool): the pool is then taken as
[layers / n, pool_rows, n * width], and `layer` counts in it.
Position p of sequence s lives in pool row `block_table[s, p // block_size] * block_size + p % block_size`. A row at
position i sees the positions p <= i, with a window > 0 only those with i - p < window, and with one < 0 only those of
its chunk of -window positions (Llama 4). A row at position -1 is padding: zeros. A sixth operand, sinks float32
[q_heads], adds exp(sink) to the denominator of each head's softmax (gpt-oss). A value is the first value_dim elements
of its head of v_pool (0: all), as where keys and values are one compressed vector (DeepSeek's latent attention).
Attributes: layer, kv_heads, block_size, window (0: none), scale, softcap (0: none), value_dim. Result: like q, [T,
q_heads, value_dim].
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .activations import alike, float32
from .cache_types import pool_values

NAME = "strixhlo.attention"


def reference(
    q: jax.Array,
    k_pool: jax.Array,
    v_pool: jax.Array,
    block_table: jax.Array,
    positions: jax.Array,
    *sinks: jax.Array,
    layer: int,
    kv_heads: int,
    block_size: int,
    window: int,
    scale: float,
    softcap: float,
    value_dim: int = 0,
) -> jax.Array:
    """The semantics in plain jnp: every position of the block table is read, the invisible ones are masked."""
    t, q_heads, head_dim = q.shape
    sequences, blocks = block_table.shape
    context = blocks * block_size
    rows = (block_table[:, :, None] * block_size + jnp.arange(block_size, dtype=jnp.int32)).reshape(sequences, context)
    keys, values = (
        pool_values(pool.reshape(-1, pool.shape[1], kv_heads * head_dim)[layer][rows]).reshape(
            sequences, context, kv_heads, head_dim
        )
        for pool in (k_pool, v_pool)
    )
    i = positions.reshape(sequences, t // sequences, 1)
    p = jnp.arange(context, dtype=jnp.int32)
    visible = (p <= i) & (i - p < window) if window > 0 else p <= i
    if window < 0:
        visible &= p >= i // -window * -window
    queries = float32(q).reshape(sequences, t // sequences, kv_heads, q_heads // kv_heads, head_dim)
    scores = jnp.einsum("srhgd,sphd->shgrp", queries, keys, precision=jax.lax.Precision.HIGHEST) * scale
    if softcap:
        scores = softcap * jnp.tanh(scores / softcap)
    mask = visible[:, None, None]
    scores = jnp.where(mask, scores, -jnp.inf)
    peak = jnp.max(scores, axis=-1, keepdims=True)
    sink = sinks[0].reshape(1, kv_heads, -1, 1, 1) if sinks else jnp.full((), -jnp.inf)
    peak = jnp.maximum(peak, sink)
    peak = jnp.where(jnp.isfinite(peak), peak, 0.0)
    weights = jnp.where(mask, jnp.exp(scores - peak), 0.0)
    total = jnp.sum(weights, axis=-1, keepdims=True) + jnp.exp(sink - peak)
    weights = weights / jnp.where(total == 0, 1.0, total)
    # A pool row that nobody wrote may hold anything, and 0 * NaN is NaN.
    seen = visible.any(axis=1)[:, :, None, None]
    values = jnp.where(seen, values[..., : value_dim or head_dim], 0.0)
    mixed = jnp.einsum("shgrp,sphd->srhgd", weights, values, precision=jax.lax.Precision.HIGHEST)
    return mixed.reshape(t, q_heads, value_dim or head_dim).astype(q.dtype)


_composite = jax.lax.composite(reference, name=NAME)


def attention(
    q: jax.Array,
    k_pool: jax.Array,
    v_pool: jax.Array,
    block_table: jax.Array,
    positions: jax.Array,
    sinks: jax.Array | None = None,
    *,
    layer: int,
    kv_heads: int,
    block_size: int,
    window: int = 0,
    scale: float,
    softcap: float = 0.0,
    value_dim: int = 0,
) -> jax.Array:
    """q [T, q_heads, head_dim], sinks float32 [q_heads] -> like q, [T, q_heads, value_dim or head_dim]; see the text
    above."""
    alike(q)
    operands = (q, k_pool, v_pool, block_table, positions)
    return _composite(
        *operands,
        *(() if sinks is None else (sinks,)),
        layer=layer,
        kv_heads=kv_heads,
        block_size=block_size,
        window=window,
        scale=scale,
        softcap=softcap,
        value_dim=value_dim,
    )
