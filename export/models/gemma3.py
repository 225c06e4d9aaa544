"""Gemma 3, text (arXiv:2503.19786): sliding and global layers with a RoPE base each, q/k norm, pre- and post-norms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ...errors import StrixhloError
from ..layers.cache import Cache
from ..layers.linear import embedding, linear
from ..layers.norm import rms_norm
from ..layers.rope import RopeScaling, inverse_frequencies, rope, rope_table
from ..layers.weights import Weights
from .config import refuse, require


@dataclass(frozen=True)
class Model:
    """The numbers of config.json that the computation needs."""

    hidden: int
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
        names = "hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size rms_norm_eps"
        hidden, layers, heads, kv_heads, head_dim, vocab, epsilon = require(config, *names.split())
        kinds, window, global_base = require(config, "layer_types", "sliding_window", "rope_theta")
        if len(kinds) != layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
            raise StrixhloError(
                f"config.json: layer_types must name {layers} layers as sliding_attention or full_attention"
            )
        return cls(
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=vocab,
            epsilon=epsilon,
            global_base=global_base,
            global_scaling=RopeScaling.from_config(config.get("rope_scaling")),
            local_base=config.get("rope_local_base_freq") or 10000.0,
            window=window,
            sliding=tuple(k == "sliding_attention" for k in kinds),
            scale=(config.get("query_pre_attn_scalar") or head_dim) ** -0.5,
            # Gemma multiplies by 1 + weight; GGUF files hold the sum.
            norm_offset=0.0 if config.get("strixhlo_norms_include_one") else 1.0,
            tied=bool(config.get("tie_word_embeddings", True)),
        )

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
