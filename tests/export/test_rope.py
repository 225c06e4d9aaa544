"""RoPE tables against transformers, rotation against complex numbers."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from strixhlo.custom_kernels.ops.rope import rope
from strixhlo.errors import StrixhloError
from strixhlo.export.layers.rope import inverse_frequencies, rope_table
from strixhlo.export.layers.rope_scaling import RopeScaling

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 4.0}, LLAMA3], ids=str)
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_table_is_transformers(scaling: dict | None, base: float) -> None:
    parameters = {"rope_type": "default", **(scaling or {}), "rope_theta": base}
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=2, rope_parameters=parameters, max_position_embeddings=16384
    )
    positions = torch.arange(9000)[None]
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    table = rope_table(inverse_frequencies(128, base, RopeScaling.from_config({"rope_scaling": scaling})), 9000)
    # transformers computes the angle in float32: at position 9,000 half a unit of the last place is 5e-4.
    np.testing.assert_allclose(table[:, 0], cos[0, :, :64].numpy(), atol=1e-3)
    np.testing.assert_allclose(table[:, 1], sin[0, :, :64].numpy(), atol=1e-3)
    np.testing.assert_allclose(table[:100, 0], cos[0, :100, :64].numpy(), atol=1e-5)


def test_rotation() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 3, 8)).astype(np.float32)
    inverse = inverse_frequencies(8, 100.0, RopeScaling())
    positions = np.array([0, 7, 3, 31, -1], np.int32)  # -1 is padding: any value, but no fault
    y = np.asarray(rope(jnp.asarray(x), jnp.asarray(rope_table(inverse, 32)), jnp.asarray(positions)))
    z = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * positions[:, None, None] * inverse.astype(np.float64))
    np.testing.assert_allclose(y[:4], np.concatenate([z.real, z.imag], -1)[:4], rtol=1e-5, atol=1e-6)
    assert np.isfinite(y).all()


def test_unknown_scaling_is_refused() -> None:
    with pytest.raises(StrixhloError, match="'ntk' is not supported"):
        RopeScaling.from_config({"rope_scaling": {"rope_type": "ntk", "factor": 2.0}})
    with pytest.raises(StrixhloError, match="lacks low_freq_factor"):
        RopeScaling.from_config({"rope_scaling": {k: v for k, v in LLAMA3.items() if k != "low_freq_factor"}})
