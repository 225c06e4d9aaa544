"""Granite 3, dense (IBM): multipliers on embedding, attention scores, residuals and logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..config_values import flag, positive, refuse
from ..layers.decoder import Decoder
from .pre_norm import pre_norm, with_attention, with_mlp


def model(config: Mapping[str, Any]) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None)})
    bias = flag(config, "attention_bias", False)
    scale = positive(config, "attention_multiplier", 1.0)
    decoder = with_attention(pre_norm(config), scale=scale, bias=bias, output_bias=bias)
    return replace(
        with_mlp(decoder, bias=flag(config, "mlp_bias", False)),
        embedding_scale=positive(config, "embedding_multiplier", 1.0),
        residual_scale=positive(config, "residual_multiplier", 1.0),
        logit_scale=1.0 / positive(config, "logits_scaling", 1.0),
    )
