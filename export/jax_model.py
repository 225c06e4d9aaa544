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

from ..bundle import KV_ARRAYS, Kind, KVCache, Manifest
from ..errors import StrixhloError
from .checkpoint.contents import Checkpoint
from .export import planned
from .layers.weights import Weight
from .stored_weights import DENSE_DTYPES, StoredWeight
from .trace import DTYPES, entry_function


class JaxModel:
    """One sequence over a checkpoint's model. Weights are read once and held in the types that a bundle stores."""

    def __init__(self, checkpoint: Checkpoint, kv: KVCache, dtype: str = "auto", activations: str = "f32") -> None:
        """kv: the pools and block tables of one sequence. dtype: of weights, and activations, as `export_checkpoint`
        takes them."""
        context = kv.blocks * kv.block_size
        self.model, planned_kv, self.stored = planned(checkpoint, context=context, dtype=dtype, kv_dtype=kv.dtype)
        if (kv.layers, kv.width, kv.windows) != (planned_kv.layers, planned_kv.width, planned_kv.windows):
            raise StrixhloError(
                f"{checkpoint.source}: has a KV cache of another shape than the bundle; is it the bundle's checkpoint?"
            )
        self.kv, self.activations = kv, activations
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
        return np.concatenate([self._chunk("score", piece) for piece in self._pieces(ids)])

    def prefill(self, ids: Sequence[int]) -> np.ndarray:
        """Append ids; logits after the last one, float32 [vocabulary]."""
        return [self._chunk("prefill", piece) for piece in self._pieces(ids)][-1][0]

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

    def _pieces(self, ids: Sequence[int]) -> list[Sequence[int]]:
        return [ids[i : i + self.kv.chunk] for i in range(0, len(ids), self.kv.chunk)]

    def _chunk(self, kind: Kind, piece: Sequence[int]) -> np.ndarray:
        context = self.kv.blocks * self.kv.block_size
        if not len(piece) or self.length + len(piece) > context:
            raise StrixhloError(f"jax: {self.length} + {len(piece)} tokens; 1 to {context} fit the context")
        tokens = jnp.array([*piece, *[0] * (self.kv.chunk - len(piece))], jnp.int32)
        where = (tokens, jnp.array([self.length], jnp.int32), jnp.array([len(piece)], jnp.int32), self.table())
        logits, _, *pools = self._function(kind, self.kv.chunk)(self.weights, *where, *self.pools)
        self.pools, self.length = tuple(pools), self.length + len(piece)
        return np.asarray(logits if kind == "prefill" else logits[: len(piece)])

    def _function(self, kind: Kind, rows: int) -> Callable[..., Any]:
        if (kind, rows) not in self._functions:
            function = entry_function(kind, rows, self.model, self.kv, set(), activations=self.activations)
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
        kv = manifest.kv_cache
        kv = kv.model_copy(update={"dtype": kv_dtype or kv.dtype})
        return JaxModel(checkpoint, kv, dtype, manifest.activations)

    kept = {n.removesuffix(".dense"): p.dtype for n, p in manifest.parameters.items() if n.endswith(".dense")}
    for dtype in ("auto", *DENSE_DTYPES):
        if all(s.parts["dense"][1] == kept.get(n, s.parts["dense"][1]) for n, s in _dense(model(dtype))):
            return model(dtype)
    return model("auto")


def _dense(model: JaxModel) -> list[tuple[str, StoredWeight]]:
    return [(n, s) for n, s in model.stored.items() if "dense" in s.parts]


def _pool_dtype(kv: KVCache) -> Any:
    return DTYPES[KV_ARRAYS[kv.dtype]]
