"""gpt-oss (arXiv:2508.10925): windows in every second layer, sinks, biases, and experts with a clamped SwiGLU."""

from __future__ import annotations

from ..config_keys import Config
from ..config_values import count, flag, positive, refuse
from ..layers.decoder import Decoder
from .mixture import with_experts
from .pre_norm import FULL, SLIDING, pre_norm, with_attention, with_windows

ALPHA = 1.702  # of the activation's sigmoid, which moe_gate_up has built in


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None), "swiglu_alpha": (ALPHA, None)})
    # Of the first is rope_scaling's original context, the second is num_experts_per_tok, the third is clamped SwiGLU.
    config.unused("initial_context_length", "experts_per_token", "hidden_act")
    config = config | {"hidden_act": "silu"}
    decoder, bias = pre_norm(config, theta=150000.0), flag(config, "attention_bias", True)
    decoder = with_attention(decoder, bias=bias, output_bias=bias, sinks=True)
    decoder = with_windows(config, decoder, [FULL if i % 2 else SLIDING for i in range(decoder.layers)])
    return with_experts(
        config,
        decoder,
        "num_local_experts",
        intermediate=count(config, "intermediate_size"),
        scoring="selected",
        activation="clamped",
        limit=positive(config, "swiglu_limit", 7.0),
        bias=True,
        router="router",
        router_bias=True,
    )
