"""DeepSeek-V2 (arXiv:2405.04434) and V3, R1 (arXiv:2412.19437): latent attention, groups of experts, shared experts."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..config_keys import Config
from ..config_values import count, flag, layer_count, positive, refuse, wrong
from ..layers.decoder import FeedForward
from ..layers.latent_attention import LatentAttention, LatentDecoder
from ..layers.mlp import Mlp, activation
from ..layers.norm import Norm
from ..layers.rope import Rope
from .mixture import grouped_experts, scored_experts, with_first_layers_dense


def v2(config: Config) -> LatentDecoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"scoring_func": ("softmax", None), "norm_topk_prob": (False, None)})
    refuse(config, {"topk_method": ("greedy", "group_limited_greedy", None)})
    grouped = config.get("topk_method") == "group_limited_greedy"
    config.unused("n_group", "topk_group")  # unless they are read below
    refuse(config, {"mlp_bias": (False, None)})
    experts = grouped_experts(config, count(config, "hidden_size"), grouped=grouped, group_top=1)
    return _decoder(config, experts, interleaved=True)


def v3(config: Config) -> LatentDecoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    experts = scored_experts(config, count(config, "hidden_size"))
    return _decoder(config, experts, interleaved=flag(config, "rope_interleave", True))


def _decoder(config: Config, experts: FeedForward, *, interleaved: bool) -> LatentDecoder:
    refuse(config, {"quantization_config": (None,), "partial_rotary_factor": (1.0, None)})
    hidden, layers = count(config, "hidden_size"), layer_count(config)
    mlp = Mlp(hidden, count(config, "intermediate_size"), activation(config))
    dense = LatentDecoder(
        hidden,
        count(config, "vocab_size"),
        (_attention(config, hidden, interleaved),) * layers,
        (mlp,) * layers,
        Norm(positive(config, "rms_norm_eps", 1e-6)),
        tied=flag(config, "tie_word_embeddings", False),
    )
    decoder = with_first_layers_dense(config, dense, experts)
    assert isinstance(decoder, LatentDecoder)
    return decoder


def _attention(config: Config, hidden: int, interleaved: bool) -> LatentAttention:
    heads, bias = count(config, "num_attention_heads"), flag(config, "attention_bias", False)
    refuse(config, {"num_key_value_heads": (heads, None)})
    config.unused("head_dim", "qk_head_dim")  # they follow from the next ones
    rotated, plain = count(config, "qk_rope_head_dim"), count(config, "qk_nope_head_dim")
    if rotated % 2:
        raise wrong("qk_rope_head_dim", rotated, "even, as rotary embeddings need it")
    kv_rank = count(config, "kv_lora_rank")
    return LatentAttention(
        hidden,
        heads,
        1,
        kv_rank + rotated,
        scale=(plain + rotated) ** -0.5 * _sharpened(config),
        rope=Rope.from_config(config, rotated, interleaved=interleaved),
        bias=bias,
        output_bias=bias,
        q_rank=0 if config.get("q_lora_rank") is None else count(config, "q_lora_rank"),
        kv_rank=kv_rank,
        plain=plain,
        value=count(config, "v_head_dim"),
    )


def _sharpened(config: Config) -> float:
    """YaRN's factor of the scores: the square of what mscale_all_dim makes of its factor."""
    block = config.get("rope_scaling")
    if not isinstance(block, Mapping) or not block.get("mscale_all_dim"):
        return 1.0
    factor, weight = positive(block, "factor"), positive(block, "mscale_all_dim")
    return (0.1 * weight * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0
