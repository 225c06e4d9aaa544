"""Seed-OSS (ByteDance): Llama with biases on q, k and v."""

from __future__ import annotations

from ..config_keys import Config
from ..config_values import flag, refuse
from ..layers.decoder import Decoder
from .pre_norm import pre_norm, with_attention, with_mlp


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None)})
    bias, output_bias = flag(config, "attention_bias", True), flag(config, "attention_out_bias", False)
    decoder = with_attention(pre_norm(config, head_dim=128), bias=bias, output_bias=output_bias)
    return with_mlp(decoder, bias=flag(config, "mlp_bias", False))
