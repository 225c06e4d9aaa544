"""One safetensors file: its header, checked before anything is read by it.

Layout (specification: huggingface.co/docs/safetensors): u64 length of the header, the header as JSON (name -> dtype,
shape, data_offsets from the header's end), data. The tensors cover the data exactly, without holes or overlaps.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ...errors import StrixhloError, one_line
from .place import Place

MAX_HEADER = 100_000_000  # bytes, as the safetensors library has it
MAX_DIMS = 8
MAX_NAME = 1024
# 8-bit floats are kept as their bits.
DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.uint8),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "F8_E4M3": np.dtype(np.uint8),
    "F8_E5M2": np.dtype(np.uint8),
    "F8_E8M0": np.dtype(np.uint8),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it lies in a file. dtype: safetensors' name (F32, BF16, F8_E4M3, U8, ...)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    place: Place

    def array(self) -> np.ndarray:
        """A copy of the tensor; 8-bit floats as uint8 bits."""
        return self.place.read().view(DTYPES[self.dtype]).reshape(self.shape)

    def float32(self) -> np.ndarray:
        """The values in float32. For tensors of small size: scales."""
        array = self.array()
        if self.dtype == "F8_E8M0":
            return np.ldexp(np.float32(1.0), array.astype(np.int32) - 127).astype(np.float32)
        if self.dtype == "F8_E4M3":
            return array.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        return array.astype(np.float32)


def read_safetensors(path: Path) -> list[StoredTensor]:
    """The tensors of a file in the header's order. StrixhloError names the tensor that is wrong."""
    header, start, size = _header(path)
    tensors = [_entry(path, name, entry, start, size) for name, entry in header.items() if name != "__metadata__"]
    end, before = start, ""
    for tensor in sorted(tensors, key=lambda t: (t.place.offset, t.place.nbytes)):
        if tensor.place.offset != end:
            how = "overlaps" if tensor.place.offset < end else "leaves a hole behind"
            raise _unusable(path, f"tensor {tensor.name!r} {how} {before or 'the header'!r}")
        end, before = end + tensor.place.nbytes, tensor.name
    if end != size:
        raise _unusable(path, f"{size - end} bytes behind the last tensor {before!r} belong to none")
    return tensors


def _unusable(path: Path, why: str) -> StrixhloError:
    return StrixhloError(f"{path}: not a usable safetensors file ({why}); download it again")


def _header(path: Path) -> tuple[dict[str, Any], int, int]:
    """(the header, where the data begin, size of the file)."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(size - 8, MAX_HEADER):
                raise _unusable(path, f"a header of {length} bytes in a file of {size}")
            text = file.read(length)
        if len(text) != length:
            raise _unusable(path, "the header ends early")
        header = json.loads(text.decode("utf-8"), object_pairs_hook=partial(_without_duplicates, path))
    except (OSError, ValueError, RecursionError) as error:
        raise _unusable(path, one_line(error, 200)) from error
    if not isinstance(header, dict):
        raise _unusable(path, "the header is not an object")
    return header, 8 + length, size


def _without_duplicates(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for name, value in pairs:
        if name in unique:
            raise StrixhloError(f"{path}: {name!r} appears twice in the header; download the file again")
        unique[name] = value
    return unique


def _counts(value: Any, most: int) -> bool:
    """A list of whole numbers from 0 on."""
    return isinstance(value, list) and len(value) <= most and all(type(n) is int and 0 <= n < 1 << 62 for n in value)


def _entry(path: Path, name: str, entry: Any, start: int, size: int) -> StoredTensor:
    where = f"tensor {name[:200]!r}"
    if not name.isprintable() or len(name) > MAX_NAME:
        raise _unusable(path, f"{where} has an impossible name")
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise _unusable(path, f"{where} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _unusable(path, f"{where} has the unknown dtype {str(dtype)[:40]!r}")
    if not _counts(shape, MAX_DIMS) or not _counts(offsets, 2) or len(offsets) != 2:
        raise _unusable(path, f"{where} has an impossible shape or impossible offsets")
    begin, end = offsets
    nbytes = math.prod(shape) * DTYPES[dtype].itemsize
    if end - begin != nbytes:
        raise _unusable(path, f"{where} of shape {shape} and type {dtype} takes {nbytes} bytes, not {end - begin}")
    if start + end > size:
        raise _unusable(path, f"{where} ends at byte {start + end} of a file of {size} bytes")
    return StoredTensor(name, dtype, tuple(shape), Place(path, start + begin, nbytes, where))
