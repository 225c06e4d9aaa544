"""Small checkpoints, written byte by byte so that tests can also write them wrong."""

from __future__ import annotations

import json
import struct
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_logits import random_llama, save
from tokenizers.pre_tokenizers import ByteLevel

F32, Q4_1 = 0, 3
LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def gguf_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(value: Any) -> bytes:
    """u32 type and value, the type guessed from Python's; `bytes` is taken as it is, type included."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_string(value)
    if isinstance(value, np.ndarray):
        kind = {"f": 6, "i": 5}[value.dtype.kind]
        return struct.pack("<IIQ", 9, kind, value.size) + value.astype("<f4" if kind == 6 else "<i4").tobytes()
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(gguf_string, value))


def gguf_tensor_entry(name: str, dims: list[int], type_id: int, offset: int) -> bytes:
    return gguf_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)


def gguf_file(
    metadata: list[tuple[str, Any]],
    tensors: list[tuple[str, list[int], int, bytes]] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    alignment: int = 32,
    change_entry: Callable[[str, bytes], bytes] = lambda _, entry: entry,
) -> bytes:
    """A GGUF file. tensors: (name, dims in GGUF's order, type id, data); change_entry may falsify a table entry."""
    table, data = b"", b""
    for name, dims, type_id, raw in tensors:
        table += change_entry(name, gguf_tensor_entry(name, dims, type_id, len(data)))
        data += raw + bytes(-len(raw) % alignment)
    head = magic + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(gguf_string(key) + gguf_value(value) for key, value in metadata) + table
    return head + bytes(-len(head) % alignment) + data


def vocabulary_metadata(**changes: Any) -> dict[str, Any]:
    """A byte-level BPE vocabulary: two control tokens, the 256 bytes, three joins."""
    tokens = ["<|endoftext|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "he", "ll", "hell"]
    metadata = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": np.array([3, 3] + [1] * (len(tokens) - 2)),
        "merges": ["h e", "l l", "he ll"],
        "eos_token_id": 0,
        "bos_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | changes).items() if value is not None}


def llama_tensors(
    vocabulary: int, *, rng: np.random.Generator | None = None
) -> list[tuple[str, list[int], int, bytes]]:
    """The tensors of a one-layer Llama of width 32, 4 heads of 8, 2 of them for keys: q in Q4_1, the rest in F32."""
    rng = np.random.default_rng(0) if rng is None else rng

    def dense(*shape: int) -> tuple[list[int], int, bytes]:
        return list(reversed(shape)), F32, rng.standard_normal(shape).astype("<f4").tobytes()

    blocks = [rng.random(2).astype("<f2").tobytes() + rng.bytes(16) for _ in range(32)]
    return [
        ("token_embd.weight", *dense(vocabulary, 32)),
        ("output_norm.weight", *dense(32)),
        ("blk.0.attn_norm.weight", *dense(32)),
        ("blk.0.ffn_norm.weight", *dense(32)),
        ("blk.0.attn_q.weight", [32, 32], Q4_1, b"".join(blocks)),
        ("blk.0.attn_k.weight", *dense(16, 32)),
        ("blk.0.attn_v.weight", *dense(16, 32)),
        ("blk.0.attn_output.weight", *dense(32, 32)),
        ("blk.0.ffn_gate.weight", *dense(64, 32)),
        ("blk.0.ffn_up.weight", *dense(64, 32)),
        ("blk.0.ffn_down.weight", *dense(32, 64)),
    ]


def tiny_llama_bytes(metadata: dict[str, Any] | None = None, **options: Any) -> bytes:
    """A complete small Llama. metadata: keys to change, or to leave out where the value is None."""
    vocabulary = vocabulary_metadata()
    keys = LLAMA | vocabulary | (metadata or {})
    tensors = options.pop("tensors", None) or llama_tensors(len(keys["tokenizer.ggml.tokens"]))
    return gguf_file([(k, v) for k, v in keys.items() if v is not None], tensors, **options)


@pytest.fixture
def tiny_llama(tmp_path: Path) -> Callable[..., Path]:
    """tiny_llama(metadata={...}, tensors=[...]) writes a small Llama GGUF file and returns its path."""

    def write(metadata: dict[str, Any] | None = None, **options: Any) -> Path:
        path = tmp_path / "tiny.gguf"
        path.write_bytes(tiny_llama_bytes(metadata, **options))
        return path

    return write


@pytest.fixture
def gguf_builder() -> dict[str, Callable[..., Any]]:
    """The functions of this file, for tests that write a file wrong."""
    return {
        "file": gguf_file,
        "string": gguf_string,
        "entry": gguf_tensor_entry,
        "tiny": tiny_llama_bytes,
        "tensors": llama_tensors,
        "vocabulary": vocabulary_metadata,
    }


class LlamaCpp:
    """llama.cpp's own tokenizer, asked over its HTTP server on the loopback device."""

    def __init__(self, path: Path) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 64, 1, 1
        params.warmup, params.verbosity, params.port = False, 0, 0
        self.server = xllamacpp.Server(params)
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def tokenize(self, text: str, special: bool) -> list[int]:
        """special: add <bos> as the model wants it and find control tokens in the text."""
        body = json.dumps({"content": text, "add_special": special, "parse_special": special}).encode()
        request = urllib.request.Request(
            f"{self.server.listening_address}/tokenize", body, {"Content-Type": "application/json"}
        )
        with self.opener.open(request) as answer:
            return json.load(answer)["tokens"]


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[Callable[[Path], LlamaCpp]]:
    """llama_cpp(path) starts llama.cpp on a GGUF file, once a file and module."""
    running: dict[Path, LlamaCpp] = {}

    def start(path: Path) -> LlamaCpp:
        if path not in running:
            running[path] = LlamaCpp(path)
        return running[path]

    yield start
    running.clear()


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama that is not quantized."""
    return save(random_llama(), tmp_path_factory.mktemp("plain"))
