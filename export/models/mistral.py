"""Mistral (Jiang et al., arXiv:2310.06825) and Ministral: Llama with a window in all layers or in some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config_values import refuse
from ..layers.decoder import Decoder
from .pre_norm import FULL, SLIDING, pre_norm, with_windows


def model(config: Mapping[str, Any]) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"attention_bias": (False, None), "mlp_bias": (False, None), "partial_rotary_factor": (1.0, None)})
    decoder = pre_norm(config)
    if config.get("model_type") == "mistral":  # its code does not read layer_types
        config = {k: v for k, v in config.items() if k != "layer_types"}
    return with_windows(config, decoder, [FULL if config.get("sliding_window") is None else SLIDING] * decoder.layers)
