"""The weights archive: a safetensors file whose every tensor starts at a multiple of 64 bytes.

safetensors leaves no holes between tensors, so short gaps are tensors of their own, named `padding.<n>`. The header is
filled up with blanks, as the format allows, until the data starts at a multiple of the page size.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import ml_dtypes
import numpy as np

from ..bundle import ALIGNMENT, Parameter
from .checkpoint.place import Place

PAGE = 4096
# our dtype -> (safetensors name, numpy dtype)
DTYPES = {
    "f32": ("F32", np.dtype(np.float32)),
    "f16": ("F16", np.dtype(np.float16)),
    "bf16": ("BF16", np.dtype(ml_dtypes.bfloat16)),
    "i8": ("I8", np.dtype(np.int8)),
    "i32": ("I32", np.dtype(np.int32)),
}


@dataclass(frozen=True)
class ArchiveGroup:
    """Tensors that are read together (the parts of one weight): name -> shape and dtype; `read` is called once.

    places: where tensors lie in a file exactly as the archive stores them; those are copied in pieces. `read` is not
    called when all tensors have a place.
    """

    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    read: Callable[[], Mapping[str, np.ndarray]]
    places: Mapping[str, Place] = field(default_factory=dict)

    def without(self, names: Container[str]) -> ArchiveGroup:
        """The group without these tensors."""
        return replace(self, tensors={n: spec for n, spec in self.tensors.items() if n not in names})

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(_nbytes(shape, dtype) for shape, dtype in self.tensors.values())


def _nbytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * DTYPES[dtype][1].itemsize


def referred_parameters(groups: Sequence[ArchiveGroup], files: Sequence[Path]) -> dict[str, Parameter]:
    """The tensors that lie in one of `files` just as an archive would store them: name -> where."""
    index = {path: i for i, path in enumerate(files)}
    referred: dict[str, Parameter] = {}
    for group in groups:
        for name, place in group.places.items():
            shape, dtype = group.tensors[name]
            referred[name] = Parameter(
                dtype=dtype, shape=shape, offset=place.offset, length=place.nbytes, file=index[place.path]
            )
    return referred


def dtype_name(dtype: np.dtype) -> str:
    """numpy dtype -> our name."""
    return next(name for name, (_, d) in DTYPES.items() if d == dtype)


def write_archive(
    path: Path, groups: Sequence[ArchiveGroup], progress: Callable[[int], None]
) -> tuple[dict[str, Parameter], int, str]:
    """Write all groups in order, one in memory at a time.

    `progress` is called with the bytes written. Returns the place of each tensor in the file, the file's size, and
    its SHA-256.
    """
    tensors = {name: tensor for group in groups for name, tensor in group.tensors.items()}
    header, offsets, size = _layout(tensors)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, len(header) + size)  # a disk that is too full says so now
        for piece in _pieces(header, groups, offsets, size):
            file.write(piece)
            digest.update(piece)
            progress(piece.nbytes)
    parameters = {
        name: Parameter(dtype=dtype, shape=shape, offset=len(header) + offsets[name], length=_nbytes(shape, dtype))
        for name, (shape, dtype) in tensors.items()
    }
    return parameters, len(header) + size, digest.hexdigest()


def _layout(tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> tuple[bytes, dict[str, int], int]:
    """The header, the offset of each tensor from the start of the data, and the end of the data."""
    index: dict[str, object] = {"__metadata__": {"format": "strixhlo"}}
    offsets: dict[str, int] = {}
    position = 0

    def add(name: str, dtype: str, shape: Sequence[int], nbytes: int) -> None:
        nonlocal position
        index[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + nbytes]}
        position += nbytes

    for name, (shape, dtype) in tensors.items():
        if gap := -position % ALIGNMENT:
            add(f"padding.{len(index)}", "U8", [gap], gap)
        offsets[name] = position
        add(name, DTYPES[dtype][0], shape, _nbytes(shape, dtype))
    text = json.dumps(index, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % PAGE)
    return len(text).to_bytes(8, "little") + text, offsets, position


def _pieces(
    header: bytes, groups: Sequence[ArchiveGroup], offsets: Mapping[str, int], size: int
) -> Iterator[memoryview]:
    yield memoryview(header)
    position = 0
    for group in groups:
        arrays = {} if group.tensors.keys() <= group.places.keys() else group.read()
        for name, (shape, dtype) in group.tensors.items():
            if offsets[name] > position:
                yield memoryview(bytes(offsets[name] - position))
            position = offsets[name] + _nbytes(shape, dtype)
            if name in group.places:
                for piece in group.places[name].pieces():
                    yield memoryview(piece)
            else:
                yield _bytes_of(name, arrays[name], shape, dtype)
    if position != size:
        raise ValueError(f"archive of {position} bytes, planned {size}")


def _bytes_of(name: str, array: np.ndarray, shape: tuple[int, ...], dtype: str) -> memoryview:
    array = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray makes a scalar a vector
    if array.shape != shape or array.dtype != DTYPES[dtype][1]:
        raise ValueError(f"{name}: read {array.dtype}{array.shape}, planned {dtype}{shape}")
    return memoryview(array.reshape(-1).view(np.uint8).data)
