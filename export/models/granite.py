"""Granite 3 (dense and with experts) and 4 (dense), IBM: multipliers on embedding, scores, residuals and logits."""

from __future__ import annotations

from dataclasses import replace

from ..config_keys import Config
from ..config_values import count, flag, positive, refuse, required, wrong
from ..layers.decoder import Decoder
from .mixture import with_experts
from .pre_norm import pre_norm, with_attention, with_mlp


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None)})
    bias = flag(config, "attention_bias", False)
    scale = positive(config, "attention_multiplier", 1.0)
    decoder = with_attention(pre_norm(config), scale=scale, bias=bias, output_bias=bias)
    return replace(
        with_mlp(decoder, bias=flag(config, "mlp_bias", False)),
        embedding_scale=positive(config, "embedding_multiplier", 1.0),
        residual_scale=positive(config, "residual_multiplier", 1.0),
        logit_scale=1.0 / positive(config, "logits_scaling", 1.0),
    )


def granitemoe(config: Config) -> Decoder:
    """Granite 3 with experts: softmax over the chosen ones."""
    size = count(config, "intermediate_size")
    return with_experts(config, model(config), "num_local_experts", intermediate=size, scoring="selected")


def granite4(config: Config) -> Decoder:
    """Granite 4 without experts and without Mamba layers: a fused gated MLP under other names."""
    refuse(config, {"num_local_experts": (0,), "position_embedding_type": ("rope", None)})
    refuse(config, {"normalization_function": ("rmsnorm",)})
    config.unused("init_method", "num_experts_per_tok", "time_step_limit")
    config.unused(*(key for key in config if key.startswith("mamba_")))
    decoder = model(config)
    kinds = config.get("layer_types") or required(config, "layers_block_type")
    if not isinstance(kinds, list) or len(kinds) != decoder.layers or {*kinds} - {"attention", "full_attention"}:
        raise wrong("layer_types", kinds, f"{decoder.layers} times attention: Mamba layers are not supported")
    if config.get("position_embedding_type") is None:
        decoder = with_attention(decoder, rope=None)
    names = {"module": "shared_mlp", "up": "input_linear", "down": "output_linear"}
    return with_mlp(decoder, intermediate=count(config, "shared_intermediate_size"), fused=True, bias=False, **names)
