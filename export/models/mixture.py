"""What the mixture-of-experts families share: which layers have experts, and how a config names their number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config_keys import Config
from ..config_values import count, refuse, wrong
from ..layers.decoder import Decoder
from ..layers.moe import Experts

ACTIVATION = {"hidden_act": ("silu", "swish", None)}


def with_experts(config: Config, decoder: Decoder, number: str, **fields: Any) -> Decoder:
    """The decoder with experts in every layer; number: the config key of how many. fields: of `Experts`."""
    refuse(config, ACTIVATION)
    experts, k = count(config, number), count(config, "num_experts_per_tok")
    if k > experts:
        raise wrong("num_experts_per_tok", k, f"at most {number} = {experts}")
    layer = Experts(decoder.hidden, experts=experts, k=k, **fields)
    return replace(decoder, mlp=(layer,) * decoder.layers)


def with_dense_layers(config: Config, sparse: Decoder, dense: Decoder) -> Decoder:
    """Layers of `dense` where mlp_only_layers or decoder_sparse_step say that a layer has no experts (Qwen)."""
    step, only = count(config, "decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    if not isinstance(only, list) or any(type(i) is not int for i in only):
        raise wrong("mlp_only_layers", only, "a list of layer numbers")
    chosen = [dense if i in only or (i + 1) % step else sparse for i in range(sparse.layers)]
    return replace(sparse, mlp=tuple(d.mlp[i] for i, d in enumerate(chosen)))
