"""A GGUF file as a Checkpoint: Hugging Face names and configuration, planar weights, rows in Hugging Face's order."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import StrixhloError
from .contents import Checkpoint, Tensor
from .gguf import GgufFile, GgufTensor
from .gguf_architectures import ARCHITECTURES
from .gguf_config import architecture_of, config_of
from .gguf_experts import without_experts_dimension
from .gguf_metadata import integer, numbers
from .gguf_names import NOT_WEIGHTS, hugging_face_name
from .gguf_parts import read_gguf_parts
from .gguf_repack import DENSE_FORMATS, REPACKERS, dense, repack
from .pooling import gguf_pooling
from .stacked_experts import stack_experts
from .tokenizer import write_gguf_tokenizer


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file of a supported architecture. StrixhloError names what is wrong or not supported."""
    file, files = read_gguf_parts(path)
    architecture = architecture_of(file)
    config = config_of(file)
    tensors: dict[str, Tensor] = {}
    for entry in map(without_experts_dimension, file.tensors.values()):
        if NOT_WEIGHTS.fullmatch(entry.name):
            continue
        name = hugging_face_name(entry.name, architecture)
        if name is None:
            raise StrixhloError(f"{path}: tensor {entry.name!r} is unknown in the architecture {architecture!r}")
        rows = _half_split_rows(file, entry, name, config) if ARCHITECTURES[architecture].interleaved else None
        tensors[name] = _tensor(file, entry, name, rows)
    try:
        tensors = stack_experts(tensors, integer(file, f"{architecture}.expert_count", 0))
    except StrixhloError as error:
        raise StrixhloError(f"{path}: {error}") from None
    if architecture == "apertus":
        tensors |= _xielu(file, config["num_hidden_layers"])
    return Checkpoint(
        source=str(path.absolute()),
        container="gguf",
        files=files,
        config=config,
        tensors=tensors,
        write_tokenizer=partial(write_gguf_tokenizer, file),
        pooling=gguf_pooling(file, architecture),
    )


def _xielu(file: GgufFile, layers: int) -> dict[str, Tensor]:
    """The constants of Apertus' activation, weights in Hugging Face's files, are metadata with one value a layer."""
    tensors: dict[str, Tensor] = {}
    for key, shape in (("alpha_p", (1,)), ("alpha_n", (1,)), ("beta", ()), ("eps", ())):
        values = numbers(file, f"xielu.{key}", layers)
        if values is None:
            raise StrixhloError(f"{file.path}: xielu.{key} is missing; convert the model again")
        for i, value in enumerate(values):
            name = f"model.layers.{i}.mlp.act_fn.{key}"
            array = np.full(shape, value, np.float32)
            tensors[name] = Tensor(name, shape, "f32", partial(dict, dense=array))
    return tensors


def _tensor(file: GgufFile, entry: GgufTensor, name: str, rows: np.ndarray | None) -> Tensor:
    if entry.type in DENSE_FORMATS:
        places = {"dense": entry.place} if rows is None else {}
        return Tensor(
            name, entry.shape, DENSE_FORMATS[entry.type], partial(_read_dense, file, entry, rows), places=places
        )
    if entry.type not in REPACKERS:
        raise StrixhloError(
            f"{entry.path}: tensor {entry.name!r} has type {entry.type}, which is not supported; "
            f"use a file of types Q2_K to Q6_K, Q4_0 to Q8_0, MXFP4, F16 or BF16 (such as Q4_K_M), not IQ or TQ"
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
