"""Gemma 3, text (arXiv:2503.19786): sliding and global layers with a RoPE base each, q/k norm, pre- and post-norms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..config_values import attention_heads, count, flag, positive, refuse, required, wrong
from ..layers.cache import Cache
from ..layers.linear import attention_shapes, embedding, linear, mlp_shapes
from ..layers.norm import rms_norm
from ..layers.rope import RopeScaling, inverse_frequencies, rope, rope_table
from ..layers.weights import Weights

LAYER_TYPES = ("sliding_attention", "full_attention")


@dataclass(frozen=True)
class Model:
    """The numbers of config.json that the computation needs."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    epsilon: float
    global_base: float
    global_scaling: RopeScaling
    local_base: float
    window: int
    sliding: tuple[bool, ...]
    scale: float
    norm_offset: float
    tied: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Model:
        """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
        refuse(
            config,
            {
                "hidden_activation": ("gelu_pytorch_tanh",),
                "attention_bias": (False,),
                "attn_logit_softcapping": (None,),
                "final_logit_softcapping": (None,),
                "quantization_config": (None,),
                "use_bidirectional_attention": (False, None),
            },
        )
        hidden, layers = count(config, "hidden_size"), count(config, "num_hidden_layers")
        heads, kv_heads, head_dim = attention_heads(config, hidden)
        kinds = required(config, "layer_types")
        if not isinstance(kinds, list) or len(kinds) != layers or any(k not in LAYER_TYPES for k in kinds):
            raise wrong("layer_types", kinds, f"a list that names {layers} layers as {' or '.join(LAYER_TYPES)}")
        return cls(
            hidden=hidden,
            intermediate=count(config, "intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=count(config, "vocab_size"),
            epsilon=positive(config, "rms_norm_eps"),
            global_base=positive(config, "rope_theta"),
            global_scaling=RopeScaling.from_config(config.get("rope_scaling")),
            local_base=positive(config, "rope_local_base_freq", 10000.0),
            window=count(config, "sliding_window") if LAYER_TYPES[0] in kinds else 0,
            sliding=tuple(k == LAYER_TYPES[0] for k in kinds),
            scale=positive(config, "query_pre_attn_scalar", head_dim) ** -0.5,
            # Gemma multiplies by 1 + weight; GGUF files hold the sum.
            norm_offset=0.0 if config.get("strixhlo_norms_include_one") else 1.0,
            tied=flag(config, "tie_word_embeddings", True),
        )

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor that a checkpoint must hold."""
        yield "model.embed_tokens.weight", (self.vocab_size, self.hidden)
        for i in range(self.layers):
            p = f"model.layers.{i}."
            for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
                yield f"{p}{norm}_layernorm.weight", (self.hidden,)
            yield from attention_shapes(p, self.hidden, self.heads, self.kv_heads, self.head_dim)
            yield p + "self_attn.q_norm.weight", (self.head_dim,)
            yield p + "self_attn.k_norm.weight", (self.head_dim,)
            yield from mlp_shapes(p, self.hidden, self.intermediate)
        yield "model.norm.weight", (self.hidden,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab_size, self.hidden)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        """Weights that are computed at export."""
        local = inverse_frequencies(self.head_dim, self.local_base, RopeScaling())
        global_ = inverse_frequencies(self.head_dim, self.global_base, self.global_scaling)
        return {"rope.local": rope_table(local, context), "rope.global": rope_table(global_, context)}

    def hidden_states(self, w: Weights, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """tokens int32 [T] -> the normalized last hidden states float32 [T, hidden]."""
        x = embedding(tokens, w["model.embed_tokens.weight"]) * math.sqrt(self.hidden)
        for i in range(self.layers):
            p = f"model.layers.{i}."
            mixed, cache = self._attention(w, p, self._norm(x, w, p + "input_layernorm.weight"), cache, i)
            x = x + self._norm(mixed, w, p + "post_attention_layernorm.weight")
            mixed = self._mlp(w, p, self._norm(x, w, p + "pre_feedforward_layernorm.weight"))
            x = x + self._norm(mixed, w, p + "post_feedforward_layernorm.weight")
        return self._norm(x, w, "model.norm.weight"), cache

    def logits(self, w: Weights, hidden: jax.Array) -> jax.Array:
        """float32 [T, hidden] -> float32 [T, vocabulary]."""
        return linear(hidden, w["model.embed_tokens.weight" if self.tied else "lm_head.weight"])

    def _norm(self, x: jax.Array, w: Weights, name: str) -> jax.Array:
        return rms_norm(x, w[name].dense + self.norm_offset, self.epsilon)

    def _attention(self, w: Weights, p: str, x: jax.Array, cache: Cache, layer: int) -> tuple[jax.Array, Cache]:
        q = linear(x, w[p + "self_attn.q_proj.weight"]).reshape(-1, self.heads, self.head_dim)
        k = linear(x, w[p + "self_attn.k_proj.weight"]).reshape(-1, self.kv_heads, self.head_dim)
        v = linear(x, w[p + "self_attn.v_proj.weight"]).reshape(-1, self.kv_heads, self.head_dim)
        q = self._norm(q, w, p + "self_attn.q_norm.weight")
        k = self._norm(k, w, p + "self_attn.k_norm.weight")
        sliding = self.sliding[layer]
        table = w["rope.local" if sliding else "rope.global"].dense
        q, k = rope(q, table, cache.positions), rope(k, table, cache.positions)
        mixed, cache = cache.attend(q, k, v, layer=layer, scale=self.scale, window=self.window if sliding else 0)
        return linear(mixed, w[p + "self_attn.o_proj.weight"]), cache

    def _mlp(self, w: Weights, p: str, x: jax.Array) -> jax.Array:
        gate = jax.nn.gelu(linear(x, w[p + "mlp.gate_proj.weight"]), approximate=True)
        return linear(gate * linear(x, w[p + "mlp.up_proj.weight"]), w[p + "mlp.down_proj.weight"])
