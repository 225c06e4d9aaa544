"""Every architecture of the GGUF table: our logits against transformers' (before the conversion) and llama.cpp's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_logits import distance, logits_of
from gguf_models import SHAPE, logits, random_model, write_gguf

from strixhlo.export.checkpoint.gguf_architectures import ARCHITECTURES
from strixhlo.runtime.native.llama_cpp import LlamaCpp

IDS = np.random.default_rng(1).integers(3, SHAPE["vocab_size"], 24)
RMS: dict[str, Any] = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 10000.0}
LAYER_NORM: dict[str, Any] = {"attention.layer_norm_epsilon": 1e-5, "rope.freq_base": 10000.0}
HEADS = {"attention.key_length": 32, "attention.value_length": 32}
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
WINDOW = {"attention.sliding_window": 16}
GRANITE = {"embedding_scale": 3.0, "residual_scale": 0.4, "attention.scale": 0.2, "logit_scale": 2.0}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
EPSILON = {"rms_norm_eps": 1e-6}
# architecture -> model type, changes of its config, metadata
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
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
    "command-r": ("cohere", {"logit_scale": 0.5}, LAYER_NORM | {"logit_scale": 0.5}),
    "cohere2": (
        "cohere2",
        {"logit_scale": 0.5, "sliding_window": 16},
        LAYER_NORM | WINDOW | {"logit_scale": 0.5, "rope.dimension_count": 16},
    ),
    "glm4": ("glm4", {"head_dim": 16, "rms_norm_eps": 1e-6}, RMS | {"rope.dimension_count": 8}),
    "exaone4": (
        "exaone4",
        EPSILON | ROPE | {"sliding_window": 16, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
        RMS | WINDOW | {"attention.sliding_window_pattern": [True, True, True, False]},
    ),
    "seed_oss": ("seed_oss", EPSILON | ROPE | {"head_dim": 32}, RMS | HEADS),
    "apertus": ("apertus", EPSILON | ROPE, RMS),
}


def test_every_architecture_is_here() -> None:
    assert {*CASES, "gemma3"} == ARCHITECTURES.keys()  # Gemma 3 is tested on the real file


@pytest.mark.parametrize("architecture", CASES)
def test_logits(architecture: str, tmp_path: Path) -> None:
    model_type, changes, keys = CASES[architecture]
    model = random_model(model_type, **changes)
    path = write_gguf(model, tmp_path / "model.gguf", architecture, keys, {})
    ours = logits_of(path, IDS)
    assert distance(ours, logits(model, IDS)) < 1e-4
    with LlamaCpp(path, n_ctx=64) as native:
        theirs = native.teacher_forced_logits(IDS)
    assert distance(ours, theirs) < 2e-3  # its KV cache is float16
