"""llama.cpp's metadata -> the keys of a Hugging Face config.json.

What the metadata leave out is filled in as llama.cpp does it (llama-model.cpp). A key under the
architecture's own prefix that is not known here is refused: it may change what the model computes.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from ...errors import StrixhloError
from ..config_values import LIMIT
from .gguf import GgufFile
from .gguf_architectures import ARCHITECTURES
from .gguf_metadata import integer, real, text
from .gguf_rope import rope_scaling

MAX_LAYERS = 4096  # the largest models have some 130

_KNOWN_KEYS = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "expert_count",
    "expert_used_count",
    "tensor_data_layout",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
}


def architecture_of(file: GgufFile) -> str:
    """general.architecture, refused where there is no mapping for it."""
    architecture = text(file, "general.architecture")
    if architecture not in ARCHITECTURES:
        near = get_close_matches(architecture, ARCHITECTURES, 1, 0.0)[0]
        raise StrixhloError(
            f"{file.path}: architecture {architecture[:60]!r} is not supported; the nearest that is: {near};"
            f" supported: {', '.join(ARCHITECTURES)}"
        )
    return architecture


def config_of(file: GgufFile) -> dict[str, Any]:
    """The configuration of a GGUF file, in Hugging Face's keys."""
    architecture = architecture_of(file)
    _refuse_unknown_keys(file, architecture)
    config = _shared(file, architecture)
    return config | ARCHITECTURES[architecture].config(file, config)


def _refuse_unknown_keys(file: GgufFile, architecture: str) -> None:
    known = _KNOWN_KEYS | ARCHITECTURES[architecture].keys
    prefix = architecture + "."
    for key in file.metadata:
        if key.startswith(prefix) and key.removeprefix(prefix) not in known:
            raise StrixhloError(f"{file.path}: {key} is not supported: it may change what the model computes")
    if integer(file, prefix + "expert_count", 0) and not ARCHITECTURES[architecture].experts:
        raise StrixhloError(
            f"{file.path}: {prefix}expert_count: {architecture} with a mixture of experts is not supported"
        )


def _shared(file: GgufFile, architecture: str) -> dict[str, Any]:
    prefix = architecture + "."
    hidden = _size(file, prefix + "embedding_length")
    heads = _size(file, prefix + "attention.head_count")
    own = ARCHITECTURES[architecture].unequal_layers  # reads what differs between its layers itself
    kv_heads = heads if own else _size(file, prefix + "attention.head_count_kv", heads)
    layers = _size(file, prefix + "block_count")
    if layers > MAX_LAYERS:
        raise StrixhloError(
            f"{file.path}: {prefix}block_count is {layers}, which is impossible; convert the model again"
        )
    if heads % kv_heads:
        raise StrixhloError(f"{file.path}: {prefix}attention.head_count_kv = {kv_heads} does not divide {heads} heads")
    if f"{prefix}attention.key_length" not in file.metadata and hidden % heads:
        raise StrixhloError(f"{file.path}: {prefix}attention.head_count = {heads} does not divide a width of {hidden}")
    head_dim = _size(file, prefix + "attention.key_length", hidden // heads)
    kind = ARCHITECTURES[architecture]
    rotated = integer(file, prefix + "rope.dimension_count", head_dim)
    for key, size in () if own else (("attention.value_length", head_dim), ("rope.dimension_count", rotated)):
        allowed = kind.partial_rotary and key.startswith("rope.") and 0 < size <= head_dim
        if integer(file, prefix + key, size) != head_dim and not allowed:
            raise StrixhloError(f"{file.path}: {prefix}{key} differs from the head size {head_dim}: not supported")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise StrixhloError(f"{file.path}: tensor token_embd.weight is missing; download the file again")
    config: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": 0 if own else _size(file, prefix + "feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        kind.epsilon or "rms_norm_eps": real(
            file, f"{prefix}attention.layer_norm_{'' if kind.epsilon else 'rms_'}epsilon"
        ),
        "rope_theta": real(file, prefix + "rope.freq_base", 10000.0),
        "max_position_embeddings": _size(file, prefix + "context_length"),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": any(f"blk.0.{name}.bias" in file.tensors for name in ("attn_q", "attn_qkv")),
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "model_type": kind.model_type,
        "hidden_act": "silu",
    }
    if kind.partial_rotary:
        config["partial_rotary_factor"] = rotated / head_dim
    config["rope_scaling"] = None if own else rope_scaling(file, prefix, config)
    for key in ("bos", "eos", "padding"):
        token_key = f"tokenizer.ggml.{key}_token_id"
        if token_key in file.metadata:
            config[f"{key.removesuffix('ding')}_token_id"] = integer(file, token_key)
    return config


def _size(file: GgufFile, key: str, default: int | None = None) -> int:
    """A count of at least 1; without a default the key must be there."""
    value = integer(file, key) if default is None else integer(file, key, default)
    if not 0 < value < LIMIT:
        raise StrixhloError(f"{file.path}: {key} is {value}, which is impossible; convert the model again")
    return value
