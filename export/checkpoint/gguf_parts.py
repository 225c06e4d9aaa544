"""A GGUF model in one file, or split over several: <name>-00001-of-00003.gguf and so on (llama-gguf-split).

The first part holds the metadata of the model; each part has its own table of the tensors in it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ...errors import StrixhloError
from .gguf import GgufFile, GgufTensor, read_gguf
from .gguf_metadata import integer

PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
MAX_PARTS = 1000


def read_gguf_parts(path: Path) -> tuple[GgufFile, tuple[Path, ...]]:
    """The model that `path` is, or is any part of: metadata of the first part, tensors of all; and the files."""
    file = read_gguf(path)
    count = integer(file, "split.count", 1)
    if count <= 1:
        return file, (path,)
    match = PART.fullmatch(path.name)
    if match is None or int(match[3]) != count or count > MAX_PARTS:
        raise StrixhloError(
            f"{path}: one part of {count}, but its name does not end in -0000n-of-{count:05}.gguf, by which the others"
            f" are found; give the parts their names back, or join them with `llama-gguf-split --merge`"
        )
    files = tuple(path.with_name(f"{match[1]}-{i + 1:05}-of-{count:05}.gguf") for i in range(count))
    missing = [f.name for f in files if not f.is_file()]
    if missing:
        raise StrixhloError(f"{path}: part {missing[0]} is missing; download all {count} parts")
    parts = [read_gguf(f) for f in files]
    tensors: dict[str, GgufTensor] = {}
    for i, part in enumerate(parts):
        if integer(part, "split.no", count) != i or integer(part, "split.count", 0) != count:
            raise StrixhloError(f"{part.path}: is not part {i + 1} of {count} by its metadata; download it again")
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise StrixhloError(f"{part.path}: tensor {name!r} is also in {tensors[name].path.name}")
            tensors[name] = tensor
    total = integer(parts[0], "split.tensors.count", len(tensors))
    if total != len(tensors):
        raise StrixhloError(f"{path}: the parts hold {len(tensors)} tensors of {total}; download them again")
    return replace(parts[0], tensors=tensors), files
