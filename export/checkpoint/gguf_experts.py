"""Mixtures of experts in GGUF files: stacks `ffn_gate_exps` [E, N, K] and so on, and what the metadata say of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import StrixhloError
from .gguf import GgufFile, GgufTensor
from .gguf_metadata import boolean, integer, real

EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
# expert_count and expert_used_count are known of all architectures.
EXPERT_KEYS = frozenset({"expert_feed_forward_length", "expert_weights_norm", "expert_weights_scale"})
EXPERT_KEYS |= {"expert_gating_func", "expert_group_count", "expert_group_used_count", "expert_shared_count"}
SOFTMAX, SELECTED = 1, 3  # values of expert_gating_func: over all experts, over those chosen


def expert_counts(
    file: GgufFile, prefix: str, number: str, *, normalized: bool, gating: int = SOFTMAX
) -> dict[str, Any]:
    """Hugging Face's keys of how many experts there are and how many a token has. number: the key of the first.

    normalized, gating: what llama.cpp does in this architecture; metadata that say something else are refused.
    """
    experts, used = integer(file, f"{prefix}.expert_count"), integer(file, f"{prefix}.expert_used_count")
    if not 0 < used <= experts:
        raise StrixhloError(f"{file.path}: {prefix}.expert_used_count = {used} of {experts} experts is impossible")
    wrong = {
        "expert_weights_norm": boolean(file, f"{prefix}.expert_weights_norm", normalized) != normalized,
        "expert_weights_scale": real(file, f"{prefix}.expert_weights_scale", 1.0) not in (0.0, 1.0),
        "expert_gating_func": integer(file, f"{prefix}.expert_gating_func", gating) not in (0, gating),
        "expert_group_count": integer(file, f"{prefix}.expert_group_count", 0) > 1,
        "expert_shared_count": integer(file, f"{prefix}.expert_shared_count", 0) > 1,
    }
    for key, is_wrong in wrong.items():
        if is_wrong:
            value = file.metadata[f"{prefix}.{key}"]
            raise StrixhloError(f"{file.path}: {prefix}.{key} = {value} is not supported for this architecture")
    return {number: experts, "num_experts_per_tok": used}


def expert_size(file: GgufFile, prefix: str, default: int) -> int:
    """The width of one expert; default: where the metadata do not say."""
    return integer(file, f"{prefix}.expert_feed_forward_length", 0) or default


def without_experts_dimension(entry: GgufTensor) -> GgufTensor:
    """A stack of experts' matrices [E, N, K] as one of E * N rows; the gate of the shared expert [K] as [1, K]."""
    if "_exps.weight" in entry.name and len(entry.shape) == 3:
        experts, n, k = entry.shape
        return replace(entry, shape=(experts * n, k))
    if "ffn_gate_inp_shexp" in entry.name and len(entry.shape) == 1:
        return replace(entry, shape=(1, *entry.shape))
    return entry
