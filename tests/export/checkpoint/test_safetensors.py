"""Directories of safetensors and config.json: what is read, and what is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint

CONFIG = {"model_type": "llama", "hidden_size": 4, "tie_word_embeddings": True}
INDEX = "model.safetensors.index.json"


def raw_file(header: dict | str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with this header, which need not be right."""
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """model({"file name": tensors or bytes}) writes a directory with a config.json."""

    def write(files: dict, config: dict | str = CONFIG) -> Path:
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        for name, content in files.items():
            path = tmp_path / name
            if isinstance(content, bytes | str):
                path.write_bytes(content.encode() if isinstance(content, str) else content)
            else:
                save_file(content, path)
        return tmp_path

    return write


def refused(directory: Path) -> str:
    with pytest.raises(StrixhloError) as error:
        checkpoint = open_checkpoint(str(directory))
        for tensor in checkpoint.tensors.values():
            tensor.read()
    assert "\n" not in str(error.value) and str(directory) in str(error.value)
    return str(error.value)


def test_the_three_dtypes(model: Callable[..., Path]) -> None:
    values = np.array([[1.0, -2.5], [0.0, 65504.0], [1e-3, 3.0]])
    arrays = {
        "model.a": values.astype(np.float32),
        "model.b": values.astype(np.float16),
        "model.c": values.astype(ml_dtypes.bfloat16),
    }
    checkpoint = open_checkpoint(str(model({"model.safetensors": arrays})))
    assert checkpoint.container == "safetensors" and [f.name for f in checkpoint.files] == ["model.safetensors"]
    assert checkpoint.config.items() >= CONFIG.items()
    assert {n: (t.format, t.shape) for n, t in checkpoint.tensors.items()} == {
        "model.a": ("f32", (3, 2)),
        "model.b": ("f16", (3, 2)),
        "model.c": ("bf16", (3, 2)),
    }
    for name, array in arrays.items():
        read = checkpoint.tensors[name].read()["dense"]
        assert read.dtype == array.dtype and np.array_equal(read, array)


@pytest.mark.parametrize("padding", range(8))
def test_a_header_of_any_length(model: Callable[..., Path], padding: int) -> None:
    """Data that do not begin on an aligned byte are copied; the array is aligned either way."""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}})
    content = raw_file(header + " " * padding, values.tobytes())
    read = open_checkpoint(str(model({"model.safetensors": content}))).tensors["w"].read()["dense"]
    assert np.array_equal(read, values) and read.flags.aligned


def test_scalars_and_empty_tensors(model: Callable[..., Path]) -> None:
    arrays = {"scalar": np.array(2.0, np.float32), "empty": np.zeros((0, 4), np.float16)}
    tensors = open_checkpoint(str(model({"model.safetensors": arrays}))).tensors
    assert tensors["scalar"].read()["dense"].item() == 2.0
    assert tensors["empty"].read()["dense"].shape == (0, 4)


def shards(first: dict, second: dict, weight_map: dict) -> dict:
    return {
        "model-00001-of-00002.safetensors": first,
        "model-00002-of-00002.safetensors": second,
        INDEX: json.dumps({"metadata": {}, "weight_map": weight_map}),
    }


ONE = np.ones((2, 2), np.float32)
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_shards(model: Callable[..., Path]) -> None:
    directory = model(shards({"a": ONE}, {"b": 2 * ONE}, {"a": FIRST, "b": SECOND}))
    checkpoint = open_checkpoint(str(directory))
    assert [path.name for path in checkpoint.files] == [FIRST, SECOND]
    assert np.array_equal(checkpoint.tensors["b"].read()["dense"], 2 * ONE)


def test_wrong_shards(model: Callable[..., Path]) -> None:
    directory = model(shards({"a": ONE}, {"b": ONE}, {"a": FIRST, "b": SECOND}))
    (directory / SECOND).unlink()
    assert f"{SECOND}: this shard is missing" in refused(directory)
    assert "tensor 'a' is also in" in refused(
        model(shards({"a": ONE}, {"a": ONE, "b": ONE}, {"a": FIRST, "b": SECOND}))
    )
    assert "tensor 'c' of" in refused(model(shards({"a": ONE}, {"b": ONE}, {"a": FIRST, "c": SECOND})))


@pytest.mark.parametrize(
    "name",
    ["../secret.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..\\x.safetensors", "x.bin", "", 3, None],
)
def test_an_index_that_points_elsewhere(model: Callable[..., Path], tmp_path: Path, name: object) -> None:
    save_file({"a": ONE}, tmp_path.parent / "secret.safetensors")
    directory = model({INDEX: json.dumps({"weight_map": {"a": name}})})
    assert "not a plain file name" in refused(directory)


@pytest.mark.parametrize("index", ["{}", '{"weight_map": {}}', '{"weight_map": []}', "[]", "{", '"x"'])
def test_an_index_without_a_map(model: Callable[..., Path], index: str) -> None:
    assert INDEX in refused(model({INDEX: index}))


def test_which_files_are_taken(model: Callable[..., Path], tmp_path: Path) -> None:
    assert "no *.safetensors" in refused(model({"pytorch_model.bin": b"pickle"}))
    only = open_checkpoint(str(model({"weights.safetensors": {"a": ONE}})))
    assert [path.name for path in only.files] == ["weights.safetensors"]
    assert f"2 safetensors files but no {INDEX}" in refused(model({"more.safetensors": {"b": ONE}}))
    whole = open_checkpoint(str(model({"model.safetensors": {"c": ONE}})))
    assert list(whole.tensors) == ["c"]
    with pytest.raises(StrixhloError, match=r"give the directory"):
        open_checkpoint(str(tmp_path / "model.safetensors"))


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a usable safetensors file"),
        (b"\x00" * 7, "not a usable safetensors file"),
        (raw_file({}, length=2**63), "not a usable safetensors file"),
        (raw_file({}, length=1000), "not a usable safetensors file"),
        (raw_file("{"), "not a usable safetensors file"),
        (raw_file(b"\xff\xfe"), "not a usable safetensors file"),
        (raw_file({"a": entry("F32", [2], 0, 8)}), "not a usable safetensors file"),
        (raw_file({"a": entry("F32", [2], 0, 8)}, bytes(12)), "not a usable safetensors file"),
        (raw_file({"a": entry("F32", [2], 0, 4)}, bytes(4)), "not a usable safetensors file"),
        (raw_file({"a": entry("F32", [2**40, 2**40], 0, 8)}, bytes(8)), "not a usable safetensors file"),
        (raw_file({"a": entry("F32", [-1], 0, 8)}, bytes(8)), "not a usable safetensors file"),
        (raw_file({"a": entry("F32", [2], 8, 0)}, bytes(8)), "not a usable safetensors file"),
        (raw_file({"a": entry("F32", [1], 0, 4), "b": entry("F32", [2], 0, 8)}, bytes(8)), "not a usable safetensors"),
        (raw_file({"a": entry("X9", [2], 0, 8)}, bytes(8)), "not a usable safetensors file"),
        (raw_file({"a": entry("F64", [1], 0, 8)}, bytes(8)), "tensor 'a' has dtype F64"),
        (raw_file({"a": entry("U8", [8], 0, 8)}, bytes(8)), "tensor 'a' has dtype U8"),
        (raw_file({"a": entry("F8_E4M3", [8], 0, 8)}, bytes(8)), "tensor 'a' has dtype F8_E4M3"),
    ],
)
def test_broken_files(model: Callable[..., Path], content: bytes, message: str) -> None:
    assert message in refused(model({"model.safetensors": content}))


def test_a_name_twice_in_one_header(model: Callable[..., Path]) -> None:
    one = json.dumps(entry("F32", [1], 0, 4))
    message = refused(model({"model.safetensors": raw_file(f'{{"a": {one}, "a": {one}}}', bytes(4))}))
    assert "'a' appears twice" in message or "not a usable safetensors file" in message


def test_every_truncation_is_refused(model: Callable[..., Path]) -> None:
    directory = model({"model.safetensors": {"a": ONE, "b": ONE.astype(np.float16)}})
    content = (directory / "model.safetensors").read_bytes()
    for length in range(len(content)):
        (directory / "model.safetensors").write_bytes(content[:length])
        assert "model.safetensors" in refused(directory)


@pytest.mark.parametrize("config", ["", "{", "[]", "null", '{"a": ' * 100000])
def test_a_broken_config(model: Callable[..., Path], config: str) -> None:
    assert "config.json" in refused(model({"model.safetensors": {"a": ONE}}, config))


def test_tied_embeddings(model: Callable[..., Path]) -> None:
    both = {"model.embed_tokens.weight": ONE, "lm_head.weight": ONE}
    tied = open_checkpoint(str(model({"model.safetensors": both}, {"tie_word_embeddings": True})))
    assert list(tied.tensors) == ["model.embed_tokens.weight"]
    untied = open_checkpoint(str(model({"model.safetensors": both}, {"tie_word_embeddings": False})))
    assert set(untied.tensors) == set(both)
    unsaid = open_checkpoint(str(model({"model.safetensors": both}, {})))
    assert unsaid.config["tie_word_embeddings"] is False and set(unsaid.tensors) == set(both)
    del both["lm_head.weight"]
    assert open_checkpoint(str(model({"model.safetensors": both}, {}))).config["tie_word_embeddings"] is True


def test_the_text_part_of_a_multimodal_model(model: Callable[..., Path]) -> None:
    tensors = {"language_model.model.norm.weight": ONE, "vision_tower.a": ONE, "multi_modal_projector.b": ONE}
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}
    checkpoint = open_checkpoint(str(model({"model.safetensors": tensors}, config)))
    assert list(checkpoint.tensors) == ["model.norm.weight"]
    assert checkpoint.config["model_type"] == "gemma3_text"


def test_a_model_that_transformers_saved(tmp_path: Path) -> None:
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    checkpoint = open_checkpoint(str(tmp_path))
    assert len(checkpoint.files) > 1
    state = model.state_dict()
    assert checkpoint.tensors.keys() == state.keys()
    for name, tensor in checkpoint.tensors.items():
        assert tensor.format == "bf16"
        assert np.array_equal(tensor.read()["dense"].astype(np.float32), state[name].float().numpy())
    assert checkpoint.config["rope_theta"] == 10000.0 and checkpoint.config["rope_scaling"] is None
