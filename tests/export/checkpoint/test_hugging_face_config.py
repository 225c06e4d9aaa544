"""The variants of config.json and of tensor names come out in one shape."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.hugging_face_config import normalized_config, normalized_name

PATH = Path("model/config.json")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"rope_theta": 1e4}, {"rope_theta": 1e4}),
        ({"rope_theta": 1e4, "rope_scaling": None}, {"rope_theta": 1e4, "rope_scaling": None}),
        ({"rope_scaling": LLAMA3}, {"rope_scaling": LLAMA3}),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
        ({"rope_scaling": {"rope_type": "default"}}, {"rope_scaling": None}),
        ({"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}, {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            {"rope_theta": 1e4, "rope_scaling": None, "partial_rotary_factor": 0.5},
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                }
            },
            {"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_local_base_freq": 1e4},
        ),
    ],
)
def test_rotary_settings(config: dict, expected: dict) -> None:
    assert normalized_config(config, PATH) == expected


def test_what_transformers_writes_today() -> None:
    """The configurations of transformers 5, as it saves them."""
    llama = transformers.LlamaConfig(rope_parameters=LLAMA3 | {"rope_theta": 500000.0})
    written = normalized_config(llama.to_dict(), PATH)
    assert (written["rope_theta"], written["rope_scaling"]) == (500000.0, LLAMA3)
    gemma = normalized_config(transformers.Gemma3TextConfig().to_dict(), PATH)
    assert (gemma["rope_theta"], gemma["rope_local_base_freq"], gemma["rope_scaling"]) == (1e6, 1e4, None)
    assert len(gemma["layer_types"]) == gemma["num_hidden_layers"]


def test_a_multimodal_configuration() -> None:
    config = {
        "model_type": "gemma3",
        "tie_word_embeddings": True,
        "eos_token_id": [1, 106],
        "vision_config": {"hidden_size": 3},
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
    }
    assert normalized_config(config, PATH) == {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "tie_word_embeddings": True,
        "eos_token_id": [1, 106],
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_parameters": {"linear_attention": {"rope_theta": 1e4}}}, "layer types"),
        (
            {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "scale the sliding layers",
        ),
    ],
)
def test_what_is_refused(config: dict, message: str) -> None:
    with pytest.raises(StrixhloError, match=message):
        normalized_config(config, PATH)


@pytest.mark.parametrize(
    ("name", "nested", "expected"),
    [
        ("model.layers.0.mlp.up_proj.weight", False, "model.layers.0.mlp.up_proj.weight"),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", False, None),
        ("language_model.model.norm.weight", True, "model.norm.weight"),
        ("language_model.lm_head.weight", True, "lm_head.weight"),
        ("model.language_model.norm.weight", True, "model.norm.weight"),
        ("lm_head.weight", True, "lm_head.weight"),
        ("vision_tower.encoder.weight", True, None),
        ("model.vision_tower.encoder.weight", True, None),
        ("multi_modal_projector.mm_input_projection_weight", True, None),
        ("vision_tower.encoder.weight", False, "vision_tower.encoder.weight"),
    ],
)
def test_tensor_names(name: str, nested: bool, expected: str | None) -> None:
    assert normalized_name(name, nested) == expected
