"""GLM-4 (arXiv:2406.12793): half of each head rotated in neighbouring pairs, a fused gate/up weight."""

from __future__ import annotations

from dataclasses import replace

from ..config_keys import Config
from ..config_values import flag
from ..layers.decoder import Decoder
from .gemma3 import Sandwich
from .pre_norm import partial_rotary, pre_norm, with_attention, with_mlp


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    decoder = pre_norm(config, head_dim=128)
    rope = partial_rotary(config, decoder.attention[0].rope, decoder.head_dim, 0.5)
    bias, fused = flag(config, "attention_bias", True), flag(config, "strixhlo_fused_qkv", False)
    decoder = with_attention(decoder, rope=replace(rope, interleaved=True), bias=bias, fused=fused)
    return with_mlp(decoder, fused=True, up="gate_up_proj")


def glm4(config: Config) -> Decoder:
    """GLM-4 of April 2025: norms after attention and MLP too."""
    d = model(config)
    norms = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
    return Sandwich(d.hidden, d.vocab_size, d.attention, d.mlp, d.norm, d.tied, norms=norms)
