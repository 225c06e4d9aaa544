"""MLX's quantizations, made by mlx_lm's converter: weights against mx.dequantize, logits against mlx_lm's own model."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from checkpoint_logits import IDS, distance, logits_of, random_llama, save, weights_of
from compiled_checkpoints import CompiledOnce, T
from coverage_table import covers
from mlx.utils import tree_flatten
from mlx_models import in_float32, logits, quantized

from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program

MIXED = {"model.layers.0.mlp.down_proj": {"bits": 6, "group_size": 32}, "model.layers.1.self_attn.v_proj": False}
MODES = {
    "model.layers.0.mlp.gate_proj": {"bits": 4, "group_size": 32, "mode": "mxfp4"},
    "model.layers.0.mlp.up_proj": {"bits": 8, "group_size": 32, "mode": "mxfp8"},
    "model.layers.1.mlp.up_proj": {"bits": 4, "group_size": 16, "mode": "nvfp4"},
}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "affine 2 bits": ({"bits": 2, "group_size": 32}, "affine2_g32"),
    "affine 3 bits": ({"bits": 3, "group_size": 64}, "affine3_g64"),
    "affine 4 bits": ({"bits": 4, "group_size": 64}, "affine4_g64"),
    "affine 5 bits": ({"bits": 5, "group_size": 128}, "affine5_g128"),
    "affine 6 bits": ({"bits": 6, "group_size": 64}, "affine6_g64"),
    "affine 8 bits": ({"bits": 8, "group_size": 32}, "affine8_g32"),
    "mxfp4": ({"mode": "mxfp4"}, "mxfp4"),
    "mxfp8": ({"mode": "mxfp8"}, "mxfp8"),
    "nvfp4": ({"mode": "nvfp4"}, "nvfp4"),
    "mixed": ({"bits": 4, "group_size": 64, "overrides": MIXED}, "affine4_g64"),
}


TIED = ("affine 3 bits", "affine 4 bits", "mxfp4", "nvfp4")  # the quantized embedding is also the output projection


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """tied or not -> the unquantized model."""
    return {
        tied: save(random_llama(tie_word_embeddings=tied), tmp_path_factory.mktemp("plain")) for tied in (False, True)
    }


@pytest.mark.parametrize("case", CASES)
def test_weights_and_logits(models: dict[bool, Path], tmp_path: Path, case: str) -> None:
    settings, name = CASES[case]
    model = quantized(models[case in TIED], tmp_path / "mlx", **settings)
    checkpoint = open_checkpoint(str(tmp_path / "mlx"))
    formats = {n: t.format for n, t in checkpoint.tensors.items()}
    assert formats["model.embed_tokens.weight"] == formats["model.layers.0.self_attn.q_proj.weight"] == name
    if case == "mixed":
        assert formats["model.layers.0.mlp.down_proj.weight"] == "affine6_g32"
        assert formats["model.layers.1.self_attn.v_proj.weight"] == "f32"
    ours = weights_of(checkpoint)
    for path, module in tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module):
        if hasattr(module, "bits"):
            theirs = mx.dequantize(
                module.weight,
                module.scales,
                module.get("biases"),
                group_size=module.group_size,
                bits=module.bits,
                mode=module.mode,
                dtype=mx.float32,
            )
            np.testing.assert_allclose(ours[f"{path}.weight"], np.array(theirs), rtol=0, atol=1e-6)
    assert distance(logits_of(tmp_path / "mlx"), logits(in_float32(model), IDS)) < 1e-4


def test_settings_that_do_not_exist_are_named(models: dict[bool, Path], tmp_path: Path) -> None:
    quantized(models[False], tmp_path / "mlx", bits=4, group_size=64)
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    for block, message in (
        ({"bits": 7, "group_size": 64}, "7 bits, groups of 64"),
        ({"bits": 4, "group_size": 32, "mode": "nf4"}, "mode 'nf4'"),
        ({"bits": 4, "group_size": 32}, "has shape .* where its weight asks for"),
        ({"bits": 4, "group_size": 64, "mode": "mxfp8"}, "mode 'mxfp8', 4 bits"),
    ):
        (tmp_path / "mlx" / "config.json").write_text(json.dumps(config | {"quantization": block}))
        with pytest.raises(StrixhloError, match=message):
            open_checkpoint(str(tmp_path / "mlx"))


NAMES = {case: f"MLX {case.removesuffix(' bits')}" for case in CASES if case != "mixed"} | {"mixed": "MLX mixed"}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=covers("Llama", name, "cpu", "mlx_lm")) for c, name in NAMES.items()]
)
def test_compiled_for_the_cpu(models: dict[bool, Path], tmp_path: Path, compiled_once: CompiledOnce, case: str) -> None:
    """Prompt and decoded tokens of mlx_lm's own model in float32; "mixed" has four more modes for single modules."""
    settings, _ = CASES[case]
    if case == "mixed":
        settings = {"bits": 4, "group_size": 64, "overrides": MIXED | MODES}
    model = in_float32(quantized(models[case in TIED], tmp_path / "mlx", **settings))
    bundle = compiled_once.hold(tmp_path / "mlx", tmp_path / "bundle", lambda ids: logits(model, ids))
    if case == "mixed":
        formats = {"affine4_g64", "affine6_g32", "mxfp4", "mxfp8", "nvfp4", "f32"}
        assert bundle.manifest.weight_formats.keys() >= formats


def test_8_bit_activations_compiled_for_the_cpu(
    models: dict[bool, Path], tmp_path: Path, compiled_once: CompiledOnce
) -> None:
    """The default of `compile`: integer products for affine, mxfp4 and nvfp4, float32 for mxfp8."""
    quantized(models[True], tmp_path / "mlx", bits=4, group_size=64, overrides=MIXED | MODES)
    bundle = compiled_once.compile(tmp_path / "mlx", tmp_path / "bundle", "int8")
    with Program(bundle, "cpu", 2) as program, closing(Engine(program)) as engine:
        ours = engine.score(np.resize(IDS, T).tolist())
    exact = logits_of(tmp_path / "mlx", np.resize(IDS, T))
    assert 1e-4 < distance(ours, exact) < 0.03  # rounded to 8 bits per 32 columns
