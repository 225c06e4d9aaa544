"""Phi-3.5-MoE (arXiv:2404.14219): Phi-3's LongRoPE, LayerNorm, biases, and SparseMixer's weights (arXiv:2409.12136)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..config_keys import Config
from ..config_values import count, flag, positive, refuse
from ..layers.decoder import Decoder
from ..layers.norm import Norm
from .mixture import with_experts
from .pre_norm import FULL, SLIDING, pre_norm, with_attention, with_windows


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None), "num_experts_per_tok": (2, None)})
    config.unused("input_jitter_noise")  # of training
    decoder, bias = _with_long_rope(config), flag(config, "attention_bias", False)
    decoder = with_attention(decoder, bias=bias, output_bias=bias)
    decoder = with_windows(
        config, decoder, [FULL if config.get("sliding_window") is None else SLIDING] * decoder.layers
    )
    norm, head_bias = Norm(decoder.norm.epsilon, "layer", bias=True), flag(config, "lm_head_bias", False)
    fields = {"intermediate": count(config, "intermediate_size"), "scoring": "sparsemixer"}
    jitter = positive(config, "router_jitter_noise", 0.01)
    sparse = with_experts(config, decoder, "num_local_experts", jitter=jitter, **fields)
    return replace(sparse, norm=norm, head_bias=head_bias)


def _with_long_rope(config: Config) -> Decoder:
    """LongRoPE whose cosines and sines have a factor of their own for short and for long contexts."""
    block = config.get("rope_scaling")
    if not isinstance(block, Mapping):
        return pre_norm(config, theta=1000000.0)
    config.unused("original_max_position_embeddings")  # the block has it too
    short, long = positive(block, "short_mscale"), positive(block, "long_mscale")
    rest = {key: value for key, value in block.items() if key not in ("short_mscale", "long_mscale")}
    decoder = pre_norm(config | {"rope_scaling": rest}, theta=1000000.0)
    rope = decoder.attention[0].rope
    assert rope
    scaling = replace(rope.scaling, magnitude=short, long_magnitude=long)
    return with_attention(decoder, rope=replace(rope, scaling=scaling))
