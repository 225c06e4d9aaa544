"""A GGUF file as a Checkpoint: Hugging Face names and configuration, planar weights, rows in Hugging Face's order."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import StrixhloError
from .contents import Checkpoint, Tensor
from .gguf import GgufFile, GgufTensor, read_gguf
from .gguf_config import architecture_of, config_of
from .gguf_metadata import integer
from .gguf_names import NOT_WEIGHTS, hugging_face_name
from .gguf_repack import DENSE_FORMATS, REPACKERS, dense, repack
from .tokenizer import write_gguf_tokenizer


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file of a supported architecture. StrixhloError names what is wrong or not supported."""
    file = read_gguf(path)
    if integer(file, "split.count", 1) > 1:
        raise StrixhloError(f"{path}: one part of a split model; join the parts with `llama-gguf-split --merge` first")
    architecture = architecture_of(file)
    config = config_of(file)
    tensors: dict[str, Tensor] = {}
    for entry in file.tensors.values():
        if NOT_WEIGHTS.fullmatch(entry.name):
            continue
        name = hugging_face_name(entry.name, architecture)
        if name is None:
            raise StrixhloError(f"{path}: tensor {entry.name!r} is unknown in the architecture {architecture!r}")
        rows = _half_split_rows(file, entry, name, config) if architecture == "llama" else None
        tensors[name] = _tensor(file, entry, name, rows)
    return Checkpoint(
        source=str(path.absolute()),
        container="gguf",
        files=(path,),
        config=config,
        tensors=tensors,
        write_tokenizer=partial(write_gguf_tokenizer, file),
    )


def _tensor(file: GgufFile, entry: GgufTensor, name: str, rows: np.ndarray | None) -> Tensor:
    if entry.type in DENSE_FORMATS:
        return Tensor(name, entry.shape, DENSE_FORMATS[entry.type], partial(_read_dense, file, entry, rows))
    if entry.type not in REPACKERS:
        raise StrixhloError(
            f"{file.path}: tensor {entry.name!r} has type {entry.type}, which is not supported; "
            f"use a file quantized as Q4_K_M, Q5_K_M, Q6_K, Q8_0, Q4_0 or BF16"
        )
    if len(entry.shape) != 2:
        raise StrixhloError(f"{file.path}: tensor {entry.name!r} is quantized but not a matrix: {list(entry.shape)}")
    return Tensor(name, entry.shape, entry.type.lower(), partial(_read_quantized, file, entry, rows))


def _read_dense(file: GgufFile, entry: GgufTensor, rows: np.ndarray | None) -> dict[str, np.ndarray]:
    return {"dense": dense(file.raw(entry), entry.type, entry.shape, rows)}


def _read_quantized(file: GgufFile, entry: GgufTensor, rows: np.ndarray | None) -> dict[str, np.ndarray]:
    n, k = entry.shape
    return repack(file.raw(entry), entry.type, n, k, rows)


def _half_split_rows(file: GgufFile, entry: GgufTensor, name: str, config: dict[str, Any]) -> np.ndarray | None:
    """Where each row of a q or k projection in Hugging Face's order is found in the file; None for other tensors.

    llama.cpp rotates neighbouring rows of a head (2i, 2i+1) together, Hugging Face row i with row i + head_dim/2: its
    converter interleaves the halves of each head, and this takes them apart again.
    """
    if ".q_proj." in name:
        heads = config["num_attention_heads"]
    elif ".k_proj." in name:
        heads = config["num_key_value_heads"]
    else:
        return None
    head_dim = config["head_dim"]
    if entry.shape[0] != heads * head_dim or head_dim % 2:
        raise StrixhloError(
            f"{file.path}: tensor {entry.name!r} has {entry.shape[0]} rows, not {heads} heads of {head_dim}"
        )
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
