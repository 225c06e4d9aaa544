"""Qwen 3, dense (arXiv:2505.09388): a norm of each head of q and k, no biases by default."""

from __future__ import annotations

from ..config_keys import Config
from ..config_values import flag, refuse
from ..layers.decoder import Decoder
from .pre_norm import pre_norm, with_attention
from .qwen2 import windows


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None)})
    decoder, bias = pre_norm(config, head_dim=128), flag(config, "attention_bias", False)
    return windows(config, with_attention(decoder, norm=decoder.norm, bias=bias, output_bias=bias))
