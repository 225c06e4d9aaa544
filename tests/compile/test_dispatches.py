"""What a decoded token takes, counted in the compiler's own plan of the programs: 6 dispatches a layer and 4 more, one
submission, no copies, and no wait of the host but for the result."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from archive_places import in_archive

from strixhlo.bundle import Kind, KVCache
from strixhlo.compile.compile import lower_without_kernels
from strixhlo.compile.iree_compile import run
from strixhlo.compile.report import entry_report
from strixhlo.compile.targets import parse_target
from strixhlo.custom_kernels.ops.formats import FORMATS
from strixhlo.export.layers.weights import Weight
from strixhlo.export.models import model_from_config
from strixhlo.export.trace import trace

LAYERS, CONTEXT = 2, 64
ENTRIES: dict[str, tuple[Kind, int]] = {f"decode_{rows}": ("decode", rows) for rows in (1, 2, 4, 8)}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 256,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
}
FULL = {"layer_types": ["full_attention"] * LAYERS}
# Norms before and after attention and MLP; capped logits.
SANDWICH = LLAMA | FULL | {"model_type": "gemma2", "head_dim": 16, "sliding_window": 16}
# Norms after both, and of all heads of q and k together.
POST_NORMS = LLAMA | {"model_type": "olmo2"}
LAYER_NORMS = LLAMA | {"model_type": "starcoder2", "norm_epsilon": 1e-5, "sliding_window": None}
LAYER_NORMS |= {"mlp_type": "default", "norm_type": "layer_norm", "scale_attn_weights": True}
MIXTURE = LLAMA | {"model_type": "qwen3_moe", "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2}
MIXTURE |= {"moe_intermediate_size": 64, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
# A shared expert, without a gate and corrected scores in groups; with a gate.
SHARED = LLAMA | {"model_type": "glm4_moe", "head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2}
SHARED |= {"moe_intermediate_size": 64, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "use_qk_norm": True}
SHARED |= {"first_k_dense_replace": 0}
GATED = MIXTURE | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 96}
del GATED["head_dim"]
WIDE = LLAMA | {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
ATTENTION = 4  # dispatches of a layer, before its experts
AROUND = 4  # the embedding, the head, argmax, and what caps or scales logits
# Formats of weights by the end of their name, the first that fits.
Q4_K_M = {"v_proj.weight": "q6_k", "down_proj.weight": "q6_k", "": "q4_k"}  # llama.cpp's, of half of the layers
GATE_APART = {"gate_proj.weight": "q4_k", "": "q5_k"}
MODELS = {
    "dense": (LLAMA, "q4_1", 6),
    "norms before and after": (SANDWICH, "q4_1", 6),
    "norms after": (POST_NORMS, "mxfp4", 6),
    "layer norms": (LAYER_NORMS, "affine3_g32", 6),
    "experts": (MIXTURE, "q4_0", ATTENTION + 4),
    "two-level scales and minima": (WIDE | {"attention_bias": True}, "q5_k", 6),
    "v of another format": (WIDE, Q4_K_M, 6),
    "gate of another format, norms before and after": (SANDWICH | WIDE | {"model_type": "gemma2"}, GATE_APART, 6),
}


def weight(shape: tuple[int, ...], format: str) -> Weight:
    if len(shape) < 2:
        return Weight({"dense": jax.ShapeDtypeStruct(shape, np.float32)}, "f32", shape[-1])
    parts = FORMATS[format].parts(*shape)
    return Weight({p: jax.ShapeDtypeStruct(s, d) for p, (s, d) in parts.items()}, format, shape[1])


def entries(config: dict[str, Any], format: str | dict[str, str], target: str) -> dict[str, dict[str, int]]:
    """Of each entry, what one call does."""
    model = model_from_config(config)
    formats = {"": format} if isinstance(format, str) else format
    weights = {
        name: weight(shape, next(f for end, f in formats.items() if name.endswith(end)))
        for name, shape in model.shapes()
    }
    for name, table in model.tables(CONTEXT).items():
        weights[name] = Weight({"dense": jax.ShapeDtypeStruct(table.shape, np.float32)}, "f32", table.shape[-1])
    layers, width = model.pool
    kv = KVCache(dtype="f16", layers=layers, rows=CONTEXT, width=width, block_size=16, blocks=CONTEXT // 16)
    program = trace(model, weights, kv, ENTRIES)
    where = parse_target(target)
    activations = "int8" if where.kind == "cpu" else "f32"
    lowered = lower_without_kernels(program.program, where, activations, None, spans=in_archive(weights))
    return entry_report(run(lowered.program, ["--compile-to=stream", "-o", "-", *where.iree_flags]))


@pytest.mark.parametrize(("config", "experts"), [(MIXTURE, 3), (SHARED, 5), (GATED, 5)])
def test_experts_of_a_decoded_token_on_rocm(config: dict[str, Any], experts: int) -> None:
    """Router; the choice with gate and up; down with the sum, the residual and what a shared expert gives."""
    for name, entry in entries(config, "q4_0", "rocm").items():
        assert entry["dispatches"] <= (ATTENTION + experts) * LAYERS + AROUND - 1, name


@pytest.mark.parametrize("target", ["cpu", "rocm"])
@pytest.mark.parametrize(("config", "format", "of_layer"), MODELS.values(), ids=MODELS)
def test_a_decoded_token(config: dict[str, Any], format: str | dict[str, str], of_layer: int, target: str) -> None:
    found = entries(config, format, target)
    assert found.keys() == ENTRIES.keys()
    for name, entry in found.items():
        assert entry["dispatches"] <= of_layer * LAYERS + AROUND, name
        assert entry["copies"] == entry["fills"] == 0
        assert entry["submissions"] == entry["host_waits"] == 1  # for the result


def test_a_decoded_token_of_mixed_formats_on_cuda() -> None:
    """q, k and v are one launch there too."""
    for name, entry in entries(WIDE, Q4_K_M, "cuda").items():
        assert entry["dispatches"] <= 6 * LAYERS + AROUND, name
        assert entry["copies"] == entry["fills"] == 0
