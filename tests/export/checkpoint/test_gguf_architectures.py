"""Every architecture of the GGUF table: our logits against transformers' (before the conversion) and llama.cpp's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoint_logits import distance, logits_of
from gguf_models import SHAPE, logits, random_model, write_gguf

from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.checkpoint.gguf import read_gguf
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
    "command-r": ("cohere", ROPE | {"logit_scale": 0.5}, LAYER_NORM | {"logit_scale": 0.5}),
    "cohere2": (
        "cohere2",
        {"logit_scale": 0.5, "sliding_window": 16},
        LAYER_NORM | WINDOW | {"logit_scale": 0.5, "rope.dimension_count": 16},
    ),
    "glm4": ("glm4", {"head_dim": 16, "rms_norm_eps": 1e-6}, RMS | {"rope.dimension_count": 8}),
    "exaone4": ("exaone4", EPSILON | ROPE | {"sliding_window": None, "layer_types": ["full_attention"] * 4}, RMS),
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


def test_windows_of_exaone4(tmp_path: Path) -> None:
    """Against transformers alone: llama.cpp has windows in the model of 64 layers only."""
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    model = random_model("exaone4", **EPSILON, **ROPE, sliding_window=16, layer_types=kinds)
    keys = RMS | WINDOW | {"attention.sliding_window_pattern": [True, True, True, False]}
    path = write_gguf(model, tmp_path / "model.gguf", "exaone4", keys, {})
    assert distance(logits_of(path, IDS), logits(model, IDS)) < 1e-4


# A file of mixed types, as they are made now: some tensors better than others, small ones not at all. K-quants: the
# package cannot make them; test_gguf_repack has them, block by block, and test_quality in a real file.
MIXED = {
    "attn_v": "Q8_0",
    "ffn_down": "Q5_1",
    "ffn_gate": "MXFP4",
    "ffn_up": "Q4_1",
    "attn_q": "Q4_0",
    "attn_k": "Q5_0",
}


@pytest.mark.parametrize(
    "types", [{"": t} for t in ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")] + [MIXED], ids=str
)
def test_types(types: dict[str, str], tmp_path: Path) -> None:
    """Against llama.cpp on the same file; it rounds activations to the weights' 16 bits, or to 8 bits, we do not."""
    model = random_model("llama", **EPSILON)
    path = write_gguf(model, tmp_path / "model.gguf", "llama", RMS, types)
    with LlamaCpp(path, n_ctx=64) as native:
        theirs = native.teacher_forced_logits(IDS)
    assert distance(logits_of(path, IDS), theirs) < (1e-2 if "F16" in str(types) else 3e-2)


def test_a_model_in_parts(tmp_path: Path) -> None:
    """Any part names the model; tensors come from all. A part that is missing, or of another model, is named."""
    model = random_model("llama", **EPSILON)
    whole = open_checkpoint(str(write_gguf(model, tmp_path / "whole.gguf", "llama", RMS, {})))
    first, second = split(tmp_path / "whole.gguf", tmp_path / "parts")
    for source in (first, second, first.parent):
        checkpoint = open_checkpoint(str(source))
        assert checkpoint.files == (first, second) and checkpoint.config == whole.config
        for name, tensor in whole.tensors.items():
            assert np.array_equal(checkpoint.tensors[name].read()["dense"], tensor.read()["dense"])
    moved = second.rename(tmp_path / "part.gguf")
    with pytest.raises(StrixhloError, match=r"part m-00002-of-00002\.gguf is missing"):
        open_checkpoint(str(first))
    with pytest.raises(StrixhloError, match="its name does not end in"):
        open_checkpoint(str(moved))
    second.write_bytes(first.read_bytes())
    with pytest.raises(StrixhloError, match="is not part 2 of 2"):
        open_checkpoint(str(first))


def split(source: Path, folder: Path) -> tuple[Path, Path]:
    """As llama-gguf-split does it: the metadata in the first part, half of the tensors in each."""
    folder.mkdir()
    reader, file = gguf.GGUFReader(source), read_gguf(source)
    paths = (folder / "m-00001-of-00002.gguf", folder / "m-00002-of-00002.gguf")
    half = len(reader.tensors) // 2
    for number, (path, tensors) in enumerate(zip(paths, (reader.tensors[:half], reader.tensors[half:]), strict=True)):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for key, value in file.metadata.items() if number == 0 else ():
            if key == "general.architecture":
                continue
            kinds = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            if type(value) in kinds:
                kinds[type(value)](key, value)
            else:
                writer.add_array(key, value if isinstance(value, list) else value.tolist())
        for tensor in tensors:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths
