"""A small checkpoint of any container -> its logits and its dequantized weights, evaluated by JAX in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM

from strixhlo.custom_kernels.ops.formats import FORMATS, dequantize
from strixhlo.export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from strixhlo.export.layers.cache import Cache
from strixhlo.export.layers.weights import Weight, Weights
from strixhlo.export.models import model_from_config
from strixhlo.export.stored_weights import stored_weights

VOCAB = 256
IDS = np.random.default_rng(1).integers(3, VOCAB, 24)


def random_llama(**changes: Any) -> LlamaForCausalLM:
    """Two layers, 256 wide (so that blocks of 128 and groups of 128 are several), weights of bfloat16 precision."""
    torch.manual_seed(0)
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 256,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
    }
    model = LlamaForCausalLM(LlamaConfig(**(settings | changes))).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = "norm" in name
            p.copy_((torch.randn_like(p) * (0.3 if norm else 0.06) + (1.0 if norm else 0.0)).bfloat16())
    return model


def save(model: LlamaForCausalLM, folder: Path) -> Path:
    """save_pretrained, and a tokenizer."""
    model.save_pretrained(folder)
    return with_tokenizer(folder)


def with_tokenizer(folder: Path) -> Path:
    Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder


def weights_of(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Every tensor, dequantized to float32."""
    values = {}
    for name, tensor in checkpoint.tensors.items():
        parts = {p: jnp.asarray(a) for p, a in tensor.read().items()}
        value = dequantize(FORMATS[tensor.format], parts) if tensor.format in FORMATS else parts["dense"]
        values[name] = np.asarray(value.astype(jnp.float32))
    return values


def logits_of(source: Path, ids: np.ndarray = IDS) -> np.ndarray:
    """float32 logits [24, vocabulary] of 24 token ids, through the functions that the tracer traces."""
    checkpoint = open_checkpoint(str(source))
    model = model_from_config(checkpoint.config)
    stored = stored_weights({n: checkpoint.tensors[n] for n, _ in model.shapes()}, model.tables(128), "auto")
    weights = Weights(
        {n: Weight({p: jnp.asarray(a) for p, a in s.read().items()}, s.format, s.columns) for n, s in stored.items()}
    )
    for name, s in stored.items():  # what is traced is what is read
        assert {p: (a.shape, a.dtype) for p, a in s.read().items()} == {
            p: (a.shape, a.dtype) for p, a in s.traced().parts.items()
        }, name
    pool = jnp.zeros((model.pool[0], 128, model.pool[1]), jnp.float32)
    table, positions = jnp.arange(8, dtype=jnp.int32)[None], jnp.arange(len(ids), dtype=jnp.int32)

    def run() -> jax.Array:
        cache = Cache(pool, pool, table, positions, 16)
        return model.logits(weights, model.hidden_states(weights, jnp.asarray(ids, jnp.int32), cache)[0])

    return np.asarray(jax.jit(run)())


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Relative L2."""
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
