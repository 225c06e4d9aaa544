"""OLMoE (arXiv:2409.02060): norms of the whole of q and k, 8 of 64 experts a token."""

from __future__ import annotations

from ..config_keys import Config
from ..config_values import count, flag, refuse
from ..layers.decoder import Decoder
from .mixture import with_experts
from .pre_norm import pre_norm, with_attention


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None), "clip_qkv": (None,)})
    decoder, bias = pre_norm(config), flag(config, "attention_bias", False)
    decoder = with_attention(decoder, norm=decoder.norm, norm_over="projection", bias=bias, output_bias=bias)
    size, normalize = count(config, "intermediate_size"), flag(config, "norm_topk_prob", False)
    return with_experts(config, decoder, "num_experts", intermediate=size, normalize=normalize)
