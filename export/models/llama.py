"""Llama 1, 2, 3.x and what shares its shape (SmolLM2, Falcon 3, ...). Touvron et al., arXiv:2302.13971, 2407.21783."""

from __future__ import annotations

from ..config_keys import Config
from ..config_values import flag, refuse
from ..layers.decoder import Decoder
from .pre_norm import pre_norm, with_attention, with_mlp


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"sliding_window": (None,), "partial_rotary_factor": (1.0, None)})
    bias = flag(config, "attention_bias", False)
    decoder = with_attention(pre_norm(config), bias=bias, output_bias=bias)
    return with_mlp(decoder, bias=flag(config, "mlp_bias", False))
