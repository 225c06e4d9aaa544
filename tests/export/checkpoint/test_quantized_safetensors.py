"""FP8, compressed-tensors, ModelOpt, GPTQ, AWQ and gpt-oss checkpoints against their makers' evaluation
(quantized_checkpoints.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_logits import IDS, VOCAB, distance, logits_of, random_llama, weights_of
from compiled_checkpoints import CompiledOnce
from coverage_table import covers
from family_checkpoints import logits, random_checkpoint
from quantized_checkpoints import CASES, modelopt_nvfp4, write
from safetensors.torch import load_file, save_file

from strixhlo.export.checkpoint.checkpoint import open_checkpoint


@pytest.mark.parametrize("case", CASES)
def test_weights_are_the_makers(plain: Path, tmp_path: Path, case: str) -> None:
    config, quantize, name = CASES[case]
    theirs = write(plain, tmp_path / "model", config, quantize)
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    assert {t.format for n, t in checkpoint.tensors.items() if "_proj" in n} == {name}
    assert checkpoint.tensors.keys() == theirs.keys()
    for weight, value in weights_of(checkpoint).items():
        difference = np.abs(value - theirs[weight].numpy()).max() / np.abs(theirs[weight].numpy()).max()
        assert difference < 1e-6, weight


@pytest.mark.parametrize("case", ["fp8 of blocks", "ct int4", "modelopt nvfp4", "awq"])
def test_logits_are_those_of_transformers_with_these_weights(plain: Path, tmp_path: Path, case: str) -> None:
    config, quantize, _ = CASES[case]
    theirs = write(plain, tmp_path / "model", config, quantize)
    model = random_llama()
    model.load_state_dict(theirs)
    with torch.no_grad():
        expected = model(torch.tensor(IDS)[None]).logits[0].numpy()
    assert distance(logits_of(tmp_path / "model"), expected) < 1e-4


NAMES = {
    "fp8 of a tensor": "FP8 tensor",
    "fp8 of blocks": "FP8 128x128",
    "fp8 of blocks, bf16": "FP8 128x128 (bf16 scales)",
    "fbgemm": "FP8 fbgemm",
    "ct fp8 of rows": "compressed-tensors fp8 channel",
    "ct fp8 of a tensor": "compressed-tensors fp8 tensor",
    "ct int4": "compressed-tensors int4",
    "ct int4 with zeros": "compressed-tensors int4 asymmetric",
    "ct int8 packed": "compressed-tensors int8 packed",
    "ct int8": "compressed-tensors int8",
    "ct nvfp4": "compressed-tensors nvfp4",
    "ct mxfp4": "compressed-tensors mxfp4",
    "modelopt fp8": "ModelOpt FP8",
    "modelopt nvfp4": "ModelOpt NVFP4",
    "gptq 4 bits": "GPTQ 4",
    "gptq 8 bits": "GPTQ 8",
    "gptq v2": "GPTQ v2",
    "awq": "AWQ 4",
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=covers("Llama", NAMES[c], "cpu", "transformers")) for c in CASES]
)
def test_compiled_for_the_cpu(plain: Path, tmp_path: Path, compiled_once: CompiledOnce, case: str) -> None:
    """Prompt and decoded tokens of transformers with the weights that the maker computes, in float32."""
    config, quantize, _ = CASES[case]
    model = random_llama()
    model.load_state_dict(write(plain, tmp_path / "model", config, quantize))

    def evaluate(ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor(ids)[None], use_cache=False).logits[0].numpy()

    compiled_once.hold(tmp_path / "model", tmp_path / "bundle", evaluate)


def test_modelopt_in_a_file_of_its_own(plain: Path, tmp_path: Path) -> None:
    write(plain, tmp_path / "model", {}, modelopt_nvfp4)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    block = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (tmp_path / "model" / "hf_quant_config.json").write_text(json.dumps(block))
    tensors = open_checkpoint(str(tmp_path / "model")).tensors
    assert tensors["model.layers.1.mlp.up_proj.weight"].format == "nvfp4"


def experts(folder: Path, case: str) -> Any:
    """Writes folder/model, one tensor an expert, each with scales of its own; returns transformers' model with the
    weights that the maker computes from them."""
    config, quantize, name = CASES[case]
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": VOCAB}
    model = random_checkpoint("olmoe", {"num_experts": 8, "num_experts_per_tok": 3} | sizes, folder / "plain")
    theirs = write(folder / "plain", folder / "model", config, quantize)
    tensors = open_checkpoint(str(folder / "model")).tensors
    stacked = {"fp8_tensor": "fp8_channel"}.get(name, name)
    assert {t.format for n, t in tensors.items() if ".experts." in n} == {stacked}
    save_file(theirs, folder / "plain" / "model.safetensors", {"format": "pt"})
    model = type(model).from_pretrained(folder / "plain", dtype=torch.float32, attn_implementation="eager")
    return model.eval()


@pytest.mark.parametrize("case", ["fp8 of a tensor", "fp8 of blocks", "ct fp8 of rows", "ct int4", "modelopt fp8"])
def test_experts(tmp_path: Path, case: str) -> None:
    """Their stack computes what transformers does with these weights."""
    model = experts(tmp_path, case)
    assert distance(logits_of(tmp_path / "model"), logits(model, IDS.tolist())) < 1e-4


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=covers("OLMoE", NAMES[c], "cpu", "transformers")) for c in ("ct nvfp4", "modelopt nvfp4")],
)
def test_experts_with_a_global_scale_each(tmp_path: Path, compiled_once: CompiledOnce, case: str) -> None:
    """The stack has all of them; JAX and the compiled program compute what transformers does with these weights."""
    model = experts(tmp_path, case)
    scales = open_checkpoint(str(tmp_path / "model")).tensors["model.layers.1.mlp.experts.up_proj.weight"].read()
    assert scales["global_scale"].shape == (8,) and len(set(scales["global_scale"].tolist())) == 8
    assert distance(logits_of(tmp_path / "model"), logits(model, IDS.tolist())) < 1e-4
    compiled_once.hold(tmp_path / "model", tmp_path / "bundle", lambda ids: logits(model, ids))


def test_experts_of_gpt_oss(plain: Path, tmp_path: Path) -> None:
    """All experts of a layer in one tensor [experts, N, K]; each expert's codes and scales are an mxfp4 weight."""
    rng = np.random.default_rng(0)
    blocks, scales = rng.integers(0, 256, (3, 64, 4, 16), np.uint8), rng.integers(110, 130, (3, 64, 4), np.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    write(plain, tmp_path / "model", {"quant_method": "mxfp4"}, lambda w: ({"weight": w}, w))
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors |= {f"{name}_blocks": torch.from_numpy(blocks), f"{name}_scales": torch.from_numpy(scales)}
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    tensor = open_checkpoint(str(tmp_path / "model")).tensors[name]
    assert (tensor.format, tensor.shape) == ("mxfp4", (3, 64, 128))
    parts = tensor.read()
    assert np.array_equal(parts["codes"].view(np.uint8), blocks.reshape(3, 64, 64))
    assert np.array_equal(parts["scale"].view(np.uint8), scales)
    assert tensor.places.keys() == {"codes", "scale"}
