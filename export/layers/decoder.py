"""What dense decoder-only families share: embedding, a stack of layers, final norm, output head."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ...custom_kernels.ops.activations import float32
from ...custom_kernels.ops.fused_matmul import Residual
from .attention import Attention
from .cache import Cache
from .linear import embedding, linear
from .norm import Input, Norm
from .probe import probe
from .weights import Weights

FEW = 8  # rows that a matmul normalizes for itself, in float32; of more the norm would be rounded to their type

_LAYER = re.compile(r"model\.layers\.(\d{1,6})\.")


class FeedForward(Protocol):
    """An MLP, or a mixture of experts."""

    def shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]: ...
    def __call__(
        self,
        w: Weights,
        prefix: str,
        x: Input,
        positions: jax.Array | None = None,
        residual: Residual | None = None,
    ) -> jax.Array: ...


@dataclass(frozen=True)
class Decoder:
    """A model whose layers are attention and MLP. A family reads its config into this, and where its layers are not
    pre-norm ones (x + attention(norm(x)), then x + mlp(norm(x))), overrides `layer` and `norms`.

    attention, mlp: one a layer. embedding_scale and residual_scale are factors; logits are multiplied by logit_scale,
    then capped as logit_softcap * tanh(logits / logit_softcap) (0: not). head_bias: lm_head has a bias.
    further_layers: a checkpoint may have layers after the last, which predict tokens after the next; nobody runs them.
    """

    hidden: int
    vocab_size: int
    attention: tuple[Attention, ...]
    mlp: tuple[FeedForward, ...]
    norm: Norm
    tied: bool
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    head_bias: bool = False
    further_layers: bool = False
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.attention)

    @property
    def pool(self) -> tuple[int, int]:
        """(layers, width) of the KV pools: here those of the model, which has the same heads in all layers."""
        return self.layers, self.attention[0].kv_heads * self.attention[0].head_dim

    @property
    def head_dim(self) -> int:
        """Values of a head."""
        return self.attention[0].head_dim

    @property
    def windows(self) -> tuple[int, ...]:
        """Of each layer, the positions behind which its keys and values may be dropped (0: none)."""
        return tuple(abs(a.window) for a in self.attention)

    def unused(self, name: str) -> bool:
        """Whether a tensor that `shapes` does not name may be in a checkpoint all the same."""
        number = _LAYER.match(name)
        return self.further_layers and number is not None and int(number[1]) >= self.layers

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor that a checkpoint must hold."""
        yield "model.embed_tokens.weight", (self.vocab_size, self.hidden)
        for i in range(self.layers):
            p = f"model.layers.{i}."
            for name in self.norms:
                yield from self.norm.shapes(p + name, self.hidden)
            yield from self.attention[i].shapes(p)
            yield from self.mlp[i].shapes(p)
        yield from self.norm.shapes("model.norm", self.hidden)
        if not self.tied:
            yield "lm_head.weight", (self.vocab_size, self.hidden)
        if self.head_bias:
            yield "lm_head.bias", (self.vocab_size,)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        """Weights that are computed at export: the rotary tables."""
        ropes = {a.rope.table: a.rope for a in self.attention if a.rope}
        scales = {a.query_scale.table: a.query_scale for a in self.attention if a.query_scale}
        made = {name: rope.angles(context) for name, rope in ropes.items()}
        return made | {name: scale.values(context) for name, scale in scales.items()}

    def hidden_states(self, w: Weights, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """tokens int32 [T] -> the last hidden states [T, hidden], before the final norm."""
        x = probe(embedding(tokens, w, "model.embed_tokens.weight", self.embedding_scale), "embedding")
        for i in range(self.layers):
            x, cache = self.layer(w, x, cache, i)
        return x, cache

    def layer(self, w: Weights, x: jax.Array, cache: Cache, i: int) -> tuple[jax.Array, Cache]:
        """Layer i, pre-norm: x [T, hidden] -> the same."""
        p, (before_attention, before_mlp) = f"model.layers.{i}.", self.norms
        normed = self.norm.before_matmul(x, w, p + before_attention)
        x, cache = self.attention[i](w, p, normed, cache, i, Residual(x, self.residual_scale))
        x = probe(x, f"layers.{i}.attention")
        normed = self.norm.before_matmul(x, w, p + before_mlp)
        x = self.mlp[i](w, p, normed, cache.positions, Residual(x, self.residual_scale))
        return probe(x, f"layers.{i}.mlp"), cache

    def normalized(self, w: Weights, hidden: jax.Array) -> jax.Array:
        """The result of `hidden_states` after the final norm: float32 [T, hidden]."""
        return self.norm(float32(hidden), w, "model.norm")

    def logits(self, w: Weights, hidden: jax.Array) -> jax.Array:
        """The result of `hidden_states`, or rows of it, [T, hidden] of any type -> float32 [T, vocabulary]."""
        head = w["model.embed_tokens.weight" if self.tied else "lm_head.weight"]
        x = hidden if len(hidden) <= FEW else float32(hidden)
        logits = linear(self.norm.before_matmul(x, w, "model.norm"), head, "f32")
        if self.head_bias:
            logits = logits + w["lm_head.bias"].dense
        if self.logit_scale != 1:
            logits = logits * self.logit_scale
        return jnp.tanh(logits / self.logit_softcap) * self.logit_softcap if self.logit_softcap else logits
