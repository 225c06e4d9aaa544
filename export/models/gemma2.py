"""Gemma 2 (arXiv:2408.00118): alternating windows, capped scores and logits, norms before and after each part."""

from __future__ import annotations

import math

from ..config_keys import Config
from ..config_values import flag, optional, positive, refuse
from ..layers.decoder import Decoder
from ..layers.mlp import activation
from .gemma3 import NORMS, Sandwich, gemma_norm
from .pre_norm import FULL, SLIDING, pre_norm, with_attention, with_mlp, with_windows


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None), "use_bidirectional_attention": (False, None)})
    config.unused("hidden_act")  # it is hidden_activation that counts
    bias, scale = flag(config, "attention_bias", False), positive(config, "query_pre_attn_scalar", 256) ** -0.5
    softcap = optional({"attn_logit_softcapping": 50.0} | config, "attn_logit_softcapping")
    d = pre_norm(config, head_dim=256, tied=True)
    d = with_attention(d, scale=scale, softcap=softcap, bias=bias, output_bias=bias)
    d = with_mlp(d, activation=activation(config, "hidden_activation", "gelu_pytorch_tanh"))
    d = with_windows(config, d, [FULL if i % 2 else SLIDING for i in range(d.layers)])
    return Sandwich(
        d.hidden,
        d.vocab_size,
        d.attention,
        d.mlp,
        gemma_norm(config),
        d.tied,
        embedding_scale=math.sqrt(d.hidden),
        logit_softcap=optional({"final_logit_softcapping": 30.0} | config, "final_logit_softcapping"),
        norms=NORMS,
    )
