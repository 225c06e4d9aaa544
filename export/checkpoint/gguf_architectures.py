"""llama.cpp's architectures: the Hugging Face model, tensor names and configuration that each stands for.

Adding one: its layer tensors (names: gguf-py/gguf/constants.py), the metadata keys of its own, and what its
configuration says beside what all share. What the metadata leave out is filled in as llama.cpp does it (src/models/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import StrixhloError
from .gguf import GgufFile
from .gguf_experts import EXPERT_KEYS, EXPERTS, SELECTED, SHARED_EXPERT, expert_counts, expert_size
from .gguf_gemma4 import gemma4_config
from .gguf_metadata import boolean, integer, numbers, real

Config = dict[str, Any]

ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
FUSED_MLP = {"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}
PRE_NORM = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
POST_NORM = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
SANDWICH = {"attn_norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm"} | POST_NORM
LLAMA = ATTENTION | MLP | PRE_NORM
FULL, SLIDING = "full_attention", "sliding_attention"


def _nothing(_file: GgufFile, _config: Config) -> Config:
    return {}


@dataclass(frozen=True)
class Architecture:
    """tensors: name in a block -> name in a layer. keys: metadata keys beside those that all have.

    interleaved: the converter has interleaved the two halves of each head of q and k (for rotating neighbours), which
    is undone. epsilon: the config key of a LayerNorm's epsilon; None: RMS norms. partial_rotary: the rotated part of a
    head may be smaller than it. config: what it adds, given what all share. outside: tensors outside of the layers.
    bare: layer tensors whose name has no ".weight". experts: it may have them, and `config` reads how many.
    unequal_layers: `config` reads what differs between layers.
    """

    model_type: str
    tensors: Mapping[str, str]
    keys: frozenset[str] = frozenset()
    interleaved: bool = False
    epsilon: str | None = None
    partial_rotary: bool = False
    unequal_layers: bool = False
    outside: Mapping[str, str] = field(default_factory=dict)
    bare: frozenset[str] = frozenset()
    experts: bool = False
    config: Callable[[GgufFile, Config], Config] = field(default=_nothing)


def _gemma2(file: GgufFile, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        # llama.cpp scales by 1/sqrt(head_dim) in every size except 27B, which it knows by its layers.
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]
        if layers == 46
        else config["head_dim"],
        "attn_logit_softcapping": real(file, "gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": real(file, "gemma2.final_logit_softcapping", 30.0),
        "sliding_window": integer(file, "gemma2.attention.sliding_window", 4096),
        "layer_types": [FULL if i % 2 else SLIDING for i in range(layers)],
        "strixhlo_norms_include_one": True,
    }


def _gemma3(file: GgufFile, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    scalar = config["hidden_size"] // config["num_attention_heads"] if layers == 62 else config["head_dim"]
    window = integer(file, "gemma3.attention.sliding_window")
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "rope_local_base_freq": real(file, "gemma3.rope.freq_base_swa", 10000.0),
        "sliding_window": window,
        "layer_types": layer_types(file, "gemma3", layers, 6) if window else [FULL] * layers,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": real(file, "gemma3.final_logit_softcapping", 0.0) or None,
        "strixhlo_norms_include_one": True,
    }


def layer_types(file: GgufFile, prefix: str, layers: int, default: int) -> list[str]:
    """Which layers slide: given as one flag a layer or as a period (every n-th layer is global)."""
    key = f"{prefix}.attention.sliding_window_pattern"
    if isinstance(file.metadata.get(key), np.ndarray):
        flags = numbers(file, key, layers)
        return [SLIDING if slides else FULL for slides in (() if flags is None else flags)]
    period = integer(file, key, default)
    if not period:
        raise StrixhloError(f"{file.path}: {key} is 0; convert the model again")
    return [FULL if (layer + 1) % period == 0 else SLIDING for layer in range(layers)]


def _phi3(file: GgufFile, config: Config) -> Config:
    window = integer(file, "phi3.attention.sliding_window", 0)
    original = integer(file, "phi3.rope.scaling.original_context_length", config["max_position_embeddings"])
    added: Config = {"sliding_window": window or None, "original_max_position_embeddings": original}
    names = ("rope_factors_short.weight", "rope_factors_long.weight")
    if not any(name in file.tensors for name in names):
        return added
    factors = []
    for name in names:
        tensor = file.tensors.get(name)
        if tensor is None or tensor.type != "F32" or len(tensor.shape) != 1:
            raise StrixhloError(f"{file.path}: {name} is missing or not float32; convert the model again")
        factors.append([float(value) for value in file.raw(tensor).view("<f4")])
    block: Config = {"rope_type": "longrope", "short_factor": factors[0], "long_factor": factors[1]}
    if "phi3.rope.scaling.attn_factor" in file.metadata:
        block["attention_factor"] = real(file, "phi3.rope.scaling.attn_factor")
    return added | {"rope_scaling": block}


def _granite(file: GgufFile, _config: Config, prefix: str = "granite") -> Config:
    if not boolean(file, f"{prefix}.rope.scaling.finetuned", True):  # its meaning here
        raise StrixhloError(
            f"{file.path}: {prefix}.rope.scaling.finetuned = false (no rotary embedding) is not supported"
        )
    return {
        "embedding_multiplier": real(file, f"{prefix}.embedding_scale", 1.0),
        "residual_multiplier": real(file, f"{prefix}.residual_scale", 1.0),
        "attention_multiplier": real(file, f"{prefix}.attention.scale"),
        "logits_scaling": real(file, f"{prefix}.logit_scale", 1.0),
    }


def _llama(file: GgufFile, _config: Config) -> Config:
    """Mixtral is Llama with experts here."""
    if not integer(file, "llama.expert_count", 0):
        return {}
    return {"model_type": "mixtral"} | expert_counts(file, "llama", "num_local_experts", normalized=True)


def _qwen2moe(file: GgufFile, config: Config) -> Config:
    counts = expert_counts(file, "qwen2moe", "num_experts", normalized=False)
    width = config["intermediate_size"]
    return counts | {
        "moe_intermediate_size": expert_size(file, "qwen2moe", width // counts["num_experts_per_tok"]),
        "shared_expert_intermediate_size": integer(file, "qwen2moe.expert_shared_feed_forward_length", 0) or width,
        "qkv_bias": "blk.0.attn_q.bias" in file.tensors,
        "norm_topk_prob": False,
    }


def _qwen3moe(file: GgufFile, config: Config) -> Config:
    counts = expert_counts(file, "qwen3moe", "num_experts", normalized=True)
    size = expert_size(file, "qwen3moe", config["intermediate_size"] // counts["num_experts_per_tok"])
    return counts | {"moe_intermediate_size": size, "norm_topk_prob": True}


def _olmoe(file: GgufFile, config: Config) -> Config:
    size = expert_size(file, "olmoe", config["intermediate_size"])
    counts = expert_counts(file, "olmoe", "num_experts", normalized=False)
    return counts | {"intermediate_size": size, "norm_topk_prob": False}


def _granitemoe(file: GgufFile, config: Config) -> Config:
    counts = expert_counts(file, "granitemoe", "num_local_experts", normalized=True)
    return _granite(file, config, "granitemoe") | counts


def _gpt_oss(file: GgufFile, config: Config) -> Config:
    """The converter drops that YaRN's bounds are not rounded, and llama.cpp rounds them; here they are the model's."""
    layers, block = config["num_hidden_layers"], config["rope_scaling"]
    return expert_counts(file, "gpt-oss", "num_local_experts", normalized=False, gating=SELECTED) | {
        "intermediate_size": expert_size(file, "gpt-oss", config["intermediate_size"]),
        "sliding_window": integer(file, "gpt-oss.attention.sliding_window"),
        "layer_types": layer_types(file, "gpt-oss", layers, 2),
        "rope_scaling": block | {"truncate": False} if block and block["rope_type"] == "yarn" else block,
    }


def _command_r(file: GgufFile, _config: Config) -> Config:
    return {
        "logit_scale": real(file, "command-r.logit_scale"),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
    }


def _cohere2(file: GgufFile, config: Config) -> Config:
    return {
        "logit_scale": real(file, "cohere2.logit_scale"),
        "sliding_window": integer(file, "cohere2.attention.sliding_window"),
        "layer_types": layer_types(file, "cohere2", config["num_hidden_layers"], 4),
    }


def _exaone4(file: GgufFile, config: Config) -> Config:
    window = integer(file, "exaone4.attention.sliding_window", 0)
    if not window:
        return {"sliding_window": None}
    return {"sliding_window": window, "layer_types": layer_types(file, "exaone4", config["num_hidden_layers"], 4)}


def _starcoder2(file: GgufFile, _config: Config) -> Config:
    return {"hidden_act": "gelu_pytorch_tanh", "use_bias": "blk.0.ffn_up.bias" in file.tensors}


def _olmo2(file: GgufFile, config: Config) -> Config:
    window = integer(file, "olmo2.attention.sliding_window", 0)
    if not window:
        return {}
    kinds = layer_types(file, "olmo2", config["num_hidden_layers"], 4)
    return {"model_type": "olmo3", "sliding_window": window, "layer_types": kinds}


def _mistral3(file: GgufFile, config: Config) -> Config:
    block = config["rope_scaling"]
    if not block or block["rope_type"] != "yarn":
        return {}
    original = block["original_max_position_embeddings"]
    if integer(file, "mistral3.attention.temperature_length", original) != original:
        raise StrixhloError(f"{file.path}: mistral3.attention.temperature_length is not {original}: not supported")
    if real(file, "mistral3.rope.scaling.yarn_log_multiplier", 0.0) not in (0.0, 1.0):
        raise StrixhloError(f"{file.path}: mistral3.rope.scaling.yarn_log_multiplier is not 1: not supported")
    beta = real(file, "mistral3.attention.temperature_scale", 0.0)
    return {"rope_scaling": block | {"attention_factor": 1.0} | ({"llama_4_scaling_beta": beta} if beta else {})}


def _chatglm(file: GgufFile, _config: Config) -> Config:
    return {"strixhlo_fused_qkv": "blk.0.attn_qkv.weight" in file.tensors}


def _apertus(_file: GgufFile, _config: Config) -> Config:
    return {"hidden_act": "xielu"}


_SCALES = frozenset({"embedding_scale", "residual_scale", "logit_scale", "attention.scale"})
_WINDOW = frozenset({"attention.sliding_window", "attention.sliding_window_pattern"})
_GEMMA4 = {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "layer_output_scale": "layer_scalar",
}
_GEMMA4_KEYS = frozenset({"rope.freq_base_swa", "rope.dimension_count_swa", "attention.shared_kv_layers"})
_GEMMA4_KEYS |= {"attention.key_length_swa", "attention.value_length_swa", "embedding_length_per_layer_input"}
_CAPS = frozenset({"attn_logit_softcapping", "final_logit_softcapping"})

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", LLAMA | EXPERTS, EXPERT_KEYS, interleaved=True, experts=True, config=_llama),
    "qwen2": Architecture("qwen2", LLAMA),
    "qwen3": Architecture("qwen3", LLAMA | QK_NORM),
    "qwen2moe": Architecture(
        "qwen2_moe",
        LLAMA | EXPERTS | SHARED_EXPERT,
        EXPERT_KEYS | {"expert_shared_feed_forward_length"},
        experts=True,
        config=_qwen2moe,
    ),
    "qwen3moe": Architecture("qwen3_moe", LLAMA | QK_NORM | EXPERTS, EXPERT_KEYS, experts=True, config=_qwen3moe),
    "olmoe": Architecture("olmoe", LLAMA | QK_NORM | EXPERTS, EXPERT_KEYS, experts=True, config=_olmoe),
    "gpt-oss": Architecture(
        "gpt_oss",
        ATTENTION
        | EXPERTS
        | {"ffn_gate_inp": "mlp.router", "attn_sinks": "self_attn.sinks"}
        | {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"},
        EXPERT_KEYS | _WINDOW,
        bare=frozenset({"attn_sinks"}),
        experts=True,
        config=_gpt_oss,
    ),
    "gemma2": Architecture("gemma2", ATTENTION | MLP | SANDWICH, _WINDOW | _CAPS, config=_gemma2),
    "gemma3": Architecture(
        "gemma3_text", ATTENTION | MLP | SANDWICH | QK_NORM, _WINDOW | _CAPS | {"rope.freq_base_swa"}, config=_gemma3
    ),
    "phi3": Architecture(
        "phi3",
        {"attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj"} | FUSED_MLP | PRE_NORM,
        _WINDOW | {"rope.scaling.attn_factor"},
        partial_rotary=True,
        config=_phi3,
    ),
    "smollm3": Architecture("smollm3", LLAMA, interleaved=True),
    "olmo2": Architecture("olmo2", ATTENTION | MLP | QK_NORM | POST_NORM, _WINDOW, config=_olmo2),
    "granite": Architecture("granite", LLAMA, _SCALES, interleaved=True, config=_granite),
    "granitemoe": Architecture(
        "granitemoe", LLAMA | EXPERTS, _SCALES | EXPERT_KEYS, interleaved=True, experts=True, config=_granitemoe
    ),
    "starcoder2": Architecture(
        "starcoder2",
        ATTENTION | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"} | PRE_NORM,
        epsilon="norm_epsilon",
        config=_starcoder2,
    ),
    "command-r": Architecture(
        "cohere",
        ATTENTION | MLP | QK_NORM | {"attn_norm": "input_layernorm"},
        frozenset({"logit_scale"}),
        epsilon="layer_norm_eps",
        config=_command_r,
    ),
    "cohere2": Architecture(
        "cohere2",
        ATTENTION | MLP | {"attn_norm": "input_layernorm"},
        _WINDOW | {"logit_scale"},
        epsilon="layer_norm_eps",
        config=_cohere2,
    ),
    "glm4": Architecture(
        "glm4",
        ATTENTION
        | FUSED_MLP
        | PRE_NORM
        | {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"},
        partial_rotary=True,
    ),
    "chatglm": Architecture(
        "glm",
        ATTENTION | {"attn_qkv": "self_attn.qkv_proj"} | FUSED_MLP | PRE_NORM,
        partial_rotary=True,
        config=_chatglm,
    ),
    "mistral3": Architecture(
        "ministral3",
        LLAMA,
        frozenset({"attention.temperature_scale", "attention.temperature_length", "rope.scaling.yarn_log_multiplier"}),
        interleaved=True,
        config=_mistral3,
    ),
    "gemma4": Architecture(
        "gemma4_text",
        ATTENTION | MLP | SANDWICH | QK_NORM | _GEMMA4,
        _WINDOW | _GEMMA4_KEYS | {"final_logit_softcapping"},
        unequal_layers=True,
        outside={
            "per_layer_token_embd": "model.embed_tokens_per_layer",
            "per_layer_model_proj": "model.per_layer_model_projection",
            "per_layer_proj_norm": "model.per_layer_projection_norm",
        },
        bare=frozenset({"layer_output_scale"}),
        config=gemma4_config,
    ),
    "exaone": Architecture("exaone", LLAMA),
    "exaone4": Architecture("exaone4", ATTENTION | MLP | QK_NORM | POST_NORM, _WINDOW, config=_exaone4),
    "seed_oss": Architecture(
        "seed_oss",
        ATTENTION | MLP | {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"},
    ),
    "apertus": Architecture(
        "apertus",
        ATTENTION | QK_NORM | MLP | {"attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"},
        config=_apertus,
    ),
}
