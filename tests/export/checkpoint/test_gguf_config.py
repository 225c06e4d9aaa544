"""Rotary scaling and Gemma's layer pattern out of GGUF metadata."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.checkpoint.gguf_rope import llama3_factors


def converted_factors(theta: float, head_dim: int, scaling: dict) -> np.ndarray:
    """What a converter writes as rope_freqs.weight: by how much transformers' Llama 3 divides each frequency."""
    config = transformers.LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": "llama3", "rope_theta": theta, **scaling},
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    return (theta ** (-np.arange(0, head_dim, 2) / head_dim) / scaled.double().numpy()).astype("<f4")


def scaling(factor: float, low: float, high: float, original: int) -> dict:
    return {
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def test_llama3_factors_are_those_of_transformers() -> None:
    for theta, head_dim, *numbers in ((500000.0, 128, 8.0, 1.0, 4.0, 8192), (500000.0, 64, 32.0, 1.0, 4.0, 8192)):
        expected = converted_factors(theta, head_dim, scaling(*numbers))
        assert np.allclose(llama3_factors(theta, head_dim, *numbers), expected, rtol=2e-6, atol=0)


@pytest.fixture
def llama_with_factors(tiny_llama: Callable[..., Path], gguf_builder: dict) -> Callable[..., dict]:
    """Opens a Llama of head size 64 whose file holds these factors, and returns its configuration."""

    def config(factors: np.ndarray, metadata: dict | None = None) -> dict:
        keys = {"llama.attention.key_length": 64, "llama.rope.freq_base": 500000.0} | (metadata or {})
        rest = [t for t in gguf_builder["tensors"](261) if "attn_q" not in t[0] and "attn_k" not in t[0]]
        rope = ("rope_freqs.weight", [len(factors)], 0, factors.astype("<f4").tobytes())
        return open_checkpoint(str(tiny_llama(keys, tensors=[*rest, rope]))).config

    return config


def test_llama3_scaling_is_recovered(llama_with_factors: Callable[..., dict]) -> None:
    for numbers in ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (4.0, 2.0, 8.0, 8192)):
        expected = scaling(*numbers)
        assert llama_with_factors(converted_factors(500000.0, 64, expected))["rope_scaling"] == {
            "rope_type": "llama3",
            **expected,
        }
    shorter = llama_with_factors(
        converted_factors(500000.0, 64, scaling(8.0, 1.0, 4.0, 4096)),
        {"llama.rope.scaling.original_context_length": 4096},
    )
    assert shorter["rope_scaling"] == {"rope_type": "llama3", **scaling(8.0, 1.0, 4.0, 4096)}


def test_another_original_context_is_an_equal_scaling(llama_with_factors: Callable[..., dict]) -> None:
    """The factors fix original/low and original/high only: the ratios come out right, and so does the result."""
    factors = converted_factors(500000.0, 64, scaling(8.0, 1.0, 4.0, 4096))
    found = llama_with_factors(factors)["rope_scaling"]
    numbers = [found[key] for key in scaling(0, 0, 0, 0)]
    assert np.allclose(llama3_factors(500000.0, 64, *numbers), factors, rtol=1e-5)


def test_no_scaling_in_the_factors(llama_with_factors: Callable[..., dict]) -> None:
    assert llama_with_factors(np.ones(32))["rope_scaling"] is None


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (np.linspace(1, 9, 32), "not a Llama 3 scaling"),
        (np.linspace(9, 1, 32), "not a Llama 3 scaling"),
        (np.zeros(32), "impossible numbers"),
        (np.full(32, np.nan), "impossible numbers"),
        (np.ones(16), "is not 32 float32 numbers"),
    ],
)
def test_other_factors_are_refused(llama_with_factors: Callable[..., dict], factors: np.ndarray, message: str) -> None:
    with pytest.raises(StrixhloError, match=message):
        llama_with_factors(factors)


def test_factors_and_metadata_together_are_refused(llama_with_factors: Callable[..., dict]) -> None:
    with pytest.raises(StrixhloError, match="together with"):
        llama_with_factors(np.full(32, 2.0), {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0})


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, None),
        ({"type": "none", "factor": 4.0}, None),
        ({"factor": 1.0}, None),
        ({"factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 16},
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        ),
    ],
)
def test_scaling_in_the_metadata(tiny_llama: Callable[..., Path], metadata: dict, expected: dict | None) -> None:
    path = tiny_llama({f"llama.rope.scaling.{key}": value for key, value in metadata.items()})
    assert open_checkpoint(str(path)).config["rope_scaling"] == expected


@pytest.mark.parametrize("metadata", [{"type": "longrope"}, {"type": "yarn"}, {"type": "linear", "factor": 0.5}])
def test_unknown_scaling_is_refused(tiny_llama: Callable[..., Path], metadata: dict) -> None:
    with pytest.raises(StrixhloError, match=r"llama\.rope\.scaling of type"):
        open_checkpoint(str(tiny_llama({f"llama.rope.scaling.{key}": value for key, value in metadata.items()})))


@pytest.fixture
def gemma_config(tiny_llama: Callable[..., Path], gguf_builder: dict) -> Callable[..., dict]:
    """Opens a file of architecture gemma3 that holds an embedding only, and returns its configuration."""

    def config(layers: int, metadata: dict) -> dict:
        keys = {
            "general.architecture": "gemma3",
            "gemma3.block_count": layers,
            "gemma3.context_length": 64,
            "gemma3.embedding_length": 32,
            "gemma3.feed_forward_length": 64,
            "gemma3.attention.head_count": 4,
            "gemma3.attention.key_length": 16,
            "gemma3.attention.value_length": 16,
            "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
            "gemma3.attention.sliding_window": 512,
        }
        tensors = gguf_builder["tensors"](261)[:1]
        return open_checkpoint(str(tiny_llama(keys | metadata, tensors=tensors))).config

    return config


def test_gemma_layers(gemma_config: Callable[..., dict]) -> None:
    full, sliding = "full_attention", "sliding_attention"
    pattern = "gemma3.attention.sliding_window_pattern"
    assert gemma_config(8, {})["layer_types"] == [sliding] * 5 + [full] + [sliding] * 2
    assert gemma_config(3, {pattern: 2})["layer_types"] == [sliding, full, sliding]
    assert gemma_config(3, {pattern: np.array([0, 1, 1])})["layer_types"] == [full, sliding, sliding]
    assert gemma_config(2, {"gemma3.attention.sliding_window": 0})["layer_types"] == [full, full]
    for wrong in (np.array([0, 1]), 0, "x"):
        with pytest.raises(StrixhloError, match=pattern):
            gemma_config(3, {pattern: wrong})


def test_gemma_attention_scale_and_bases(gemma_config: Callable[..., dict]) -> None:
    small, large = gemma_config(18, {}), gemma_config(62, {})
    assert (small["query_pre_attn_scalar"], large["query_pre_attn_scalar"]) == (16, 8)  # 27B: width / heads
    assert (small["rope_theta"], small["rope_local_base_freq"]) == (10000.0, 10000.0)
    scaled = gemma_config(
        34,
        {
            "gemma3.rope.freq_base": 1e6,
            "gemma3.rope.freq_base_swa": 2e4,
            "gemma3.rope.scaling.type": "linear",
            "gemma3.rope.scaling.factor": 8.0,
            "gemma3.final_logit_softcapping": 30.0,
        },
    )
    assert (scaled["rope_theta"], scaled["rope_local_base_freq"]) == (1e6, 2e4)
    assert scaled["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert scaled["final_logit_softcapping"] == 30.0
