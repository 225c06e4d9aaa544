"""Apertus (arXiv:2509.14233): a norm of each head of q and k, a plain xIELU MLP."""

from __future__ import annotations

from dataclasses import replace

from ..config_keys import Config
from ..config_values import count, flag, refuse
from ..layers.decoder import Decoder
from ..layers.mlp import XieluMlp
from .pre_norm import pre_norm, with_attention


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"hidden_act": ("xielu",), "partial_rotary_factor": (1.0, None)})
    refuse(config, {"qk_norm": (True,), "post_norm": (False,)})
    decoder, bias = pre_norm(config | {"hidden_act": "silu"}, theta=12000000.0), flag(config, "attention_bias", False)
    decoder = with_attention(decoder, norm=decoder.norm, bias=bias, output_bias=bias)
    mlp = XieluMlp(decoder.hidden, count(config, "intermediate_size"))
    return replace(decoder, mlp=(mlp,) * decoder.layers, norms=("attention_layernorm", "feedforward_layernorm"))
