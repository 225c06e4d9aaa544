"""InternLM 3 (Shanghai AI Laboratory): Llama with a bias flag for q, k and v, and one for everything else."""

from __future__ import annotations

from ..config_keys import Config
from ..config_values import flag, refuse
from ..layers.decoder import Decoder
from .pre_norm import pre_norm, with_attention, with_mlp


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None)})
    qkv, rest = (
        flag(config, name, flag(config, other, False))
        for name, other in (("qkv_bias", "attention_bias"), ("bias", "mlp_bias"))
    )
    decoder = with_attention(pre_norm(config, head_dim=128), bias=qkv, output_bias=rest)
    return with_mlp(decoder, bias=rest)
