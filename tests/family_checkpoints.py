"""Small random checkpoints of every family, made by transformers itself, and what transformers computes from them.

Head layouts, rotary scaling and windows are those of released models in small; weights are drawn so that attention,
norms and biases matter.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

T, DECODED, VOCAB = 64, 32, 160
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 500000.0,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.5, 2.0, 3.0, 4.0],
    "original_max_position_embeddings": 32,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
}
WINDOWS = {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "attention_bias": True,
}
GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000000.0},
}
DYNAMIC = {"rope_type": "dynamic", "factor": 6.0, "rope_theta": 10000.0}
MINISTRAL3 = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}
GRANITE4: dict[str, Any] = MULTIPLIERS | {
    "layer_types": ["full_attention"] * 2,
    "num_local_experts": 0,
    "shared_intermediate_size": 128,
    "mamba_n_heads": 6,
    "position_embedding_type": "rope",
}
# E2B and E4B in small: embeddings for each layer, the last four layers read the keys of others.
GEMMA4_E: dict[str, Any] = {
    "num_hidden_layers": 6,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_key_value_heads": 1,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "sliding_window": 20,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 24,
    "vocab_size_per_layer_input": VOCAB,
    "final_logit_softcapping": 30.0,
}
# 31B in small: full layers with fewer, larger heads whose values are their keys.
GEMMA4_31B: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_key_value_heads": 6,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 20,
    "hidden_size_per_layer_input": 0,
}
OSS_ROPE = YARN | {"rope_theta": 150000.0, "truncate": False}
# 26B-A4B in small: experts beside each layer's MLP.
GEMMA4_A4B = GEMMA4_31B | {
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 3,
    "moe_intermediate_size": 48,
}
PHI_LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "short_mscale": 1.2,
    "long_mscale": 1.3,
    "original_max_position_embeddings": 32,
    "rope_theta": 10000.0,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 6,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 16,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 48,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
    "rope_parameters": YARN | {"mscale": 0.8, "mscale_all_dim": 0.6},
}
LLAMA4: dict[str, Any] = {
    "num_hidden_layers": 3,
    "head_dim": 16,
    "intermediate_size": 48,
    "intermediate_size_mlp": 160,
    "num_local_experts": 8,
    "moe_layers": [1, 2],
    "no_rope_layers": [1, 0, 1],
    "attention_chunk_size": 20,
    "floor_scale": 16,
    "rope_parameters": LLAMA3 | {"high_freq_factor": 1.0},
}
OLMO3_ROPE = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}, "full_attention": YARN}
# name -> the model's line in the coverage table, its model type, what differs from SHAPE
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama 2": ("Llama", "llama", {"num_key_value_heads": 6}),
    "llama 3": ("Llama", "llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "falcon 3": ("Llama", "llama", {"head_dim": 32, "num_attention_heads": 3, "num_key_value_heads": 1}),
    "mistral": ("Mistral", "mistral", {"sliding_window": 20, "rope_parameters": LINEAR}),
    "mistral nemo": ("Mistral", "mistral", {"head_dim": 24, "sliding_window": None}),
    "ministral": ("Ministral (", "ministral", {"head_dim": 24} | WINDOWS),
    "qwen2": (
        "Qwen 2",
        "qwen2",
        {"hidden_size": 112, "num_attention_heads": 14, "rope_parameters": YARN, "use_sliding_window": True}
        | {"sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen 3", "qwen3", {"head_dim": 32, "rope_parameters": YARN, "tie_word_embeddings": True}),
    "gemma2": ("Gemma 2", "gemma2", {"head_dim": 32, "sliding_window": 20, "query_pre_attn_scalar": 24}),
    "gemma3": (
        "Gemma 3",
        "gemma3_text",
        {"head_dim": 32, "query_pre_attn_scalar": 40, "rope_parameters": GEMMA3_ROPE} | WINDOWS,
    ),
    "phi3 long": ("Phi-3", "phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 32}),
    "phi4": ("Phi-3", "phi3", {"num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": None}),
    "smollm3": ("SmolLM 3", "smollm3", {"no_rope_layers": [1, 0]}),
    "olmo2": ("OLMo 2", "olmo2", {"num_key_value_heads": 6}),
    "olmo3": ("OLMo 3", "olmo3", {"rope_parameters": OLMO3_ROPE} | WINDOWS),
    "granite": ("Granite 3", "granite", MULTIPLIERS),
    "starcoder2": ("StarCoder 2", "starcoder2", {"sliding_window": 20}),
    "cohere": ("Command R (", "cohere", {"use_qk_norm": True, "logit_scale": 0.5}),
    "cohere2": ("Command R7B", "cohere2", {"logit_scale": 0.5} | WINDOWS),
    "glm": ("GLM-4 (", "glm", {"head_dim": 16}),
    "glm4": ("GLM-4-0414", "glm4", {"head_dim": 16}),
    "exaone4": ("EXAONE 4", "exaone4", {"rope_parameters": LLAMA3} | WINDOWS),
    "seed_oss": ("Seed-OSS", "seed_oss", {"head_dim": 32, "attention_out_bias": True}),
    "exaone 3": ("EXAONE 3", "exaone", {"rope_parameters": LLAMA3, "num_key_value_heads": 2}),
    "internlm3": (
        "InternLM 3",
        "internlm3",
        {"head_dim": 16, "qkv_bias": True, "bias": True, "rope_parameters": DYNAMIC},
    ),
    "ministral 3": ("Ministral 3", "ministral3", {"head_dim": 24, "rope_parameters": MINISTRAL3}),
    "granite 4": ("Granite 4", "granitemoehybrid", GRANITE4),
    "gemma4 E": ("Gemma 4", "gemma4_text", GEMMA4_E),
    "gemma4 dense": ("Gemma 4", "gemma4_text", GEMMA4_31B),
    "apertus": ("Apertus", "apertus", {"rope_parameters": LLAMA3}),
    "mixtral": ("Mixtral", "mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 24}),
    "olmoe": ("OLMoE", "olmoe", {"num_experts": 16, "num_experts_per_tok": 4}),
    "granite moe": ("MoE of Granite", "granitemoe", MULTIPLIERS | {"num_local_experts": 8, "num_experts_per_tok": 3}),
    "qwen2 moe": (
        "MoE of Qwen 1.5",
        "qwen2_moe",
        {"num_experts": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 64, "mlp_only_layers": [0]}
        | {"shared_expert_intermediate_size": 80},
    ),
    "qwen3 moe": (
        "MoE of Qwen 3",
        "qwen3_moe",
        {"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 32, "head_dim": 32}
        | {"norm_topk_prob": True},
    ),
    "gpt-oss": (
        "gpt-oss",
        "gpt_oss",
        {"num_local_experts": 8, "num_experts_per_tok": 3, "head_dim": 16, "rope_parameters": OSS_ROPE} | WINDOWS,
    ),
    "phi moe": (
        "MoE of Phi-3.5",
        "phimoe",
        {"num_local_experts": 8, "attention_bias": True, "lm_head_bias": True, "rope_parameters": PHI_LONG}
        | {"router_jitter_noise": 0.2},
    ),
    "glm4 moe": (
        "GLM-4.5",
        "glm4_moe",
        {"head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
        | {"use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 1.5},
    ),
    "ernie moe": (
        "ERNIE 4.5",
        "ernie4_5_moe",
        {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 48, "use_bias": True},
    ),
    "deepseek 2": (
        "DeepSeek-V2",
        "deepseek_v2",
        LATENT | {"topk_method": "group_limited_greedy", "q_lora_rank": None, "num_hidden_layers": 3},
    ),
    "deepseek 3": ("DeepSeek-V3", "deepseek_v3", LATENT),
    "llama 4": ("MoE of Llama 4", "llama4_text", LLAMA4),
    "gemma4 moe": ("MoE of Gemma 4", "gemma4_text", GEMMA4_A4B),
}


def random_checkpoint(kind: str, changes: dict[str, Any], folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Writes the checkpoint of a model type, and returns the model as it reads it back, in float32."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **deepcopy(SHAPE | changes))  # it writes into nested ones
    eager = {"dtype": torch.float32, "attn_implementation": "eager"}  # others leave out capped scores
    model = transformers.AutoModelForCausalLM.from_config(config, **eager)
    with torch.no_grad():  # norms of one and biases of zero would hide a missing one
        for name, p in model.named_parameters():
            norm = "norm" in name and name.endswith("weight")
            p.copy_(torch.randn_like(p) * (0.3 if norm else 0.15) + (1.0 if norm else 0.0))
        for name, buffer in model.named_buffers():  # Gemma 4's factor of each layer
            if name.endswith("layer_scalar"):
                buffer.copy_(0.5 + torch.rand_like(buffer))
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.15)
    model.to(dtype).save_pretrained(folder)
    Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0")).save(str(folder / "tokenizer.json"))
    if dtype != torch.float32:  # not cast back: a cast to bfloat16 would round the rotary frequencies too
        model = type(model).from_pretrained(folder, **eager)
    return model.eval()


def prompt() -> list[int]:
    """64 token ids."""
    return np.random.default_rng(1).integers(3, VOCAB, T).tolist()


def logits(model: Any, ids: list[int]) -> np.ndarray:
    """transformers' float32 [len(ids), vocabulary]."""
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def greedy(model: Any, ids: list[int], steps: int) -> list[int]:
    """The prompt and transformers' greedy tokens, each from a whole evaluation, so that no cache of its has a part."""
    for _ in range(steps):
        ids = [*ids, int(logits(model, ids)[-1].argmax())]
    return ids


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Relative L2."""
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
