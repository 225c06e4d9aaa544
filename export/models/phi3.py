"""Phi-3, 3.5 and 4 (arXiv:2404.14219, 2412.08905): fused weights, LongRoPE, partial rotary embedding."""

from __future__ import annotations

from collections.abc import Mapping

from ..config_keys import Config
from ..config_values import count, refuse
from ..layers.decoder import Decoder
from .pre_norm import FULL, SLIDING, partial_rotary, pre_norm, with_attention, with_mlp, with_windows


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"attention_bias": (False, None), "layer_types": (None,)})
    refuse(config, {"full_attn_mod": (1,), "interpolate_factor": (1,)})
    block = config.get("rope_scaling")
    if isinstance(block, Mapping) and block.get("rope_type", block.get("type")) in ("su", "yarn"):
        config = config | {"rope_scaling": {**block, "rope_type": "longrope"}}  # its first names for LongRoPE
    count(config, "original_max_position_embeddings", 4096)
    decoder = pre_norm(config)
    rope = partial_rotary(config, decoder.attention[0].rope, decoder.head_dim, 1.0)
    decoder = with_mlp(with_attention(decoder, fused=True, rope=rope), fused=True, up="gate_up_proj")
    return with_windows(config, decoder, [FULL if config.get("sliding_window") is None else SLIDING] * decoder.layers)
