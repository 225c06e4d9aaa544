"""A checkpoint evaluated by JAX alone: the functions that the tracer traces, the checkpoint's own weights, no IREE.

Every custom op runs its reference. Nothing of a bundle is read, neither its program nor its weights, so that a fault in
either shows against this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..bundle import KV_ARRAYS, KVCache, Manifest
from ..errors import StrixhloError
from .checkpoint.contents import Checkpoint
from .export import planned
from .layers.weights import Weight
from .stored_weights import DENSE_DTYPES, StoredWeight
from .trace import DTYPES, Kind, entry_function

CHUNK = 128  # rows of a prefill or score call


class JaxModel:
    """One sequence over a checkpoint's model. Weights are read once and held in the types that a bundle stores."""

    def __init__(self, checkpoint: Checkpoint, *, context: int, dtype: str = "auto", kv_dtype: str = "f16") -> None:
        """As `export_checkpoint` takes them."""
        self.model, self.kv, self.stored = planned(checkpoint, context=context, dtype=dtype, kv_dtype=kv_dtype)
        self._weights: dict[str, Weight] = {}
        self._functions: dict[tuple[Kind, int], Callable[..., Any]] = {}
        self.pools = self.empty_pools()
        self.length = 0

    @property
    def weights(self) -> Mapping[str, Weight]:
        """All that the model reads, as arrays."""
        if not self._weights:
            self._weights = {name: loaded(stored) for name, stored in self.stored.items()}
        return self._weights

    def empty_pools(self) -> tuple[jax.Array, jax.Array]:
        """KV pools of zeros."""
        shape = (self.kv.layers, self.kv.rows, self.kv.width)
        return jnp.zeros(shape, _pool_dtype(self.kv)), jnp.zeros(shape, _pool_dtype(self.kv))

    def reset(self) -> None:
        """Forget the sequence; what it wrote stays in the pools, invisible."""
        self.length = 0

    def score(self, ids: Sequence[int]) -> np.ndarray:
        """Append ids; logits after every one, float32 [T, vocabulary]."""
        return np.concatenate([self._chunk("score", ids[i : i + CHUNK]) for i in range(0, len(ids), CHUNK)])

    def prefill(self, ids: Sequence[int]) -> np.ndarray:
        """Append ids; logits after the last one, float32 [vocabulary]."""
        return [self._chunk("prefill", ids[i : i + CHUNK]) for i in range(0, len(ids), CHUNK)][-1][0]

    def decode(self, token: int) -> np.ndarray:
        """Append one token; the logits after it, float32 [vocabulary]."""
        where = (jnp.array([token], jnp.int32), jnp.array([self.length], jnp.int32), self.table())
        logits, _, *pools = self._function("decode", 1)(self.weights, *where, *self.pools)
        self.pools, self.length = tuple(pools), self.length + 1
        return np.asarray(logits[0])

    def table(self) -> jax.Array:
        """The block table of the one sequence."""
        tables = jnp.array(self.kv.own_table(self.kv.blocks * self.kv.block_size), jnp.int32)
        return tables if len(tables) == 1 else tables[:, None]

    def _chunk(self, kind: Kind, piece: Sequence[int]) -> np.ndarray:
        context = self.kv.blocks * self.kv.block_size
        if not len(piece) or self.length + len(piece) > context:
            raise StrixhloError(f"jax: {self.length} + {len(piece)} tokens; 1 to {context} fit the context")
        tokens = jnp.array([*piece, *[0] * (CHUNK - len(piece))], jnp.int32)
        where = (tokens, jnp.array([self.length], jnp.int32), jnp.array([len(piece)], jnp.int32), self.table())
        logits, _, *pools = self._function(kind, CHUNK)(self.weights, *where, *self.pools)
        self.pools, self.length = tuple(pools), self.length + len(piece)
        return np.asarray(logits if kind == "prefill" else logits[: len(piece)])

    def _function(self, kind: Kind, rows: int) -> Callable[..., Any]:
        if (kind, rows) not in self._functions:
            function = entry_function(kind, rows, self.model, self.kv, set())
            donated = (4, 5) if kind == "decode" else (5, 6)
            self._functions[kind, rows] = jax.jit(function, donate_argnums=donated)
        return self._functions[kind, rows]


def loaded(stored: StoredWeight) -> Weight:
    """A weight's parts as JAX arrays."""
    return Weight({name: jnp.asarray(part) for name, part in stored.read().items()}, stored.format, stored.columns)


def model_of_bundle(checkpoint: Checkpoint, manifest: Manifest, kv_dtype: str | None = None) -> JaxModel:
    """The checkpoint as the bundle was exported from it: the same context, types of weights and of the KV cache, or
    `kv_dtype` where another was chosen when compiling."""

    @cache
    def model(dtype: str) -> JaxModel:
        return JaxModel(checkpoint, context=manifest.context, dtype=dtype, kv_dtype=kv_dtype or manifest.kv_cache.dtype)

    kept = {n.removesuffix(".dense"): p.dtype for n, p in manifest.parameters.items() if n.endswith(".dense")}
    for dtype in ("auto", *DENSE_DTYPES):
        if all(s.parts["dense"][1] == kept.get(n, s.parts["dense"][1]) for n, s in _dense(model(dtype))):
            return model(dtype)
    return model("auto")


def _dense(model: JaxModel) -> list[tuple[str, StoredWeight]]:
    return [(n, s) for n, s in model.stored.items() if "dense" in s.parts]


def _pool_dtype(kv: KVCache) -> Any:
    return DTYPES[KV_ARRAYS[kv.dtype]]
