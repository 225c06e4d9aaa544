"""`strixhlo.rope_and_append`: what stands between the projections q, k, v of new tokens and their attention. Norms of
the heads of q and k, rotary embedding, and keys and values into the KV pools of one layer, in place.

Operands, those in brackets where the attributes ask for them:
- k_pool, v_pool [layers, pool_rows, width] (float16, bfloat16, float32, or int8 that holds E4M3: cache_types.py),
  updated in place. Heads may fill a multiple of the pool's width, as in attention.py;
- block_table int32 [S, blocks], positions int32 [T]: where the tokens go, as in attention.py. What would lie outside of
  the block table or of the pools is dropped. A row at position -1 is padding: its q is 0;
- q, k, v [T, heads * head_dim] (k, v: kv_heads), activations (activations.py), or with `fused` qkv, the three beside
  each other;
- [table]: with `rotated`, see rope.py. Past its end its last row counts;
- [q_weight, k_weight]: with `norm`, float32 [head_dim] or of each head its own [heads, head_dim]; `offset` is added.
  Of the norm "whole", an RMSNorm over all heads together, float32 [heads * head_dim];
- [query_scale] float32 [context]: with `query_scaled`, a factor on q by its position; past its end its last counts.
Attributes: layer, block_size, heads, kv_heads, head_dim, fused, rotated, interleaved (rope.py), norm ("", "rms",
"layer": norm.py, or "whole"), epsilon, offset, norm_values (v gets an RMSNorm without a weight), query_scaled.
Results: q [T, heads * head_dim] of the type that it had, and the two pools. All is computed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from .activations import alike, float32
from .cache_types import pool_elements
from .norm import layer_norm, rms_norm
from .rope import rope

NAME = "strixhlo.rope_and_append"
NORMS = ("", "rms", "layer", "whole")


@dataclass(frozen=True)
class HeadNorm:
    """The norm of each head of q and k, or of all heads together, and with `values` that of v, which has no weight."""

    kind: Literal["rms", "layer", "whole"]
    epsilon: float
    q_weight: jax.Array
    k_weight: jax.Array
    offset: float = 0.0
    values: bool = False


def operand_names(attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a call with these attributes."""
    names: tuple[str, ...] = ("k_pool", "v_pool", "block_table", "positions")
    names += ("qkv",) if attributes["fused"] else ("q", "k", "v")
    names += ("table",) if attributes["rotated"] else ()
    names += ("q_weight", "k_weight") if attributes["norm"] else ()
    return names + (("query_scale",) if attributes["query_scaled"] else ())


def rows_in_pool(block_table: jax.Array, positions: jax.Array, block_size: int, rows: int) -> jax.Array:
    """The pool row of each token, int32 [T], for pools of `rows` rows; `rows` where it has none."""
    sequences, blocks = block_table.shape
    sequence = jnp.arange(len(positions), dtype=jnp.int32) // (len(positions) // sequences)
    block = jnp.clip(positions, 0) // block_size
    first = jnp.take(block_table.reshape(-1), sequence * blocks + jnp.minimum(block, blocks - 1), mode="clip")
    inside = (positions >= 0) & (block < blocks) & (first >= 0) & (first <= (rows - 1) // block_size)
    row = jnp.where(inside, first, 0) * block_size + positions % block_size
    return jnp.where(inside & (row < rows), row, rows)


def reference(k_pool: jax.Array, v_pool: jax.Array, *operands: jax.Array, **attributes: Any) -> tuple[jax.Array, ...]:
    """The semantics in plain jnp."""
    names = operand_names(attributes)[2:]
    given = dict(zip(names, operands, strict=True))
    positions, head_dim, layer = given["positions"], attributes["head_dim"], attributes["layer"]
    projections = _split(given, attributes)
    q, k, v = (float32(x).reshape(len(positions), -1, head_dim) for x in projections)
    if attributes["norm"]:
        q, k = (_normed(x, given[f"{name}_weight"], attributes) for x, name in ((q, "q"), (k, "k")))
    if attributes["norm_values"]:
        v = rms_norm(v, jnp.float32(1), attributes["epsilon"])
    if attributes["rotated"]:
        q, k = (rope(x, given["table"], positions, attributes["interleaved"]) for x in (q, k))
    if attributes["query_scaled"]:
        q = q * jnp.take(given["query_scale"], positions, mode="clip")[:, None, None]
    q = jnp.where(positions[:, None, None] < 0, 0.0, q)
    rows = rows_in_pool(given["block_table"], positions, attributes["block_size"], k_pool.shape[1])

    def appended(pool: jax.Array, new: jax.Array) -> jax.Array:
        new = new.reshape(len(new), -1)
        wide = pool.reshape(-1, pool.shape[1], new.shape[1])
        return wide.at[layer, rows].set(pool_elements(new, pool.dtype), mode="drop").reshape(pool.shape)

    return q.reshape(len(q), -1).astype(projections[0].dtype), appended(k_pool, k), appended(v_pool, v)


def _split(given: Mapping[str, jax.Array], attributes: Mapping[str, Any]) -> Sequence[jax.Array]:
    if not attributes["fused"]:
        return [given[name] for name in "qkv"]
    k_start = attributes["heads"] * attributes["head_dim"]
    return jnp.split(given["qkv"], [k_start, k_start + attributes["kv_heads"] * attributes["head_dim"]], axis=1)


def _normed(x: jax.Array, weight: jax.Array, attributes: Mapping[str, Any]) -> jax.Array:
    if attributes["norm"] == "whole":
        return rms_norm(x.reshape(len(x), -1), weight + attributes["offset"], attributes["epsilon"]).reshape(x.shape)
    norm = rms_norm if attributes["norm"] == "rms" else layer_norm
    return norm(x, weight + attributes["offset"], attributes["epsilon"])


_composite = jax.lax.composite(reference, name=NAME)


def rope_and_append(
    k_pool: jax.Array,
    v_pool: jax.Array,
    block_table: jax.Array,
    positions: jax.Array,
    projections: Sequence[jax.Array],
    *,
    layer: int,
    block_size: int,
    heads: int,
    kv_heads: int,
    table: jax.Array | None = None,
    interleaved: bool = False,
    norm: HeadNorm | None = None,
    query_scale: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """projections: (q, k, v) or (qkv,); see the module's text. Returns q and the updated pools."""
    alike(*projections)
    fused = len(projections) == 1
    weights = (norm.q_weight, norm.k_weight) if norm else ()
    further = (*(() if table is None else (table,)), *weights, *(() if query_scale is None else (query_scale,)))
    columns = heads + 2 * kv_heads if fused else heads
    q, k_pool, v_pool = _composite(
        k_pool,
        v_pool,
        block_table,
        positions,
        *projections,
        *further,
        layer=layer,
        block_size=block_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=projections[0].shape[1] // columns,
        fused=fused,
        rotated=table is not None,
        interleaved=interleaved,
        norm=norm.kind if norm else "",
        epsilon=norm.epsilon if norm else 0.0,
        offset=norm.offset if norm else 0.0,
        norm_values=norm is not None and norm.values,
        query_scaled=query_scale is not None,
    )
    return q, k_pool, v_pool
