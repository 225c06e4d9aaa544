"""Configurations as their makers released them: keys that transformers does not write (any more) are no obstacle."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from strixhlo.export.checkpoint.hugging_face_config import normalized_config
from strixhlo.export.checkpoint.hugging_face_defaults import with_defaults
from strixhlo.export.models import model_from_config

COMMON: dict[str, Any] = {
    "architectures": ["ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "_name_or_path": "x",
}
RELEASED: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "is_llama_config": True,
        "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000, "rms_norm_eps": 1e-05,
        "pretraining_tp": 1, "hidden_act": "silu", "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
    },
    "Llama-3.2-1B of unsloth": {
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "mlp_bias": False,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "rms_norm_eps": 1e-05, "unsloth_fixed": True, "pretraining_tp": 1,
    },
    "Qwen2.5-7B": {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "max_window_layers": 28,
        "rope_theta": 1000000.0, "sliding_window": 131072, "use_mrope": False, "use_sliding_window": False,
        "rms_norm_eps": 1e-06,
    },
    "gemma-2-2b": {
        "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "cache_implementation": "hybrid",
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "attention_bias": False,
    },
    "gemma-3-4b-it": {
        "model_type": "gemma3", "boi_token_index": 255999, "eoi_token_index": 256000, "image_token_index": 262144,
        "mm_tokens_per_image": 256, "vision_config": {"hidden_size": 1152},
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
    },
    "Phi-4-mini": {
        "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
        "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 200064, "embd_pdrop": 0.0,
        "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False, "attention_bias": False,
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
        "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 262144,
        "rope_scaling": {"long_factor": [1.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
    },
    "starcoder2-3b": {
        "model_type": "starcoder2", "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
        "num_attention_heads": 24, "num_key_value_heads": 2, "vocab_size": 49152, "activation_function": "gelu",
        "attention_softmax_in_fp32": True, "embedding_dropout": 0.1, "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_epsilon": 1e-05, "mlp_type": "default", "norm_epsilon": 1e-05, "norm_type": "layer_norm",
        "residual_dropout": 0.1, "rope_theta": 999999.4, "scale_attention_softmax_in_fp32": True,
        "scale_attn_weights": True, "sliding_window": 4096, "use_bias": True,
    },
    "c4ai-command-r7b": {
        "model_type": "cohere2", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 256000,
        "cache_implementation": "hybrid", "layer_norm_eps": 1e-05, "layer_switch": 4, "logit_scale": 0.25,
        "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj", "rope_theta": 50000,
        "rotary_pct": 1.0, "sliding_window": 4096, "sliding_window_pattern": 4, "use_embedding_sharing": True,
        "use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": True,
    },
    "Apertus-8B": {
        "model_type": "apertus", "hidden_size": 4096, "intermediate_size": 21504, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 131072, "hidden_act": "xielu",
        "mlp_bias": False, "post_norm": False, "qk_norm": True, "rms_norm_eps": 1e-05, "rope_theta": 12000000,
        "rope_scaling": {
            "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3", "type": "llama3",
            "original_max_position_embeddings": 8192,
        },
    },
    "granite-4.0-micro": {
        "model_type": "granitemoehybrid", "hidden_size": 2560, "intermediate_size": 8192, "num_hidden_layers": 40,
        "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 100352, "attention_multiplier": 0.015625,
        "embedding_multiplier": 12, "logits_scaling": 10, "residual_multiplier": 0.22, "init_method": "mup",
        "layer_types": ["attention"] * 40, "mamba_chunk_size": 256, "mamba_n_heads": 64, "num_experts_per_tok": 0,
        "normalization_function": "rmsnorm", "num_local_experts": 0, "position_embedding_type": "rope",
        "router_aux_loss_coef": 0.01, "shared_intermediate_size": 8192, "rope_theta": 10000000, "rms_norm_eps": 1e-05,
    },
    "SmolLM3-3B": {
        "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
        "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 128256, "max_window_layers": 28,
        "layer_types": ["full_attention"] * 36, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
        "pretraining_tp": 2, "rope_theta": 5000000.0, "sliding_window": None, "use_sliding_window": False,
    },
    "EXAONE-3.5-2.4B": {
        "model_type": "exaone", "activation_function": "silu", "embed_dropout": 0.0, "head_dim": 80,
        "hidden_size": 2560, "intermediate_size": 7168, "layer_norm_epsilon": 1e-05, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_layers": 30, "rope_theta": 1000000, "vocab_size": 102400,
        "auto_map": {"AutoConfig": "configuration_exaone.ExaoneConfig"},
        "rope_scaling": {
            "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
    },
    "EXAONE-4.0-32B": {
        "model_type": "exaone4", "hidden_size": 5120, "intermediate_size": 27392, "num_hidden_layers": 64,
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 102400,
        "sliding_window": 4096, "sliding_window_pattern": "LLLG", "rope_theta": 1000000, "rms_norm_eps": 1e-05,
        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16,
    },
    "internlm3-8b": {
        "model_type": "internlm3", "bias": False, "qkv_bias": False, "head_dim": 128, "hidden_size": 4096,
        "intermediate_size": 10240, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 2,
        "vocab_size": 128512, "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"}, "rope_theta": 50000000,
    },
    "Ministral-3-3B": {
        "model_type": "mistral3", "image_token_index": 10, "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu", "spatial_merge_size": 2, "vision_config": {"hidden_size": 1024},
        "text_config": {
            "model_type": "ministral3", "hidden_size": 3072, "intermediate_size": 9216, "num_hidden_layers": 26,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
            "tie_word_embeddings": True, "sliding_window": None,
            "rope_parameters": {
                "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
                "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0,
                "rope_type": "yarn", "type": "yarn",
            },
        },
    },
    "gemma-4-E2B": {
        "model_type": "gemma4", "audio_config": {}, "vision_config": {}, "vision_soft_tokens_per_image": 280,
        "text_config": {
            "model_type": "gemma4_text", "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35,
            "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512,
            "num_global_key_value_heads": None, "attention_k_eq_v": False, "enable_moe_block": False,
            "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 20,
            "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7, "sliding_window": 512,
            "use_double_wide_mlp": True, "vocab_size": 262144, "vocab_size_per_layer_input": 262144,
            "moe_intermediate_size": None, "num_experts": None, "top_k_experts": None,
            "rope_parameters": {
                "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
        },
    },
    "gemma-4-31B": {
        "model_type": "gemma4_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256, "global_head_dim": 512,
        "num_global_key_value_heads": 4, "attention_k_eq_v": True, "enable_moe_block": False,
        "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10, "sliding_window": 1024,
        "use_bidirectional_attention": "vision", "vocab_size": 262144, "vocab_size_per_layer_input": 262144,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss", "attention_bias": True, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880, "num_attention_heads": 64,
        "layer_types": ["sliding_attention", "full_attention"] * 12, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False,
        "rms_norm_eps": 1e-05, "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
        "swiglu_limit": 7.0, "max_position_embeddings": 131072, "vocab_size": 201088,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "rope_type": "yarn", "truncate": False,
        },
    },
    "gemma-4-26B-A4B": {
        "model_type": "gemma4_text", "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "global_head_dim": 512,
        "num_global_key_value_heads": 2, "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 128,
        "top_k_experts": 8, "moe_intermediate_size": 704, "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "sliding_window": 1024, "vocab_size": 262144,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5, "vocab_size_per_layer_input": 262144,
        "use_bidirectional_attention": "vision",
    },
    "DeepSeek-V2-Lite": {
        "model_type": "deepseek_v2", "attention_bias": False, "aux_loss_alpha": 0.001, "ep_size": 1,
        "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944,
        "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_intermediate_size": 1408, "moe_layer_freq": 1,
        "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False,
        "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
        "pretraining_tp": 1, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "seq_aux": True, "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128, "vocab_size": 102400,
    },
    "DeepSeek-V3": {
        "model_type": "deepseek_v3", "attention_bias": False, "ep_size": 1, "first_k_dense_replace": 3,
        "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
        "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 4,
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280,
    },
    "GLM-4.5-Air": {
        "model_type": "glm4_moe", "attention_bias": True, "first_k_dense_replace": 1, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 10944, "max_position_embeddings": 131072,
        "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
        "norm_topk_prob": True, "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 46,
        "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 1000000, "routed_scaling_factor": 1.0, "topk_group": 1,
        "use_qk_norm": False, "vocab_size": 151552,
    },
    "ERNIE-4.5-21B-A3B": {
        "model_type": "ernie4_5_moe", "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 12288,
        "max_position_embeddings": 131072, "moe_capacity": [64, 64, 64], "moe_gate": "topk",
        "moe_intermediate_size": 1536, "moe_k": 6, "moe_layer_end_index": 27, "moe_layer_interval": 1,
        "moe_layer_start_index": 1, "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_use_aux_free": True,
        "num_attention_heads": 20, "num_hidden_layers": 28, "num_key_value_heads": 4, "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 500000, "use_bias": False, "vocab_size": 103424,
    },
    "Phi-3.5-MoE": {
        "model_type": "phimoe", "attention_bias": True, "hidden_act": "silu", "hidden_dropout": 0.0,
        "hidden_size": 4096, "input_jitter_noise": 0.01, "intermediate_size": 6400, "lm_head_bias": True,
        "max_position_embeddings": 131072, "num_attention_heads": 32, "num_experts_per_tok": 2,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 16,
        "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "rope_scaling": {
            "long_factor": [1.0] * 64, "long_mscale": 1.243163121016122, "original_max_position_embeddings": 4096,
            "short_factor": [1.0] * 64, "short_mscale": 1.243163121016122, "type": "longrope",
        },
        "router_jitter_noise": 0.01, "sliding_window": 131072, "vocab_size": 32064,
    },
    "Llama-4-Scout": {
        "model_type": "llama4", "boi_token_index": 200080, "eoi_token_index": 200081, "image_token_index": 200092,
        "vision_config": {"hidden_size": 1408},
        "text_config": {
            "model_type": "llama4_text", "attention_bias": False, "attention_chunk_size": 8192, "attn_scale": 0.1,
            "attn_temperature_tuning": 4, "floor_scale": 8192, "for_llm_compressor": False, "head_dim": 128,
            "hidden_act": "silu", "hidden_size": 5120, "interleave_moe_layer_step": 1, "intermediate_size": 8192,
            "intermediate_size_mlp": 16384, "max_position_embeddings": 10485760, "no_rope_layers": [],
            "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
            "num_local_experts": 16, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "router_jitter_noise": 0.0,
            "rope_scaling": {
                "factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
            "use_qk_norm": True, "vocab_size": 202048,
        },
    },
}  # fmt: skip
# Layers and width of the KV pools, worked out by hand; billions of parameters of the text model; tied or not.
EXPECTED: dict[str, tuple[tuple[int, int], float, bool]] = {
    "SmolLM2-135M": ((30, 3 * 64), 0.1345, True),
    "Llama-3.2-1B of unsloth": ((16, 8 * 64), 1.236, True),
    "Qwen2.5-7B": ((28, 4 * 128), 7.616, False),
    "gemma-2-2b": ((26, 4 * 256), 2.614, True),
    "gemma-3-4b-it": ((34, 4 * 256), 3.88, True),
    "Phi-4-mini": ((32, 8 * 128), 3.836, True),
    "starcoder2-3b": ((30, 2 * 128), 3.03, True),
    "c4ai-command-r7b": ((32, 8 * 128), 8.03, True),
    "Apertus-8B": ((32, 8 * 128), 8.05, False),
    "granite-4.0-micro": ((40, 8 * 64), 3.4, True),
    "SmolLM3-3B": ((36, 4 * 128), 3.075, True),
    "EXAONE-3.5-2.4B": ((30, 8 * 80), 2.405, True),
    "EXAONE-4.0-32B": ((64, 8 * 128), 32.0, False),
    "internlm3-8b": ((48, 2 * 128), 8.80, False),
    "Ministral-3-3B": ((26, 8 * 128), 3.43, True),
    "gemma-4-E2B": ((12 + 2 * 3, 256), 4.65, True),  # 15 layers of 35 have keys: 12 of 256 and 3 of 512
    "gpt-oss-20b": ((24, 8 * 64), 20.91, False),
    "gemma-4-26B-A4B": ((2 * 25 + 6, 2 * 512), 25.2, True),  # 25 layers of 8 x 256, 5 of 2 x 512, and one is no one's
    "DeepSeek-V2-Lite": ((14, 512 + 64), 15.7, False),  # two layers share one of the pools' layers
    "DeepSeek-V3": ((31, 512 + 64), 671.0, False),
    "GLM-4.5-Air": ((46, 8 * 128), 106.9, False),
    "ERNIE-4.5-21B-A3B": ((28, 4 * 128), 21.83, True),
    "Phi-3.5-MoE": ((32, 8 * 128), 41.9, False),
    "Llama-4-Scout": ((48, 8 * 128), 107.8, False),
    "gemma-4-31B": ((2 * 50 + 10, 4 * 512), 30.7, True),  # 50 layers of 16 x 256, 10 of 4 x 512
}


@pytest.mark.parametrize("name", RELEASED)
def test_released(name: str) -> None:
    pool, billions, tied = EXPECTED[name]
    config = with_defaults(normalized_config(COMMON | RELEASED[name], Path("config.json")))
    model = model_from_config(config | {"tie_word_embeddings": tied})
    assert model.pool == pool
    parameters = sum(math.prod(shape) for _, shape in model.shapes())
    assert parameters == pytest.approx(billions * 1e9, rel=0.01)
