"""Qwen 1.5, 2 and 3 with experts (arXiv:2407.10671, 2505.09388): the dense models' attention; 2 has a shared expert."""

from __future__ import annotations

from ..config_keys import Config
from ..config_values import count, flag
from ..layers.decoder import Decoder
from ..layers.mlp import Mlp
from . import qwen2, qwen3
from .mixture import with_dense_layers, with_experts
from .pre_norm import with_attention


def _number(config: Config) -> str:
    """The key of the number of experts: transformers 5 writes num_local_experts for Qwen 3."""
    if "num_local_experts" not in config:
        return "num_experts"
    config.unused("num_experts")
    return "num_local_experts"


def qwen2_moe(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    dense = with_attention(qwen2.model(config), bias=flag(config, "qkv_bias", True))
    shared = Mlp(dense.hidden, count(config, "shared_expert_intermediate_size"), "silu", module="mlp.shared_expert")
    size, normalize = count(config, "moe_intermediate_size"), flag(config, "norm_topk_prob", False)
    sparse = with_experts(config, dense, _number(config), intermediate=size, normalize=normalize, shared=shared)
    return with_dense_layers(config, sparse, dense)


def qwen3_moe(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    dense = qwen3.model(config | {"max_window_layers": 0})  # a window, where there is one, is in all layers
    size, normalize = count(config, "moe_intermediate_size"), flag(config, "norm_topk_prob", False)
    sparse = with_experts(config, dense, _number(config), intermediate=size, normalize=normalize)
    return with_dense_layers(config, sparse, dense)
