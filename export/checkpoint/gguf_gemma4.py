"""Gemma 4's configuration out of GGUF metadata, where layers differ in head size, key and value heads and MLP width."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import StrixhloError
from .gguf import GgufFile
from .gguf_metadata import integer, numbers, real

FULL, SLIDING = "full_attention", "sliding_attention"
P = "gemma4."


def gemma4_config(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """The keys that gguf_config cannot read, given those that it can. StrixhloError for what does not fit together."""
    layers = config["num_hidden_layers"]
    slides = numbers(file, f"{P}attention.sliding_window_pattern", layers)
    if slides is None:
        raise StrixhloError(f"{file.path}: {P}attention.sliding_window_pattern is missing; convert the model again")
    kinds = [SLIDING if s else FULL for s in slides]
    widths = per_layer(file, f"{P}feed_forward_length", layers)
    kv_heads = per_layer(file, f"{P}attention.head_count_kv", layers)
    full_kv = {n for n, kind in zip(kv_heads, kinds, strict=True) if kind == FULL}
    sliding_kv = {n for n, kind in zip(kv_heads, kinds, strict=True) if kind == SLIDING}
    if len(full_kv) != 1 or len(sliding_kv) != 1:
        raise StrixhloError(
            f"{file.path}: {P}attention.head_count_kv differs between layers of one kind: not supported"
        )
    shared = integer(file, f"{P}attention.shared_kv_layers", 0)
    wide = shared > 0 and widths[-1] == 2 * widths[0]
    if widths != [widths[0] * (2 if wide and i >= layers - shared else 1) for i in range(layers)]:
        raise StrixhloError(f"{file.path}: {P}feed_forward_length = {widths[:8]}... is not supported")
    head_dim, full_dim = integer(file, f"{P}attention.key_length_swa"), integer(file, f"{P}attention.key_length")
    for key, size in (("attention.value_length", full_dim), ("attention.value_length_swa", head_dim)):
        if integer(file, P + key, size) != size:
            raise StrixhloError(f"{file.path}: {P}{key} differs from the keys' size {size}: not supported")
    overrides = {"head_dim": full_dim, "num_key_value_heads": full_kv.pop()}
    full = kinds.index(FULL) if FULL in kinds else 0
    return {
        "head_dim": head_dim,
        "num_key_value_heads": sliding_kv.pop(),
        "intermediate_size": widths[0],
        "use_double_wide_mlp": wide,
        "layer_types": kinds,
        "per_layer_config": {str(i): overrides for i, kind in enumerate(kinds) if kind == FULL},
        "attention_k_eq_v": f"blk.{full}.attn_v.weight" not in file.tensors,
        "num_kv_shared_layers": shared,
        "sliding_window": integer(file, f"{P}attention.sliding_window"),
        "rope_local_base_freq": real(file, f"{P}rope.freq_base_swa", 10000.0),
        "rope_scaling": {"rope_type": "proportional"},
        "partial_rotary_factor": _rotated(file, full_dim),
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": real(file, f"{P}final_logit_softcapping", 0.0) or None,
        "hidden_size_per_layer_input": integer(file, f"{P}embedding_length_per_layer_input", 0),
    }


def per_layer(file: GgufFile, key: str, layers: int) -> list[int]:
    """A count for each layer, from one for all or from an array."""
    if isinstance(file.metadata.get(key), np.ndarray):
        values = numbers(file, key, layers)
        return [] if values is None else [int(n) for n in values]
    return [integer(file, key)] * layers


def _rotated(file: GgufFile, head_dim: int) -> float:
    """The part of a full layer's head that is rotated: frequencies divided by 1; by 1e30, the others stand still."""
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None or tensor.type != "F32" or tensor.shape != (head_dim // 2,):
        raise StrixhloError(f"{file.path}: rope_freqs.weight is not {head_dim // 2} float32 numbers")
    factors = file.raw(tensor).view("<f4")
    rotated = int((factors == 1).sum())
    if not rotated or not (factors[:rotated] == 1).all() or not (factors[rotated:] > 1e20).all():
        raise StrixhloError(f"{file.path}: rope_freqs.weight is not Gemma 4's; convert the model again")
    return rotated / len(factors)
