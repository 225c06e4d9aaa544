"""Llama 1, 2, 3.x and what shares its shape (SmolLM2, Falcon 3, ...). Touvron et al., arXiv:2302.13971, 2407.21783."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..config_values import attention_heads, count, flag, positive, refuse
from ..layers.cache import Cache
from ..layers.linear import attention_shapes, embedding, linear, mlp_shapes
from ..layers.norm import rms_norm
from ..layers.rope import RopeScaling, inverse_frequencies, rope, rope_table
from ..layers.weights import Weights


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
    rope_base: float
    rope_scaling: RopeScaling
    tied: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Model:
        """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
        refuse(
            config,
            {
                "hidden_act": ("silu",),
                "attention_bias": (False,),
                "mlp_bias": (False,),
                "sliding_window": (None,),
                "quantization_config": (None,),
                "partial_rotary_factor": (1.0, None),
            },
        )
        hidden = count(config, "hidden_size")
        heads, kv_heads, head_dim = attention_heads(config, hidden)
        return cls(
            hidden=hidden,
            intermediate=count(config, "intermediate_size"),
            layers=count(config, "num_hidden_layers"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=count(config, "vocab_size"),
            epsilon=positive(config, "rms_norm_eps"),
            rope_base=positive(config, "rope_theta", 10000.0),
            rope_scaling=RopeScaling.from_config(config.get("rope_scaling")),
            tied=flag(config, "tie_word_embeddings", False),
        )

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor that a checkpoint must hold."""
        yield "model.embed_tokens.weight", (self.vocab_size, self.hidden)
        for i in range(self.layers):
            p = f"model.layers.{i}."
            yield p + "input_layernorm.weight", (self.hidden,)
            yield from attention_shapes(p, self.hidden, self.heads, self.kv_heads, self.head_dim)
            yield p + "post_attention_layernorm.weight", (self.hidden,)
            yield from mlp_shapes(p, self.hidden, self.intermediate)
        yield "model.norm.weight", (self.hidden,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab_size, self.hidden)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        """Weights that are computed at export."""
        return {
            "rope.table": rope_table(inverse_frequencies(self.head_dim, self.rope_base, self.rope_scaling), context)
        }

    def hidden_states(self, w: Weights, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """tokens int32 [T] -> the normalized last hidden states float32 [T, hidden]."""
        x = embedding(tokens, w["model.embed_tokens.weight"])
        for i in range(self.layers):
            p = f"model.layers.{i}."
            attended, cache = self._attention(
                w, p, rms_norm(x, w[p + "input_layernorm.weight"].dense, self.epsilon), cache, i
            )
            x = x + attended
            x = x + self._mlp(w, p, rms_norm(x, w[p + "post_attention_layernorm.weight"].dense, self.epsilon))
        return rms_norm(x, w["model.norm.weight"].dense, self.epsilon), cache

    def logits(self, w: Weights, hidden: jax.Array) -> jax.Array:
        """float32 [T, hidden] -> float32 [T, vocabulary]."""
        return linear(hidden, w["model.embed_tokens.weight" if self.tied else "lm_head.weight"])

    def _attention(self, w: Weights, p: str, x: jax.Array, cache: Cache, layer: int) -> tuple[jax.Array, Cache]:
        q = linear(x, w[p + "self_attn.q_proj.weight"]).reshape(-1, self.heads, self.head_dim)
        k = linear(x, w[p + "self_attn.k_proj.weight"]).reshape(-1, self.kv_heads, self.head_dim)
        v = linear(x, w[p + "self_attn.v_proj.weight"]).reshape(-1, self.kv_heads, self.head_dim)
        table = w["rope.table"].dense
        q, k = rope(q, table, cache.positions), rope(k, table, cache.positions)
        mixed, cache = cache.attend(q, k, v, layer=layer, scale=self.head_dim**-0.5)
        return linear(mixed, w[p + "self_attn.o_proj.weight"]), cache

    def _mlp(self, w: Weights, p: str, x: jax.Array) -> jax.Array:
        gate = linear(x, w[p + "mlp.gate_proj.weight"])
        return linear(jax.nn.silu(gate) * linear(x, w[p + "mlp.up_proj.weight"]), w[p + "mlp.down_proj.weight"])
