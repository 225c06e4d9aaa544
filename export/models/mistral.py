"""Mistral (Jiang et al., arXiv:2310.06825), Ministral, Ministral 3: Llama with a window in all layers or in some."""

from __future__ import annotations

from collections.abc import Mapping

from ..config_keys import Config
from ..config_values import count, positive, refuse
from ..layers.decoder import Decoder
from ..layers.query_scale import QueryScale
from .pre_norm import FULL, SLIDING, pre_norm, with_attention, with_windows


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"attention_bias": (False, None), "mlp_bias": (False, None), "partial_rotary_factor": (1.0, None)})
    decoder = pre_norm(config)
    if config.get("model_type") != "ministral":  # the others' code does not read layer_types
        config.unused("layer_types")
        config = config | {"layer_types": None}
    return with_windows(config, decoder, [FULL if config.get("sliding_window") is None else SLIDING] * decoder.layers)


def ministral3(config: Config) -> Decoder:
    """Ministral 3 (2025): YaRN, and queries that are scaled up with the position."""
    config = {"rope_theta": 1000000.0, "head_dim": 128, "rms_norm_eps": 1e-5} | config
    block = config.get("rope_scaling")
    if not isinstance(block, Mapping) or block.get("llama_4_scaling_beta") is None:
        return model(config)
    decoder = model(config | {"rope_scaling": {k: v for k, v in block.items() if k != "llama_4_scaling_beta"}})
    original = count(block, "original_max_position_embeddings")
    return with_attention(decoder, query_scale=QueryScale(positive(block, "llama_4_scaling_beta"), original))
