"""Qwen 2 and 2.5 (arXiv:2412.15115): biases on q, k and v, windows in the upper layers where switched on."""

from __future__ import annotations

from ..config_keys import Config
from ..config_values import flag, refuse
from ..layers.decoder import Decoder
from .pre_norm import FULL, SLIDING, pre_norm, with_attention, with_windows


def windows(config: Config, decoder: Decoder) -> Decoder:
    """use_sliding_window: the layers from max_window_layers on have a window, unless layer_types says otherwise."""
    config.unused("max_window_layers", "sliding_window")  # unless they are read below
    if not flag(config, "use_sliding_window", False) or config.get("sliding_window") is None:
        refuse({k: config[k] for k in ("layer_types",) if config.get(k)}, {"layer_types": ([FULL] * decoder.layers,)})
        return decoder
    first = config.get("max_window_layers", 28)
    default = [SLIDING if i >= first else FULL for i in range(decoder.layers)]
    return with_windows(config, decoder, default)


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None)})
    config.unused("attention_bias")  # there always is one
    return windows(config, with_attention(pre_norm(config), bias=True))
