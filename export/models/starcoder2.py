"""StarCoder 2 (Lozhkov et al., arXiv:2402.19173): LayerNorm, biases everywhere, a plain GELU MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..config_values import flag, positive, refuse
from ..layers.decoder import Decoder
from ..layers.mlp import activation
from ..layers.norm import Norm
from .pre_norm import FULL, SLIDING, pre_norm, with_attention, with_mlp, with_windows


def model(config: Mapping[str, Any]) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None), "layer_types": (None,)})
    epsilon = positive(config, "norm_epsilon", 1e-5)
    decoder, bias = pre_norm({**config, "rms_norm_eps": epsilon}, tied=True), flag(config, "use_bias", True)
    decoder = with_attention(decoder, bias=bias, output_bias=bias)
    act = activation(config, "hidden_act", "gelu_pytorch_tanh")
    decoder = with_mlp(decoder, gated=False, up="c_fc", down="c_proj", bias=bias, activation=act)
    decoder = replace(decoder, norm=Norm(epsilon, "layer", bias=True))
    return with_windows(config, decoder, [FULL if config.get("sliding_window") is None else SLIDING] * decoder.layers)
