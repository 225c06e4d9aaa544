"""Gemma 4, text: layers of two head sizes, late layers that read the keys and values of earlier ones, an embedding of
each token for each layer (as in Gemma 3n), experts beside the MLP, no scale of the scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import jax

from ...custom_kernels.ops.activations import float32
from ..config_keys import Config
from ..config_values import count, flag, layer_count, layer_types, optional, positive, refuse
from ..layers.cache import Cache
from ..layers.decoder import Decoder
from ..layers.linear import embedding, projection, projection_shapes
from ..layers.mlp import Mlp, activated, activation
from ..layers.norm import Norm
from ..layers.probe import probe
from ..layers.weights import Weights
from .gemma3 import NORMS
from .gemma4_attention import Gemma4Attention, attention_layers
from .gemma4_experts import Gemma4Experts, gemma4_experts
from .pre_norm import FULL, SLIDING

PER_LAYER = "model.per_layer_model_projection", "model.embed_tokens_per_layer.weight", "model.per_layer_projection_norm"


@dataclass(frozen=True)
class Gemma4(Decoder):
    """places: of each layer's keys and values in the pools, in rows of its own width. per_layer: values of a token for
    each layer (0: none). experts: beside each layer's MLP."""

    places: tuple[int, ...] = ()
    per_layer: int = 0
    activation: str = "gelu_pytorch_tanh"
    experts: Gemma4Experts | None = None

    @property
    def pool(self) -> tuple[int, int]:
        """(layers, width) of the KV pools: width is the narrowest layer's, wide layers take several of them."""
        return pool_places([a for a in self.attention if isinstance(a, Gemma4Attention)])[1]

    @property
    def windows(self) -> tuple[int, ...]:
        """None: layers of several widths share the pools, with one block table."""
        return (0,) * self.layers

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor that a checkpoint must hold."""
        yield from super().shapes()
        for i in range(self.layers):
            p = f"model.layers.{i}."
            yield f"{p}layer_scalar", (1,)
            if self.experts:
                yield from self.experts.shapes(p)
            if self.per_layer:
                yield from projection_shapes(f"{p}per_layer_input_gate", self.per_layer, self.hidden)
                yield from projection_shapes(f"{p}per_layer_projection", self.hidden, self.per_layer)
                yield from self.norm.shapes(f"{p}post_per_layer_input_norm", self.hidden)
        if self.per_layer:
            projection_name, table, norm = PER_LAYER
            yield from projection_shapes(projection_name, self.layers * self.per_layer, self.hidden)
            yield table, (self.vocab_size, self.layers * self.per_layer)
            yield from self.norm.shapes(norm, self.per_layer)

    def unused(self, name: str) -> bool:
        """Checkpoints hold keys and values of the layers too that read those of others."""
        layers = (i for i, a in enumerate(self.attention) if isinstance(a, Gemma4Attention) and a.reads_others)
        return name.startswith(tuple(f"model.layers.{i}.self_attn.{part}" for i in layers for part in ("k_", "v_")))

    def hidden_states(self, w: Weights, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """tokens int32 [T] -> the last hidden states [T, hidden], before the final norm."""
        x = probe(embedding(tokens, w, "model.embed_tokens.weight", self.embedding_scale), "embedding")
        inputs = self._inputs(w, tokens, x) if self.per_layer else None
        for i in range(self.layers):
            x, cache = self.layer(w, x, cache, i)
            if inputs is not None:
                x = self._with_input(w, x, inputs[:, i], i)
            x = probe(x, f"layers.{i}.mlp")
        return x, cache

    def layer(self, w: Weights, x: jax.Array, cache: Cache, i: int) -> tuple[jax.Array, Cache]:
        """Layer i; where it has an embedding of its own, without that and its factor: x [T, hidden] -> the same."""
        p = f"model.layers.{i}."
        before_attention, after_attention, before_mlp, after_mlp = (p + name for name in self.norms)
        normed = self.norm.before_matmul(x, w, before_attention)
        mixed, cache = self.attention[i](w, p, normed, cache, self.places[i])
        x = probe(self.norm.added_to(x, mixed, w, after_attention), f"layers.{i}.attention")
        mixed = self.mlp[i](w, p, self.norm.before_matmul(x, w, before_mlp))
        if self.experts:
            mixed = self.experts.beside(w, p, x, mixed, cache.positions)
        factor = None if self.per_layer else w[f"{p}layer_scalar"].dense
        return self.norm.added_to(x, mixed, w, after_mlp, factor), cache

    def _inputs(self, w: Weights, tokens: jax.Array, x: jax.Array) -> jax.Array:
        """What each layer is given of each token: from its embedding for all layers, and from x; [T, layers, n]."""
        projection_name, table, norm = PER_LAYER
        shape = (len(tokens), self.layers, self.per_layer)
        context = projection(x, w, projection_name).reshape(shape) * self.hidden**-0.5
        own = embedding(tokens, w, table, math.sqrt(self.per_layer)).reshape(shape)
        return (self.norm(context, w, norm) + own) * 2**-0.5

    def _with_input(self, w: Weights, x: jax.Array, given: jax.Array, i: int) -> jax.Array:
        p = f"model.layers.{i}."
        gate = float32(activated(x, w, f"{p}per_layer_input_gate", self.activation))
        added = projection((gate * float32(given)).astype(x.dtype), w, f"{p}per_layer_projection")
        return self.norm.added_to(x, added, w, f"{p}post_per_layer_input_norm", w[f"{p}layer_scalar"].dense)


def pool_places(layers: list[Gemma4Attention]) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Where each layer's keys and values lie in pools that all layers share, and (layers, width) of those.

    The pool's width is the greatest common divisor of the layers' widths; a layer of n such widths takes n of the
    pool's layers, from a multiple of n on, so that the op can take the pool as one of rows of n widths.
    """
    widths = [a.kv_heads * a.head_dim for a in layers]
    unit, places, taken = math.gcd(*widths), dict[int, int](), 0
    multiples = [width // unit for width in widths]
    for n in sorted(set(multiples), reverse=True):  # wide ones first: what they take is a multiple of their width
        for i, a in enumerate(layers):
            if multiples[i] == n and not a.reads_others:
                places[i] = -(-taken // n)
                taken = (places[i] + 1) * n
    total = math.lcm(*multiples)
    found = tuple(places[a.source if a.reads_others else i] for i, a in enumerate(layers))
    return found, (-(-taken // total) * total, unit)


def model(config: Config) -> Gemma4:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(
        config,
        {
            "quantization_config": (None,),
            "use_bidirectional_attention": (None, False, "vision"),  # of text it sees the past only
            "attn_logit_softcapping": (None,),
        },
    )
    config.unused("hidden_act", "num_experts", "top_k_experts", "moe_intermediate_size")  # unless they are read below
    hidden, layers = count(config, "hidden_size"), layer_count(config)
    default = [FULL if (i + 1) % 6 == 0 or i == layers - 1 else SLIDING for i in range(layers)]
    kinds = layer_types(config, layers, default, (SLIDING, FULL))
    norm = Norm(positive(config, "rms_norm_eps", 1e-6))
    attention = attention_layers(config, kinds, hidden, norm)
    act = activation(config, "hidden_activation", "gelu_pytorch_tanh")
    mlp = Mlp(hidden, count(config, "intermediate_size"), act)
    wide = replace(mlp, intermediate=mlp.intermediate * (2 if flag(config, "use_double_wide_mlp", False) else 1))
    per_layer = 0
    config.unused("vocab_size_per_layer_input")  # unless it is read below
    if config.get("hidden_size_per_layer_input", 256):
        per_layer = count(config, "hidden_size_per_layer_input", 256)
        refuse(config, {"vocab_size_per_layer_input": (config.get("vocab_size"), None)})
    return Gemma4(
        hidden,
        count(config, "vocab_size"),
        attention,
        tuple(wide if a.reads_others else mlp for a in attention),
        norm,
        tied=flag(config, "tie_word_embeddings", True),
        embedding_scale=math.sqrt(hidden),
        logit_softcap=optional(config, "final_logit_softcapping"),
        norms=NORMS,
        places=pool_places(list(attention))[0],
        per_layer=per_layer,
        activation=act,
        experts=gemma4_experts(config, hidden, norm, act) if flag(config, "enable_moe_block", False) else None,
    )
