"""A model -> one StableHLO module with the entry points prefill_<T>, score_<T> and decode_<B>, perhaps embed_<T>.

All entries are traced as functions of one module, so that what they share is there once. Weights are arguments marked
`strixhlo.parameter = "<name>"`; the KV pools are arguments marked `tf.aliasing_output`, updated in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..bundle import EntryPoint, Kind, KVCache, Pooling, entry_point
from ..custom_kernels.ops.argmax import argmax
from .layers.cache import Cache
from .layers.layer_groups import layer_groups
from .layers.weights import Weight, Weights
from .models import Model
from .stablehlo_text import entry_module

DTYPES = {"f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16, "i8": jnp.int8, "i32": jnp.int32}


@dataclass(frozen=True)
class Traced:
    """The program's text, its entry points, the weights that they read, and how often each custom op is called."""

    program: str
    entry_points: dict[str, EntryPoint]
    used: frozenset[str]
    custom_ops: dict[str, int]


def trace(
    model: Model,
    weights: Mapping[str, Weight],
    cache: KVCache,
    entries: Mapping[str, tuple[Kind, int]],
    pooling: Pooling | None = None,
    activations: str = "f32",
) -> Traced:
    """Trace `entries` (name -> kind and rows). `weights` holds shapes (jax.ShapeDtypeStruct) in place of arrays.
    pooling: of embed entries. activations: the type of what goes from layer to layer."""
    used: set[str] = set()
    sizes = cache, model.vocab_size, model.hidden
    points = {name: entry_point(kind, rows, *sizes) for name, (kind, rows) in entries.items()}
    functions, arguments = {}, {}
    for name, (kind, rows) in entries.items():
        functions[name] = jax.jit(_named(name, entry_function(kind, rows, model, cache, used, pooling, activations)))
        arguments[name] = [jax.ShapeDtypeStruct(i.shape, DTYPES[i.dtype]) for i in points[name].inputs]

    def program(weights: Mapping[str, Weight], arguments: Mapping[str, Any]) -> Any:
        return {name: function(weights, *arguments[name]) for name, function in functions.items()}

    # Unused weights must not become arguments: trace to see which are read, then again if that was not all of them.
    jax.eval_shape(program, weights, arguments)
    read = {name: weights[name] for name in sorted(used)}
    text = jax.jit(program, keep_unused=True).lower(read, arguments).as_text()
    leaves, _ = jax.tree_util.tree_flatten_with_path(read)
    names = [_parameter_name(path) for path, _ in leaves]
    module, custom_ops = entry_module(text, points, names)
    return Traced(module, points, frozenset(used), custom_ops)


def _parameter_name(path: tuple[Any, ...]) -> str:
    """('model.norm.weight', .parts, 'dense') -> model.norm.weight.dense"""
    return f"{path[0].key}.{path[-1].key}"


def entry_function(
    kind: Kind,
    rows: int,
    model: Model,
    kv: KVCache,
    used: set[str],
    pooling: Pooling | None = None,
    activations: str = "f32",
) -> Callable[..., Any]:
    """The function of an entry: (weights, *inputs of its EntryPoint) -> its outputs. `used` gets the weights read."""
    places = layer_groups(model.windows, kv.blocks * kv.block_size).places if len(kv.windows) > 1 else None

    def decode(weights: Mapping[str, Weight], tokens: Any, positions: Any, table: Any, k_pool: Any, v_pool: Any) -> Any:
        w = Weights(weights, activations)
        cache = Cache(k_pool, v_pool, table, positions, kv.block_size, places)
        hidden, cache = model.hidden_states(w, tokens, cache)
        logits = model.logits(w, hidden)
        used.update(w.used)
        return logits, argmax(logits), cache.k_pool, cache.v_pool

    def chunk(
        weights: Mapping[str, Weight], tokens: Any, start: Any, count: Any, table: Any, k_pool: Any, v_pool: Any
    ) -> Any:
        w = Weights(weights, activations)
        row = jnp.arange(rows, dtype=jnp.int32)
        positions = jnp.where(row < count, start + row, -1)
        cache = Cache(k_pool, v_pool, table, positions, kv.block_size, places)
        hidden, cache = model.hidden_states(w, tokens, cache)
        if kind == "embed":
            hidden = model.normalized(w, hidden)
        if kind == "embed" and pooling and pooling.method == "mean":
            summed = jnp.sum(jnp.where((row < count)[:, None], hidden, 0.0), axis=0, keepdims=True)
            used.update(w.used)
            return summed, cache.k_pool, cache.v_pool
        if kind in ("prefill", "embed"):
            hidden = jnp.take(hidden, count - 1, axis=0, mode="clip")
        if kind == "embed":
            used.update(w.used)
            return hidden, cache.k_pool, cache.v_pool
        logits = model.logits(w, hidden)
        used.update(w.used)
        return logits, argmax(logits), cache.k_pool, cache.v_pool

    return decode if kind == "decode" else chunk


def _named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The name that the function gets in the module."""
    function.__name__ = function.__qualname__ = name
    return function
