"""EXAONE 4 (arXiv:2507.11407): post-norms, q/k norm of each head, hybrid models without positions in global layers."""

from __future__ import annotations

from dataclasses import replace

from ..config_keys import Config
from ..config_values import count, refuse
from ..layers.decoder import Decoder
from .olmo2 import post_norm
from .pre_norm import FULL, SLIDING, pre_norm, with_attention, with_windows


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None)})
    decoder = pre_norm(config)
    decoder = post_norm(with_attention(decoder, norm=decoder.norm))
    if config.get("sliding_window") is None:
        return with_windows(config | {"layer_types": None}, decoder, [FULL] * decoder.layers)
    config.unused("sliding_window_pattern")  # layer_types has it
    if config.get("layer_types") is None:
        refuse(config, {"sliding_window_pattern": (4, "LLLG", None)})
    period = count({}, "sliding_window_pattern", 4)
    default = [FULL if (i + 1) % period == 0 else SLIDING for i in range(decoder.layers)]
    decoder = with_windows(config, decoder, default)
    return replace(decoder, attention=tuple(a if a.window else replace(a, rope=None) for a in decoder.attention))
