"""llama.cpp's metadata -> the keys of a Hugging Face config.json.

What the metadata leave out is filled in as llama.cpp does it (llama-model.cpp, src/models/gemma3.cpp). A key under the
architecture's own prefix that is not known here is refused: it may change what the model computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import StrixhloError
from ..config_values import LIMIT
from .gguf import GgufFile
from .gguf_metadata import integer, numbers, real, text
from .gguf_rope import rope_scaling

ARCHITECTURES = ("llama", "gemma3")
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
    "attention.sliding_window",
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
_KNOWN_KEYS_OF_GEMMA3 = {
    "attention.sliding_window_pattern",
    "rope.freq_base_swa",
    "final_logit_softcapping",
}


def architecture_of(file: GgufFile) -> str:
    """general.architecture, refused where this package has no mapping for it."""
    architecture = text(file, "general.architecture")
    if architecture not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise StrixhloError(f"{file.path}: architecture {architecture!r} is not supported (supported: {supported})")
    return architecture


def config_of(file: GgufFile) -> dict[str, Any]:
    """The configuration of a llama or gemma3 GGUF file, in Hugging Face's keys."""
    architecture = architecture_of(file)
    _refuse_unknown_keys(file, architecture)
    config = _shared(file, architecture)
    return config | (_gemma3(file, config) if architecture == "gemma3" else _llama(file))


def _refuse_unknown_keys(file: GgufFile, architecture: str) -> None:
    known = _KNOWN_KEYS | (_KNOWN_KEYS_OF_GEMMA3 if architecture == "gemma3" else set())
    prefix = architecture + "."
    for key in file.metadata:
        if key.startswith(prefix) and key.removeprefix(prefix) not in known:
            raise StrixhloError(f"{file.path}: {key} is not supported: it may change what the model computes")
    if integer(file, prefix + "expert_count", 0):
        raise StrixhloError(f"{file.path}: {prefix}expert_count: mixture-of-experts models are not supported yet")


def _shared(file: GgufFile, architecture: str) -> dict[str, Any]:
    prefix = architecture + "."
    hidden = _size(file, prefix + "embedding_length")
    heads = _size(file, prefix + "attention.head_count")
    kv_heads = _size(file, prefix + "attention.head_count_kv", heads)
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
    for key in ("attention.value_length", "rope.dimension_count"):
        if integer(file, prefix + key, head_dim) != head_dim:
            raise StrixhloError(f"{file.path}: {prefix}{key} differs from the head size {head_dim}: not supported")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise StrixhloError(f"{file.path}: tensor token_embd.weight is missing; download the file again")
    config: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": _size(file, prefix + "feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": real(file, prefix + "attention.layer_norm_rms_epsilon"),
        "rope_theta": real(file, prefix + "rope.freq_base", 10000.0),
        "max_position_embeddings": _size(file, prefix + "context_length"),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
    }
    config["rope_scaling"] = rope_scaling(file, prefix, config)
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


def _llama(file: GgufFile) -> dict[str, Any]:
    if "llama.attention.sliding_window" in file.metadata:
        raise StrixhloError(f"{file.path}: llama.attention.sliding_window is not supported for this architecture")
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }


def _gemma3(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    layers, head_dim = config["num_hidden_layers"], config["head_dim"]
    # llama.cpp scales by 1/sqrt(head_dim) in every size except 27B, which it knows by its 62 layers.
    scalar = config["hidden_size"] // config["num_attention_heads"] if layers == 62 else head_dim
    gemma: dict[str, Any] = {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "rope_local_base_freq": real(file, "gemma3.rope.freq_base_swa", 10000.0),
        "sliding_window": integer(file, "gemma3.attention.sliding_window"),
        "layer_types": _layer_types(file, layers),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": real(file, "gemma3.final_logit_softcapping", 0.0) or None,
        "strixhlo_norms_include_one": True,
    }
    if not gemma["sliding_window"]:
        gemma["layer_types"] = ["full_attention"] * layers
    return gemma


def _layer_types(file: GgufFile, layers: int) -> list[str]:
    """Which layers slide: given as one flag a layer or as a period (every n-th layer is global), 6 by default."""
    key = "gemma3.attention.sliding_window_pattern"
    if isinstance(file.metadata.get(key), np.ndarray):
        flags = numbers(file, key, layers)
        return ["sliding_attention" if slides else "full_attention" for slides in (() if flags is None else flags)]
    period = integer(file, key, 6)
    if not period:
        raise StrixhloError(f"{file.path}: {key} is 0; convert the model again")
    return ["full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in range(layers)]
