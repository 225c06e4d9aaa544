"""A directory of safetensors and config.json, in one file or in shards, as a Checkpoint.

Layout of a file (specification: huggingface.co/docs/safetensors): u64 length of the header, the header as JSON (name ->
dtype, shape, data_offsets from the header's end), data. The `safetensors` library checks the header: offsets that cover
the file exactly, sizes that fit the shapes. The data are mapped here and read when a tensor is asked for.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from ...errors import StrixhloError
from .contents import Checkpoint, Tensor
from .hugging_face_config import normalized_config, normalized_name
from .text_files import read_json
from .tokenizer_files import write_copied_tokenizer

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
FORMATS = {
    "F32": ("f32", np.dtype("<f4")),
    "F16": ("f16", np.dtype("<f2")),
    "BF16": ("bf16", np.dtype(ml_dtypes.bfloat16)),
}


def open_safetensors(directory: Path) -> Checkpoint:
    """Open a directory that holds config.json and safetensors. StrixhloError names what is wrong or missing."""
    raw_config = read_json(directory / "config.json")
    nested = isinstance(raw_config.get("text_config"), dict)
    config = normalized_config(raw_config, directory / "config.json")
    files = _weight_files(directory)
    tensors: dict[str, Tensor] = {}
    file_of: dict[str, Path] = {}
    for path in files:
        for stored_name, tensor in _read_file(path):
            name = normalized_name(stored_name, nested)
            if name is None:
                continue
            if name in tensors:
                raise StrixhloError(
                    f"{path}: tensor {name!r} is also in {file_of[name].name}; download the model again"
                )
            tensors[name] = Tensor(name, tensor.shape, tensor.format, tensor.read)
            file_of[name] = path
    if config.setdefault("tie_word_embeddings", "lm_head.weight" not in tensors):
        tensors.pop("lm_head.weight", None)  # some files store the embedding a second time
    return Checkpoint(
        source=str(directory.absolute()),
        container="safetensors",
        files=files,
        config=config,
        tensors=tensors,
        write_tokenizer=partial(write_copied_tokenizer, directory, config),
    )


def _weight_files(directory: Path) -> tuple[Path, ...]:
    """model.safetensors, or the shards of the index, or the only safetensors file that there is."""
    if (directory / SINGLE).is_file():
        return (directory / SINGLE,)
    if (directory / INDEX).is_file():
        return _shards(directory / INDEX)
    found = sorted(directory.glob("*.safetensors"))
    if len(found) == 1:
        return (found[0],)
    if found:
        raise StrixhloError(f"{directory}: {len(found)} safetensors files but no {INDEX}; download the model again")
    raise StrixhloError(f"{directory}: no *.safetensors file; pickled weights (*.bin, *.pt) are never loaded")


def _shards(index: Path) -> tuple[Path, ...]:
    """The files that an index names, each once; the names must be plain and every tensor where the index says."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise StrixhloError(f"{index}: no weight_map; download the model again")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not name.endswith(".safetensors") or Path(name).name != name or "\\" in name:
            raise StrixhloError(f"{index}: tensor {tensor!r} is said to be in {name!r}, which is not a plain file name")
    files = tuple(index.parent / name for name in sorted(set(weight_map.values())))
    for path in files:
        if not path.is_file():
            raise StrixhloError(f"{path}: this shard is missing; download the model again")
        listed = {tensor for tensor, name in weight_map.items() if name == path.name}
        absent = listed - _read_header(path)[0].keys()
        if absent:
            raise StrixhloError(f"{path}: tensor {min(absent)!r} of {index.name} is missing; download the model again")
    return files


def _read_file(path: Path) -> Iterable[tuple[str, Tensor]]:
    """The tensors of one file under their stored names."""
    header, start = _read_header(path)
    if not header:
        return
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for name, entry in header.items():
        if entry["dtype"] not in FORMATS:
            raise StrixhloError(
                f"{path}: tensor {name!r} has dtype {entry['dtype']}, which is not supported (F32, F16 and BF16 are)"
            )
        format_name, dtype = FORMATS[entry["dtype"]]
        shape = tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        yield name, Tensor(name, shape, format_name, partial(_read, data, start + begin, end - begin, dtype, shape))


def _read(data: mmap.mmap, offset: int, nbytes: int, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    raw = np.frombuffer(data, np.uint8, nbytes, offset)
    aligned = raw if offset % dtype.itemsize == 0 else raw.copy()  # headers need not end on an aligned byte
    return {"dense": aligned.view(dtype).reshape(shape)}


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """(name -> {dtype, shape, data_offsets}, where the data begin) of a file that the library accepts."""
    try:
        with path.open("rb") as file, safe_open(path, framework="numpy"):
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length), object_pairs_hook=partial(_without_duplicates, path))
    except (SafetensorError, OSError, ValueError) as error:
        raise StrixhloError(f"{path}: not a usable safetensors file ({error}); download it again") from error
    header.pop("__metadata__", None)
    return header, 8 + length


def _without_duplicates(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise StrixhloError(f"{path}: {twice!r} appears twice in the header; download the file again")
    return unique
