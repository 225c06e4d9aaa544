"""SmolLM 3: Llama with layers that have no rotary embedding (NoPE, arXiv:2501.18795)."""

from __future__ import annotations

from dataclasses import replace

from ..config_keys import Config
from ..config_values import count, flag, refuse, wrong
from ..layers.decoder import Decoder
from .pre_norm import FULL, SLIDING, pre_norm, with_attention, with_mlp, with_windows


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None)})
    config.unused("max_window_layers", "sliding_window", "no_rope_layer_interval")  # unless they are read below
    bias = flag(config, "attention_bias", False)
    decoder = with_attention(pre_norm(config, theta=2000000.0, tied=True), bias=bias, output_bias=bias)
    rotated = config.get("no_rope_layers")
    if rotated is None:
        interval = count(config, "no_rope_layer_interval", 4)
        rotated = [int((i + 1) % interval != 0) for i in range(decoder.layers)]
    if not isinstance(rotated, list) or len(rotated) != decoder.layers or any(r not in (0, 1) for r in rotated):
        raise wrong("no_rope_layers", rotated, f"a list of {decoder.layers} numbers, 1 where the layer is rotated")
    attention = zip(decoder.attention, rotated, strict=True)
    decoder = replace(decoder, attention=tuple(a if r else replace(a, rope=None) for a, r in attention))
    window = flag(config, "use_sliding_window", False) and config.get("sliding_window") is not None
    kinds = [SLIDING if window and not r else FULL for r in rotated]
    decoder = with_windows(config, decoder, kinds)
    return with_mlp(decoder, bias=flag(config, "mlp_bias", False))
