"""Llama 1, 2, 3.x and what shares its shape (SmolLM2, Falcon 3, ...). Touvron et al., arXiv:2302.13971, 2407.21783."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config_values import attention_heads, count, flag, layer_count, positive, refuse
from ..layers.attention import Attention
from ..layers.decoder import Decoder
from ..layers.mlp import Mlp, activation
from ..layers.norm import Norm
from ..layers.rope import Rope


def model(config: Mapping[str, Any]) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(
        config,
        {"sliding_window": (None,), "quantization_config": (None,), "partial_rotary_factor": (1.0, None)},
    )
    hidden, layers = count(config, "hidden_size"), layer_count(config)
    heads, kv_heads, head_dim = attention_heads(config, hidden)
    bias = flag(config, "attention_bias", False)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        scale=head_dim**-0.5,
        rope=Rope.from_config(config, head_dim),
        bias=bias,
        output_bias=bias,
    )
    mlp = Mlp(hidden, count(config, "intermediate_size"), activation(config), bias=flag(config, "mlp_bias", False))
    return Decoder(
        hidden,
        count(config, "vocab_size"),
        (attention,) * layers,
        (mlp,) * layers,
        Norm(positive(config, "rms_norm_eps")),
        tied=flag(config, "tie_word_embeddings", False),
    )
