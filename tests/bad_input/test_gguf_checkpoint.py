"""export of a GGUF file that is cut, damaged, or impossible; written by the reference writer, then spoiled."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

Refused = Callable[..., str]

TOKENS = ["<|endoftext|>", *sorted(ByteLevel.alphabet()), "he"]
METADATA = {
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": ["h e"],
    "tokenizer.ggml.eos_token_id": 0,
}
SHAPES = {
    "token_embd": (len(TOKENS), 32),
    "output_norm": (32,),
    "blk.0.attn_norm": (32,),
    "blk.0.ffn_norm": (32,),
    "blk.0.attn_q": (32, 32),
    "blk.0.attn_k": (16, 32),
    "blk.0.attn_v": (16, 32),
    "blk.0.attn_output": (32, 32),
    "blk.0.ffn_gate": (64, 32),
    "blk.0.ffn_up": (64, 32),
    "blk.0.ffn_down": (32, 64),
}


def write(path: Path, changes: dict[str, Any], architecture: str = "llama") -> bytes:
    """A one-layer Llama; `changes` replace metadata, None leaves a key out."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (METADATA | changes).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_the_whole_file_is_exported(path: Path, tmp_path: Path, accepted: Callable[..., str]) -> None:
    write(path, {})
    accepted("export", path, "-o", tmp_path / "bundle")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "model.gguf"]


def test_cut_short(path: Path, out: Path, refused: Refused) -> None:
    whole = write(path, {})
    for cut in [*range(0, 64, 5), *range(64, len(whole), len(whole) // 60), len(whole) - 1]:
        path.write_bytes(whole[:cut])
        assert "model.gguf: " in refused("export", path, "-o", out), cut


def test_real_file_cut_short(path: Path, out: Path, refused: Refused, smollm2_gguf: Path) -> None:
    shutil.copy(smollm2_gguf, path)
    size = path.stat().st_size
    for cut in (size - 1, size // 2, 3_000_000, 1_000_000, 100_000, 30):
        os.truncate(path, cut)
        assert "model.gguf: " in refused("export", path, "-o", out), cut


@pytest.mark.parametrize(
    ("after", "at", "value", "message"),
    [
        (b"", 0, b"GGML", "not a GGUF file (it starts with b'GGML')"),
        (b"GGUF", 0, b"\x09", "GGUF version 9 is not supported"),
        (b"output_norm.weight", 0, b"\x00\x00\x00\x80", "tensor 'output_norm.weight' has 2147483648 dimensions"),
        (b"output_norm.weight", 4, b"\xff" * 8, "tensor 'output_norm.weight' of type F32 has the impossible shape"),
        (b"output_norm.weight", 4, b"\x40", "tensor 'blk.0.attn_norm.weight' overlaps tensor 'output_norm.weight'"),
        (b"output_norm.weight", 12, b"\x63", "tensor 'output_norm.weight' has the unknown type 99"),
        (b"output_norm.weight", 12, b"\x10", "'output_norm.weight' of type IQ2_XXS has the impossible shape [32]"),
        (b"output_norm.weight", 20, b"\x01", "tensor 'output_norm.weight' ends at byte"),
        (b"output_norm.weight", 16, b"\xe0" + b"\xff" * 7, "tensor 'output_norm.weight' ends at byte"),
        (b"output_norm.weight", 16, b"\x01", "tensor 'output_norm.weight' starts at"),
    ],
)
def test_other_bytes(
    path: Path, out: Path, refused: Refused, after: bytes, at: int, value: bytes, message: str
) -> None:
    """A tensor's entry after its name: number of dimensions, the only dimension, type, offset."""
    whole = bytearray(write(path, {}))
    place = whole.index(after) + len(after) + at
    whole[place : place + len(value)] = value
    path.write_bytes(whole)
    assert message in refused("export", path, "-o", out)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama.embedding_length": None}, "llama.embedding_length is missing"),
        ({"llama.context_length": None}, "llama.context_length is missing"),
        ({"llama.block_count": 4_000_000_000}, "llama.block_count is 4000000000, which is impossible"),
        ({"llama.block_count": 5000}, "llama.block_count is 5000, which is impossible"),
        ({"llama.block_count": 3}, "model.layers.1.input_layernorm.weight is missing, which num_hidden_layers = 3"),
        ({"llama.feed_forward_length": 0}, "llama.feed_forward_length is 0, which is impossible"),
        (
            {"llama.feed_forward_length": 65},
            "gate_proj.weight has shape [64, 32] where the configuration makes it [65, 32]",
        ),
        ({"llama.attention.head_count": 5}, "llama.attention.head_count_kv = 2 does not divide 5 heads"),
        ({"llama.attention.head_count": 6}, "llama.attention.head_count = 6 does not divide a width of 32"),
        ({"llama.attention.key_length": 0}, "llama.attention.key_length is 0, which is impossible"),
        ({"llama.embedding_length": 64}, "tensor 'blk.0.attn_q.weight' has 32 rows, not 4 heads of 16"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.tokens": ["a"] * 5}, "tokenizer.ggml.tokens holds 'a' twice"),
        ({"tokenizer.ggml.eos_token_id": 9999}, "tokenizer.ggml.eos_token_id is 9999 in a vocabulary of 258"),
    ],
)
def test_metadata(path: Path, out: Path, refused: Refused, changes: dict, message: str) -> None:
    write(path, changes)
    assert message in refused("export", path, "-o", out)


def test_architecture(path: Path, out: Path, refused: Refused) -> None:
    write(path, {}, "rwkv7")
    assert "architecture 'rwkv7' is not supported; the nearest that is: " in refused("export", path, "-o", out)
