"""Small random models whose programs run whole on a GPU: family, matrices' format, type of activations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTEXT, VOCABULARY = 256, 320
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 256}
GEMMA4 = {
    "global_head_dim": 256, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"], "hidden_size_per_layer_input": 0,
}  # fmt: skip
# What differs from SMALL, by model type.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "gemma3_text": {
        "query_pre_attn_scalar": 128, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
    "gpt_oss": {
        "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 256, "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {"rope_theta": 10000.0},
    },
    "qwen3_moe": EXPERTS | {"num_experts": 8, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "qwen2_moe": EXPERTS | {"num_experts": 8, "shared_expert_intermediate_size": 512, "mlp_only_layers": []},
    "glm4_moe": EXPERTS | {"n_routed_experts": 8, "use_qk_norm": True, "attention_bias": True},
    "phimoe": {
        "num_local_experts": 8, "attention_bias": True, "lm_head_bias": True, "intermediate_size": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "llama4_text": {
        "intermediate_size": 256, "intermediate_size_mlp": 1024, "num_local_experts": 8, "moe_layers": [1],
        "no_rope_layers": [1, 0], "attention_chunk_size": 20, "floor_scale": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "deepseek_v3": EXPERTS | {
        "num_attention_heads": 8, "num_key_value_heads": 8, "kv_lora_rank": 512, "q_lora_rank": 128,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 16, "n_group": 4,
        "topk_group": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
    },
    "gemma4_text": GEMMA4,
    "gemma4_text with experts": GEMMA4 | {
        "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 256,
    },
}  # fmt: skip
OWN_HEAD_DIM = ("qwen2_moe", "deepseek_v3", "phimoe")  # families without `head_dim`
Q4_K_M = {"v_proj.weight": "q6_k", "down_proj.weight": "q6_k", "": "q4_k"}  # llama.cpp's, of half of the layers


@dataclass(frozen=True)
class Case:
    """A model: a key of FAMILIES, its matrices' format, and the type of its activations."""

    family: str
    format: str
    activations: str = "f32"

    @property
    def name(self) -> str:
        return f"{self.family.replace(' ', '-')}-{self.format}-{self.activations}"

    @property
    def formats(self) -> str | Mapping[str, str]:
        """For `random_checkpoint`."""
        return Q4_K_M if self.format == "q4_k_m" else self.format

    def config(self) -> dict[str, Any]:
        """config.json as transformers writes it, read as `export` reads it."""
        import transformers

        from strixhlo.export.checkpoint.hugging_face_config import normalized_config

        shape = SMALL | FAMILIES[self.family]
        if self.family in OWN_HEAD_DIM:
            del shape["head_dim"]
        written = transformers.AutoConfig.for_model(self.family.split()[0], **shape).to_dict()
        return normalized_config(json.loads(json.dumps(written)), Path("config.json"))


CASES = (
    Case("llama", "mxfp4"), Case("llama", "mxfp4", "bf16"), Case("llama", "q4_k"), Case("llama", "q4_k_m"),
    Case("llama", "q6_k"), Case("llama", "q8_0"), Case("llama", "fp8_block128", "bf16"),
    Case("qwen3", "affine4_g64", "f16"), Case("gemma3_text", "q4_0"), Case("gpt_oss", "mxfp4"),
    Case("qwen3_moe", "affine4_g64"), Case("qwen3_moe", "affine4_g64", "bf16"), Case("qwen3_moe", "q4_k"),
    Case("qwen3_moe", "nvfp4"), Case("qwen2_moe", "q4_0"), Case("glm4_moe", "mxfp4", "bf16"), Case("glm4_moe", "q4_k"),
    Case("phimoe", "affine4_g64"), Case("llama4_text", "mxfp4"), Case("deepseek_v3", "fp8_block128"),
    Case("gemma4_text", "q8_0"),
    Case("gemma4_text with experts", "affine4_g64"),
)  # fmt: skip
