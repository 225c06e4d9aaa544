"""Gemma 3, text (arXiv:2503.19786): sliding and global layers with a RoPE base each, q/k norm, pre- and post-norms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import jax

from ..config_keys import Config
from ..config_values import attention_heads, count, flag, layer_count, layer_types, optional, positive, refuse
from ..layers.attention import Attention
from ..layers.cache import Cache
from ..layers.decoder import Decoder
from ..layers.mlp import Mlp, activation
from ..layers.norm import Norm
from ..layers.probe import probe
from ..layers.rope import Rope
from ..layers.weights import Weights

SLIDING, FULL = "sliding_attention", "full_attention"
NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


@dataclass(frozen=True)
class Sandwich(Decoder):
    """Layers with a norm before and after attention and MLP."""

    def layer(self, w: Weights, x: jax.Array, cache: Cache, i: int) -> tuple[jax.Array, Cache]:
        """Layer i: x [T, hidden] -> the same."""
        p = f"model.layers.{i}."
        before_attention, after_attention, before_mlp, after_mlp = (p + name for name in self.norms)
        mixed, cache = self.attention[i](w, p, self.norm.before_matmul(x, w, before_attention), cache, i)
        x = probe(self.norm.added_to(x, mixed, w, after_attention), f"layers.{i}.attention")
        mixed = self.mlp[i](w, p, self.norm.before_matmul(x, w, before_mlp))
        return probe(self.norm.added_to(x, mixed, w, after_mlp), f"layers.{i}.mlp"), cache


def gemma_norm(config: Config) -> Norm:
    """Gemma multiplies by 1 + weight; GGUF files hold the sum."""
    offset = 0.0 if config.get("strixhlo_norms_include_one") else 1.0
    return Norm(positive(config, "rms_norm_eps"), offset=offset)


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(
        config,
        {
            "quantization_config": (None,),
            "partial_rotary_factor": (1.0, None),
            "use_bidirectional_attention": (False, None),
            "attn_logit_softcapping": (None,),  # transformers' Gemma 3 does not do it either
        },
    )
    config.unused("hidden_act")  # it is hidden_activation that counts
    config.unused("sliding_window")  # where all layers are full
    hidden, layers = count(config, "hidden_size"), layer_count(config)
    heads, kv_heads, head_dim = attention_heads(config, hidden)
    bias, norm = flag(config, "attention_bias", False), gemma_norm(config)
    period = count(config, "sliding_window_pattern", 6)
    default = [FULL if (i + 1) % period == 0 else SLIDING for i in range(layers)]
    kinds = layer_types(config, layers, default, (SLIDING, FULL))
    full = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        scale=positive(config, "query_pre_attn_scalar", head_dim) ** -0.5,
        rope=replace(Rope.from_config(config, head_dim, 1000000.0), table="rope.global"),
        bias=bias,
        output_bias=bias,
        norm=norm,
    )
    local = Rope(head_dim, positive(config, "rope_local_base_freq", 10000.0), table="rope.local")
    window = count(config, "sliding_window") if SLIDING in kinds else 0
    sliding = replace(full, rope=local, window=window)
    mlp = Mlp(hidden, count(config, "intermediate_size"), activation(config, "hidden_activation", "gelu_pytorch_tanh"))
    return Sandwich(
        hidden,
        count(config, "vocab_size"),
        tuple(sliding if kind == SLIDING else full for kind in kinds),
        (mlp,) * layers,
        norm,
        tied=flag(config, "tie_word_embeddings", True),
        embedding_scale=math.sqrt(hidden),
        logit_softcap=optional(config, "final_logit_softcapping"),
        norms=NORMS,
    )
