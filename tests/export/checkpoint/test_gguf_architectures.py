"""Every architecture of the GGUF table: our logits against transformers' (before the conversion) and llama.cpp's."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoint_logits import distance, logits_of
from coverage_table import covers
from gguf_models import ARCHITECTURES as GGUF_CASES
from gguf_models import (
    EPSILON,
    EXPERTS,
    GEMMA4,
    GEMMA4_KEYS,
    MIXTRAL,
    RMS,
    ROPE,
    SHAPE,
    WINDOW,
    logits,
    random_model,
    write_gguf,
)

from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.checkpoint.gguf import read_gguf
from strixhlo.export.checkpoint.gguf_architectures import ARCHITECTURES
from strixhlo.runtime.native.llama_cpp import LlamaCpp

IDS = np.random.default_rng(1).integers(3, SHAPE["vocab_size"], 24)


def test_every_architecture_is_here() -> None:
    assert {*GGUF_CASES, "gemma3"} == ARCHITECTURES.keys()  # Gemma 3 is tested on the real file


# The models whose line in README's table an architecture's name does not begin.
LINES = {"qwen2": "Qwen 2", "qwen3": "Qwen 3", "gemma2": "Gemma 2", "gemma4": "Gemma 4", "phi3": "Phi-3"}
LINES |= {"smollm3": "SmolLM 3", "olmo2": "OLMo 2", "granite": "Granite 3", "starcoder2": "StarCoder 2"}
LINES |= {"command-r": "Command R (", "cohere2": "Command R7B", "chatglm": "GLM-4 (", "glm4": "GLM-4-0414"}
LINES |= {"mistral3": "Ministral 3", "exaone4": "EXAONE 4", "seed_oss": "Seed-OSS", "apertus": "Apertus"}
LINES |= {"llama": "Llama", "exaone": "EXAONE 3", "qwen2moe": "MoE of Qwen 1.5", "qwen3moe": "MoE of Qwen 3"}
LINES |= {"olmoe": "OLMoE", "granitemoe": "MoE of Granite 3", "gpt-oss": "gpt-oss"}


def against(name: str, format: str) -> list[pytest.MarkDecorator]:
    return [covers(LINES[name], format, "jax", "transformers"), covers(LINES[name], format, "jax", "llama.cpp")]


@pytest.mark.parametrize("architecture", [pytest.param(name, marks=against(name, "GGUF F32")) for name in GGUF_CASES])
def test_logits(architecture: str, tmp_path: Path) -> None:
    model_type, changes, keys = GGUF_CASES[architecture]
    model = random_model(model_type, **changes)
    path = write_gguf(model, tmp_path / "model.gguf", architecture, keys, {})
    ours = logits_of(path, IDS)
    assert distance(ours, logits(model, IDS)) < 1e-4
    with LlamaCpp(path, n_ctx=64) as native:
        theirs = native.teacher_forced_logits(IDS)
    near = 5e-3 if architecture == "gemma4" else 2e-3  # its KV cache is float16
    if "expert_count" in keys:  # and so may choose another of two experts that are nearly equal
        rows = np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1)
        assert (rows < near).mean() > 0.9
    else:
        assert distance(ours, theirs) < near


@covers("Mixtral", "GGUF F32", "jax", "transformers")
@covers("Mixtral", "GGUF F32", "jax", "llama.cpp")
def test_mixtral(tmp_path: Path) -> None:
    """llama.cpp has Mixtral as Llama with experts."""
    model = random_model("mixtral", **EPSILON, **MIXTRAL)
    path = write_gguf(model, tmp_path / "model.gguf", "llama", RMS | EXPERTS | {"rope.dimension_count": 16}, {})
    ours = logits_of(path, IDS)
    assert distance(ours, logits(model, IDS)) < 1e-4
    with LlamaCpp(path, n_ctx=64) as native:
        assert distance(ours, native.teacher_forced_logits(IDS)) < 2e-3


def test_mixtral_with_a_tensor_for_each_expert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As files of before April 2024 have it, which llama.cpp reads no more."""
    model = random_model("mixtral", **EPSILON, **MIXTRAL)
    keys = RMS | EXPERTS | {"rope.dimension_count": 16}
    stacked = write_gguf(model, tmp_path / "stacked.gguf", "llama", keys, {})
    add, names = gguf.GGUFWriter.add_tensor, []

    def apart(writer: gguf.GGUFWriter, name: str, array: np.ndarray, **how: object) -> None:
        if "_exps." not in name:
            return add(writer, name, array, **how)
        for e, one in enumerate(array):
            names.append(name.replace("_exps.", f".{e}."))
            add(writer, names[-1], one, **how)
        return None

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", apart)
    path = write_gguf(model, tmp_path / "model.gguf", "llama", keys, {})
    assert "blk.0.ffn_down.1.weight" in names
    assert logits_of(path, IDS).tobytes() == logits_of(stacked, IDS).tobytes()

    def twice(writer: gguf.GGUFWriter, name: str, array: np.ndarray, **how: object) -> None:
        apart(writer, name, array, **how)
        if "_exps." in name:
            add(writer, name, array, **how)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", twice)
    path = write_gguf(model, tmp_path / "both.gguf", "llama", keys, {})
    with pytest.raises(StrixhloError, match=r"both.gguf: model.layers.0.mlp.experts.\w+.weight: is there twice"):
        open_checkpoint(str(path))

    def without_the_last(writer: gguf.GGUFWriter, name: str, array: np.ndarray, **how: object) -> None:
        apart(writer, name, array[:-1] if "_exps." in name else array, **how)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", without_the_last)
    path = write_gguf(model, tmp_path / "less.gguf", "llama", keys, {})
    with pytest.raises(StrixhloError, match=r"less.gguf: .*.mlp.experts.\w+.weight: expert 7 is missing of 8"):
        open_checkpoint(str(path))


@covers("OLMo 3", "GGUF F32", "jax", "transformers")
@covers("OLMo 3", "GGUF F32", "jax", "llama.cpp")
def test_olmo3(tmp_path: Path) -> None:
    """llama.cpp has OLMo 3 as OLMo 2 with windows."""
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    rope = {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in set(kinds)}
    model = random_model("olmo3", **EPSILON, rope_parameters=rope, sliding_window=16, layer_types=kinds)
    path = write_gguf(model, tmp_path / "model.gguf", "olmo2", RMS | WINDOW, {})
    ours = logits_of(path, IDS)
    assert distance(ours, logits(model, IDS)) < 1e-4
    with LlamaCpp(path, n_ctx=64) as native:
        assert distance(ours, native.teacher_forced_logits(IDS)) < 2e-3


def test_gemma4_with_values_that_are_keys(tmp_path: Path) -> None:
    """The 31B in small: full layers have fewer heads and no v_proj, and there are no embeddings for each layer."""
    changes = {"num_kv_shared_layers": 0, "use_double_wide_mlp": False, "hidden_size_per_layer_input": 0}
    changes |= {"attention_k_eq_v": True, "num_key_value_heads": 4, "num_global_key_value_heads": 2}
    model = random_model("gemma4_text", **GEMMA4 | changes)
    keys = GEMMA4_KEYS | {"attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0}
    path = write_gguf(model, tmp_path / "model.gguf", "gemma4", RMS | keys, {})
    ours = logits_of(path, IDS)
    assert distance(ours, logits(model, IDS)) < 1e-4
    with LlamaCpp(path, n_ctx=64) as native:
        assert distance(ours, native.teacher_forced_logits(IDS)) < 5e-3


def test_granite_without_rotary_embedding_is_refused(tmp_path: Path) -> None:
    model_type, changes, keys = GGUF_CASES["granite"]
    path = tmp_path / "model.gguf"
    write_gguf(random_model(model_type, **changes), path, "granite", keys | {"rope.scaling.finetuned": False}, {})
    with pytest.raises(StrixhloError, match=r"rope\.scaling\.finetuned = false"):
        open_checkpoint(str(path))


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
