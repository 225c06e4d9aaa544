"""ERNIE 4.5 with experts (Baidu, 2025): neighbours rotated as pairs, corrected choice of experts, shared experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..config_keys import Config
from ..config_values import count, flag, refuse, whole
from ..layers.decoder import Decoder
from ..layers.mlp import Mlp
from .mixture import experts_of
from .pre_norm import pre_norm, with_attention, with_mlp


@dataclass(frozen=True)
class Ernie(Decoder):
    """Checkpoints also hold layers that predict tokens after the next."""

    def unused(self, name: str) -> bool:
        """Whether it belongs to such a layer."""
        return name.startswith("model.mtp_")


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None), "moe_norm_min": (1e-12, None)})
    refuse(config, {"moe_gate_act": ("softmax", None), "moe_gate": ("topk", None)})
    config.unused("moe_capacity", "moe_use_aux_free", "num_nextn_predict_layers")  # of training
    d, bias = pre_norm(config, theta=500000.0, tied=True), flag(config, "use_bias", False)
    rope = d.attention[0].rope
    assert rope
    d = with_attention(d, rope=replace(rope, interleaved=True), bias=bias, output_bias=bias)
    d = with_mlp(d, bias=bias)
    size, shared = count(config, "moe_intermediate_size"), whole(config, "moe_num_shared_experts", 0)
    mlp = Mlp(d.hidden, size * shared, "silu", bias=bias, module="mlp.shared_experts") if shared else None
    experts = experts_of(
        config | {"num_experts_per_tok": config.get("moe_k")},
        d.hidden,
        "moe_num_experts",
        intermediate=size,
        normalize=True,
        correction="moe_statics.e_score_correction_bias",
        correction_lead=(1,),
        shared=mlp,
        shared_gate="",
    )
    first, step = whole(config, "moe_layer_start_index", 1), count(config, "moe_layer_interval", 1)
    last = d.layers - 1 if config.get("moe_layer_end_index") in (-1, None) else whole(config, "moe_layer_end_index")
    chosen = (experts if first <= i <= last and (i + 1) % step == 0 else m for i, m in enumerate(d.mlp))
    return Ernie(d.hidden, d.vocab_size, d.attention, tuple(chosen), d.norm, d.tied, head_bias=bias)
