"""A random transformers model -> a GGUF file, as llama.cpp's converter writes it, by the `gguf` package.

Tensor names are the package's own map from Hugging Face's. What the converter changes is done here: rows of q and k
interleaved (its `permute`), 1 added to Gemma's norms, Apertus' activation moved into the metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from tokenizers.pre_tokenizers import ByteLevel

TOKENS = ["<|endoftext|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "he", "ll", "hell"]
SHAPE: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
RMS: dict[str, Any] = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 10000.0}
LAYER_NORM: dict[str, Any] = {"attention.layer_norm_epsilon": 1e-5, "rope.freq_base": 10000.0}
HEADS = {"attention.key_length": 32, "attention.value_length": 32}
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
WINDOW = {"attention.sliding_window": 16}
GRANITE = {"embedding_scale": 3.0, "residual_scale": 0.4, "attention.scale": 0.2, "logit_scale": 2.0}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
EPSILON = {"rms_norm_eps": 1e-6}
MINISTRAL3 = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 16}
MINISTRAL3 |= {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}
MISTRAL3 = {
    "rope.dimension_count": 32,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 16,
    "rope.scaling.yarn_log_multiplier": 1.0,
    "attention.temperature_scale": 0.3,
}
GEMMA4 = {
    "head_dim": 16,
    "global_head_dim": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 16,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": SHAPE["vocab_size"],
    "final_logit_softcapping": 30.0,
}
GEMMA4_KEYS = {
    "rope.freq_base": 1000000.0,
    "rope.freq_base_swa": 10000.0,
    "rope.dimension_count": 32,
    "rope.dimension_count_swa": 16,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "attention.sliding_window": 16,
    "attention.sliding_window_pattern": [True, False, True, False],
    "attention.shared_kv_layers": 2,
    "embedding_length_per_layer_input": 16,
    "final_logit_softcapping": 30.0,
}
EXPERTS = {"expert_count": 8, "expert_used_count": 3}
MIXTRAL = ROPE | {"num_local_experts": 8, "num_experts_per_tok": 3}  # of the architecture "llama"
# YaRN whose bounds are the frequencies 0 and 2, which llama.cpp rounds to whole numbers and the model does not: at 32
# dimensions the base of which 2 is the frequency that makes one turn in 16 positions.
OSS_BASE = 1768.37
OSS_ROPE = {"rope_type": "yarn", "rope_theta": OSS_BASE, "factor": 8.0, "original_max_position_embeddings": 16}
OSS_ROPE |= {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
OSS_KEYS = {
    "rope.freq_base": OSS_BASE,
    "rope.dimension_count": 32,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 16,
}
# architecture -> model type, changes of its config, metadata
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", EPSILON, RMS | {"rope.dimension_count": 16}),
    "qwen2": ("qwen2", EPSILON, RMS),
    "qwen3": ("qwen3", EPSILON | {"head_dim": 32}, RMS | HEADS),
    "gemma2": (
        "gemma2",
        {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32},
        RMS | HEADS | CAPS | WINDOW,
    ),
    "phi3": ("phi3", EPSILON | {"sliding_window": None}, RMS | {"rope.dimension_count": 16}),
    "smollm3": ("smollm3", EPSILON | ROPE, RMS),
    "olmo2": ("olmo2", EPSILON, RMS),
    "granite": (
        "granite",
        EPSILON
        | {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 2.0},
        RMS | GRANITE,
    ),
    "starcoder2": ("starcoder2", {"sliding_window": None}, LAYER_NORM),
    "command-r": ("cohere", ROPE | {"logit_scale": 0.5}, LAYER_NORM | {"logit_scale": 0.5}),
    "cohere2": (
        "cohere2",
        {"logit_scale": 0.5, "sliding_window": 16},
        LAYER_NORM | WINDOW | {"logit_scale": 0.5, "rope.dimension_count": 16},
    ),
    "glm4": ("glm4", {"head_dim": 16, "rms_norm_eps": 1e-6}, RMS | {"rope.dimension_count": 8}),
    "exaone4": ("exaone4", EPSILON | ROPE | {"sliding_window": None, "layer_types": ["full_attention"] * 4}, RMS),
    "seed_oss": ("seed_oss", EPSILON | ROPE | {"head_dim": 32}, RMS | HEADS),
    "exaone": ("exaone", EPSILON | ROPE, RMS),
    "chatglm": ("glm", {"head_dim": 16, "rms_norm_eps": 1e-6}, RMS | {"rope.dimension_count": 8}),
    "mistral3": ("ministral3", EPSILON | {"head_dim": 32, "rope_parameters": MINISTRAL3}, RMS | HEADS | MISTRAL3),
    "gemma4": ("gemma4_text", GEMMA4, RMS | GEMMA4_KEYS),
    "apertus": ("apertus", EPSILON | ROPE, RMS),
    "qwen2moe": (
        "qwen2_moe",
        EPSILON
        | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
        | {"shared_expert_intermediate_size": 64},
        RMS | EXPERTS | {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64},
    ),
    "qwen3moe": (
        "qwen3_moe",
        EPSILON
        | {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
        | {"norm_topk_prob": True},
        RMS | HEADS | EXPERTS | {"expert_feed_forward_length": 32},
    ),
    "olmoe": (
        "olmoe",
        EPSILON | {"num_experts": 8, "num_experts_per_tok": 3, "num_key_value_heads": 4},
        RMS | EXPERTS,
    ),
    "granitemoe": (
        "granitemoe",
        EPSILON
        | {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 2.0}
        | {"num_local_experts": 8, "num_experts_per_tok": 3},
        RMS | GRANITE | EXPERTS,
    ),
    "gpt-oss": (
        "gpt_oss",
        EPSILON
        | {"head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 16}
        | {"rope_parameters": OSS_ROPE},
        RMS | HEADS | WINDOW | EXPERTS | OSS_KEYS | {"expert_feed_forward_length": 96},
    ),
}
INTERLEAVED = ("llama", "smollm3", "granite", "granitemoe", "mistral3")


def random_model(model_type: str, **changes: Any) -> Any:
    """A model of any type with random norms and biases too, float32."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **(SHAPE | changes))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = "norm" in name and name.endswith("weight")
            shift = 0.0 if model_type in ("gemma2", "gemma3_text") else 1.0
            p.copy_(torch.randn_like(p) * (0.3 if norm else 0.1) + (shift if norm else 0.0))
    return model


def logits(model: Any, ids: np.ndarray) -> np.ndarray:
    """float32 [T, V]."""
    with torch.no_grad():
        return model(torch.tensor(ids)[None]).logits[0].numpy()


Quantize = Callable[[np.ndarray, gguf.GGMLQuantizationType], np.ndarray]


def write_gguf(
    model: Any,
    path: Path,
    architecture: str,
    keys: dict[str, Any],
    types: dict[str, str],
    quantize: Quantize = gguf.quants.quantize,
) -> Path:
    """keys: metadata under the architecture's prefix, beside those of the shape. types: tensor type by a part of the
    tensor's name (the first that fits), F32 else."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    if architecture == "gemma4":
        factor = 2 if config.use_double_wide_mlp else 1
        wide = [config.intermediate_size * (factor if mode == "reuse" else 1) for mode in config.kv_sharing_modes]
        writer.add_feed_forward_length(wide)
        writer.add_head_count_kv([layer.num_key_value_heads for layer in config.per_layer_config])
        rotated = keys["attention.key_length"] // 8  # a quarter of the head, in pairs
        factors = np.full(keys["attention.key_length"] // 2, 1e30, np.float32)
        factors[:rotated] = 1
        writer.add_tensor("rope_freqs.weight", factors)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_head_count(config.num_attention_heads)
    for key, value in keys.items():
        add = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array, bool: writer.add_bool}
        add[str] = writer.add_string
        add[type(value)](f"{architecture}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(["h e", "l l", "he ll"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    _add_tensors(writer, model, architecture, types, quantize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _apart(model: Any) -> dict[str, torch.Tensor]:
    """The weights, gate and up of experts apart, as [E, N, K], under names that the package knows."""
    oss, found = model.config.model_type == "gpt_oss", {}
    for name, tensor in model.state_dict().items():
        name = name.replace(".block_sparse_moe.", ".mlp.")
        base, _, leaf = name.rpartition(".experts.")
        if not base:
            found[name] = tensor[0] if name.endswith("shared_expert_gate.weight") else tensor
            continue
        stem, kind = (leaf.removesuffix("_bias"), "bias") if leaf.endswith("_bias") else (leaf, "weight")
        if oss and kind == "weight":
            tensor = tensor.swapaxes(1, 2)
        if stem != "gate_up_proj":
            found[f"{base}.experts.{stem}.{kind}"] = tensor
            continue
        n = tensor.shape[1] // 2
        parts = (tensor[:, ::2], tensor[:, 1::2]) if oss else (tensor[:, :n], tensor[:, n:])
        for part, half in zip(("gate_proj", "up_proj"), parts, strict=True):
            found[f"{base}.experts.{part}.{kind}"] = half
    return found


def _add_tensors(
    writer: gguf.GGUFWriter, model: Any, architecture: str, types: dict[str, str], quantize: Quantize
) -> None:
    config = model.config
    kind = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    state = {k: v for k, v in _apart(model).items() if not k.endswith(("act_fn.beta", "act_fn.eps"))}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    for key in ("alpha_p", "alpha_n"):
        values = [state.pop(n).item() for n in list(state) if n.endswith(f"act_fn.{key}")]
        if values:
            writer.add_array(f"xielu.{key}", values)
    if architecture == "apertus":
        layers = config.num_hidden_layers
        writer.add_array("xielu.beta", [0.5] * layers)
        writer.add_array("xielu.eps", [-1e-6] * layers)
    for name, tensor in state.items():
        array = tensor.float().numpy()
        base, _, kind_of = name.rpartition(".")
        if kind_of in ("layer_scalar", "sinks"):
            base, kind_of = name, "weight"
        target = names.get_name(base) or names.get_name(name)
        assert target, name
        if architecture in INTERLEAVED and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            array = array.reshape(heads, 2, len(array) // heads // 2, -1).swapaxes(1, 2).reshape(array.shape)
        if architecture in ("gemma2", "gemma3") and "norm" in name:
            array = array + 1
        if architecture in ("command-r",) and name.endswith(("q_norm.weight", "k_norm.weight")):
            array = array.reshape(-1, array.shape[-1])
        wanted = next(
            (t for part, t in types.items() if part in target and array.ndim > 1 and kind_of == "weight"), "F32"
        )
        quantized = gguf.GGMLQuantizationType[wanted]
        data = array if wanted == "F32" else quantize(array, quantized)
        writer.add_tensor(f"{target}.{kind_of}", np.ascontiguousarray(data), raw_dtype=quantized)
