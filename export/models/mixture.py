"""What the mixture-of-experts families share: which layers have experts, and how a config names their number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config_keys import Config
from ..config_values import count, flag, positive, refuse, whole, wrong
from ..layers.decoder import Decoder, FeedForward
from ..layers.mlp import Mlp
from ..layers.moe import Experts

ACTIVATION = {"hidden_act": ("silu", "swish", None)}


def experts_of(config: Config, hidden: int, number: str, kind: type[Experts] = Experts, **fields: Any) -> Experts:
    """The experts of a layer; number: the config key of how many. kind, fields: `Experts`, or a family's own."""
    refuse(config, ACTIVATION)
    experts, k = count(config, number), count(config, "num_experts_per_tok")
    if k > experts:
        raise wrong("num_experts_per_tok", k, f"at most {number} = {experts}")
    return kind(hidden, experts=experts, k=k, **fields)


def with_experts(config: Config, decoder: Decoder, number: str, **fields: Any) -> Decoder:
    """The decoder with experts in every layer; see `experts_of`."""
    return replace(decoder, mlp=(experts_of(config, decoder.hidden, number, **fields),) * decoder.layers)


def with_dense_layers(config: Config, sparse: Decoder, dense: Decoder) -> Decoder:
    """Layers of `dense` where mlp_only_layers or decoder_sparse_step say that a layer has no experts (Qwen)."""
    step, only = count(config, "decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    if not isinstance(only, list) or any(type(i) is not int for i in only):
        raise wrong("mlp_only_layers", only, "a list of layer numbers")
    chosen = [dense if i in only or (i + 1) % step else sparse for i in range(sparse.layers)]
    return replace(sparse, mlp=tuple(d.mlp[i] for i, d in enumerate(chosen)))


def scored_experts(config: Config, hidden: int, **fields: Any) -> Experts:
    """DeepSeek-V3's mixture (arXiv:2412.19437), GLM's too: sigmoid scores whose choice is corrected, shared experts."""
    refuse(config, {"scoring_func": ("sigmoid", None), "topk_method": ("noaux_tc", None)})
    normalize = flag(config, "norm_topk_prob", True)
    return grouped_experts(
        config, hidden, scoring="sigmoid", normalize=normalize, correction="gate.e_score_correction_bias", **fields
    )


def grouped_experts(config: Config, hidden: int, *, grouped: bool = True, **fields: Any) -> Experts:
    """Experts chosen from the best topk_group of n_group groups (not `grouped`: from all), and shared ones."""
    size, shared = count(config, "moe_intermediate_size"), whole(config, "n_shared_experts", 0)
    groups, group_k = (count(config, "n_group", 1), count(config, "topk_group", 1)) if grouped else (1, 1)
    mlp = Mlp(hidden, size * shared, "silu", module="mlp.shared_experts") if shared else None
    fields |= {"groups": groups, "group_k": group_k, "scale": positive(config, "routed_scaling_factor", 1.0)}
    experts = experts_of(config, hidden, "n_routed_experts", intermediate=size, shared=mlp, shared_gate="", **fields)
    if experts.experts % groups or group_k > groups or experts.k > experts.experts // groups * group_k:
        raise wrong("n_group", groups, f"groups of equal size, {group_k} of which hold {experts.k} experts")
    return experts


def with_first_layers_dense(config: Config, decoder: Decoder, experts: FeedForward) -> Decoder:
    """Experts in all layers but the first first_k_dense_replace; layers that predict further tokens are not run."""
    refuse(config, {"moe_layer_freq": (1,)})
    config.unused("ep_size", "seq_aux", "aux_loss_alpha")  # where experts lie, training
    config.unused("num_nextn_predict_layers", "num_mtp_layers")  # they come after the layers that are run
    first = whole(config, "first_k_dense_replace", 0)
    return replace(
        decoder,
        mlp=tuple(mlp if i < first else experts for i, mlp in enumerate(decoder.mlp)),
        further_layers=True,
    )
