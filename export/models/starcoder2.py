"""StarCoder 2 (Lozhkov et al., arXiv:2402.19173): LayerNorm, biases everywhere, a plain GELU MLP."""

from __future__ import annotations

from dataclasses import replace

from ..config_keys import Config
from ..config_values import flag, positive, refuse
from ..layers.decoder import Decoder
from ..layers.mlp import activation
from ..layers.norm import Norm
from .pre_norm import FULL, SLIDING, pre_norm, with_attention, with_mlp, with_windows


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None), "layer_types": (None,)})
    refuse(config, {"mlp_type": ("default",), "norm_type": ("layer_norm",), "scale_attn_weights": (True,)})
    config.unused("activation_function", "layer_norm_epsilon")  # older names of hidden_act and norm_epsilon
    config.unused("attention_bias", "mlp_bias")  # use_bias is for both
    config.unused("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")  # it always is
    epsilon = positive(config, "norm_epsilon", 1e-5)
    decoder, bias = pre_norm(config | {"rms_norm_eps": epsilon}, tied=True), flag(config, "use_bias", True)
    decoder = with_attention(decoder, bias=bias, output_bias=bias)
    act = activation(config, "hidden_act", "gelu_pytorch_tanh")
    decoder = with_mlp(decoder, gated=False, up="c_fc", down="c_proj", bias=bias, activation=act)
    decoder = replace(decoder, norm=Norm(epsilon, "layer", bias=True))
    return with_windows(config, decoder, [FULL if config.get("sliding_window") is None else SLIDING] * decoder.layers)
