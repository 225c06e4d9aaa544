"""How many dispatches a decoded token takes, counted in the compiled programs: 6 a layer and few more."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from strixhlo.bundle import VMFB, KVCache
from strixhlo.compile.compile import lower_program
from strixhlo.compile.iree_compile import iree_compile
from strixhlo.compile.report import entry_report
from strixhlo.compile.targets import parse_target
from strixhlo.custom_kernels.ops.formats import FORMATS
from strixhlo.export.layers.weights import Weight
from strixhlo.export.models import model_from_config
from strixhlo.export.trace import trace

LAYERS, CONTEXT = 2, 64
LLAMA = {
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
# Norms before and after attention and MLP.
SANDWICH = LLAMA | {"model_type": "gemma3_text", "head_dim": 16, "layer_types": ["full_attention"] * LAYERS}
CASES = {
    "Llama-cpu": (LLAMA, "cpu", 6),
    "Llama-rocm": (LLAMA, "rocm", 6),
    "post-norms-cpu": (SANDWICH, "cpu", 6),
    "post-norms-rocm": (SANDWICH, "rocm", 6),
}
AROUND = 4  # the embedding, the head, argmax, and what scales logits


def weight(shape: tuple[int, ...], format: str) -> Weight:
    if len(shape) < 2:
        return Weight({"dense": jax.ShapeDtypeStruct(shape, np.float32)}, "f32", shape[-1])
    parts = FORMATS[format].parts(*shape)
    return Weight({p: jax.ShapeDtypeStruct(s, d) for p, (s, d) in parts.items()}, format, shape[1])


def dispatches(config: dict[str, object], target: str, folder: Path) -> dict[str, int]:
    """Of each entry, in SmolLM2's weight format."""
    model = model_from_config(config)
    weights = {name: weight(shape, "q4_1") for name, shape in model.shapes()}
    for name, table in model.tables(CONTEXT).items():
        weights[name] = Weight({"dense": jax.ShapeDtypeStruct(table.shape, np.float32)}, "f32", table.shape[-1])
    layers, width = model.pool
    kv = KVCache(dtype="f16", layers=layers, rows=CONTEXT, width=width, block_size=16, blocks=CONTEXT // 16)
    program = trace(model, weights, kv, {"decode_1": ("decode", 1), "decode_8": ("decode", 8)})
    where = parse_target(target)
    lowered = lower_program(program.program, where, "int8" if where.kind == "cpu" else "f32", None)
    iree_compile(lowered.program, [*where.iree_flags, f"--dump-compilation-phases-to={folder}"], folder / VMFB)
    report = entry_report(next(folder.glob("*.stream.mlir")).read_text())
    assert all(entry["copies"] == entry["fills"] == 0 for entry in report.values())
    return {name: entry["dispatches"] for name, entry in report.items()}


@pytest.mark.parametrize(("config", "target", "of_layer"), CASES.values(), ids=CASES)
def test_a_decoded_token(config: dict[str, object], target: str, of_layer: int, tmp_path: Path) -> None:
    for entry, count in dispatches(config, target, tmp_path).items():
        assert count <= of_layer * LAYERS + AROUND, entry
