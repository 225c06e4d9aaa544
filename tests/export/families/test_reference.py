"""Each family, evaluated by JAX from a checkpoint that transformers wrote, against transformers' own logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.layers.cache import Cache
from strixhlo.export.layers.probe import recording
from strixhlo.export.layers.weights import Weight, Weights
from strixhlo.export.models import model_from_config

T, VOCAB, LAYERS = 64, 160, 4
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": LAYERS,
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
    "short_factor": [1.0, 1.1],
    "long_factor": [1.5, 4.0],
    "original_max_position_embeddings": 32,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
}
WINDOWS = ["sliding_attention", "full_attention"] * (LAYERS // 2)
# name -> model type, what differs from SHAPE
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "apertus": ("apertus", {"rope_parameters": LLAMA3}),
    "cohere": ("cohere", {"use_qk_norm": True, "logit_scale": 0.5}),
    "cohere2": ("cohere2", {"sliding_window": 20, "logit_scale": 0.5}),
    "exaone4": ("exaone4", {"sliding_window": 20, "rope_parameters": LLAMA3}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 20, "query_pre_attn_scalar": 20}),
    "glm": ("glm", {"head_dim": 16}),
    "glm4": ("glm4", {"head_dim": 16}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "attention_bias": True,
        },
    ),
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3}),
    "ministral": ("ministral", {"head_dim": 16, "sliding_window": 20, "layer_types": WINDOWS}),
    "mistral": ("mistral", {"head_dim": 16, "sliding_window": 20, "rope_parameters": LINEAR}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"sliding_window": 20}),
    "phi3": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 32}),
    "qwen2": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2, "rope_parameters": YARN},
    ),
    "qwen3": ("qwen3", {"head_dim": 16, "rope_parameters": YARN}),
    "seed_oss": ("seed_oss", {"head_dim": 16, "attention_out_bias": True}),
    "smollm3": ("smollm3", {}),
    "starcoder2": ("starcoder2", {"sliding_window": 20}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    kind, changes = CASES[case]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **(SHAPE | changes))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # norms of one and biases of zero would hide a missing one
        for name, p in model.named_parameters():
            norm = "norm" in name and name.endswith("weight")
            p.copy_(torch.randn_like(p) * (0.3 if norm else 0.15) + (1.0 if norm else 0.0))
    model.save_pretrained(tmp_path)
    Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    ids = np.random.default_rng(1).integers(3, VOCAB, T)
    with torch.no_grad():
        expected = model(torch.tensor(ids)[None]).logits[0].numpy()
    ours = evaluate(tmp_path, ids)
    assert np.linalg.norm(ours - expected) / np.linalg.norm(expected) < 1e-4


def evaluate(folder: Path, ids: np.ndarray) -> np.ndarray:
    """Logits of every position, float32, through the functions that the tracer traces."""
    checkpoint = open_checkpoint(str(folder))
    model = model_from_config(checkpoint.config)
    arrays = {}
    for name, shape in model.shapes():
        assert checkpoint.tensors[name].shape == shape, name
        arrays[name] = checkpoint.tensors[name].read()["dense"].astype(np.float32)
    arrays |= model.tables(128)
    weights = Weights(
        {n: Weight({"dense": jnp.asarray(a)}, "f32", a.shape[-1] if a.ndim else 1) for n, a in arrays.items()}
    )
    pool = jnp.zeros((model.pool[0], 128, model.pool[1]), jnp.float32)
    table, positions = jnp.arange(8, dtype=jnp.int32)[None], jnp.arange(T, dtype=jnp.int32)
    probed: list[str] = []

    def run() -> jax.Array:
        with recording() as states:
            hidden, _ = model.hidden_states(
                weights, jnp.asarray(ids, jnp.int32), Cache.create(pool, pool, table, positions, 16)
            )
        probed.extend(name for name, _ in states)
        return model.logits(weights, hidden)

    logits = np.asarray(jax.jit(run)())
    layers = [f"layers.{i}.{part}" for i in range(model.layers) for part in ("attention", "mlp")]
    assert probed == ["embedding", *layers, "norm"]
    return logits


def test_an_unknown_family_names_the_nearest() -> None:
    with pytest.raises(StrixhloError, match="'qwen33' is not supported; the nearest that is: qwen3"):
        model_from_config({"model_type": "qwen33"})
