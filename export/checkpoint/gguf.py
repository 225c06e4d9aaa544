"""The GGUF container, versions 2 and 3: metadata and the places of the tensors, without reading their data.

Layout (little-endian, specification: ggml/docs/gguf.md): magic "GGUF", u32 version, u64 number of tensors, u64 number
of key-value pairs, the pairs, the tensor table, padding to the alignment, tensor data. A string is a u64 length and
UTF-8 bytes. A file may come from anyone: each count and length is held against the bytes that are left in the file
before anything is allocated for it. Files are read, not mapped: one that is cut short meanwhile is an error, not a
SIGBUS.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...errors import StrixhloError
from .place import Place

MAGIC = b"GGUF"
CHUNK = 1 << 20  # of the header, read at a time
MAX_DIMS = 4
MAX_NAME = 1024  # ggml itself stops at 64 bytes
MAX_ELEMENTS = 1 << 26  # of a metadata array; the largest vocabularies have some 2**19 merges
MIN_PAIR = 8 + 1 + 4 + 1  # key length, key, value type, value
MIN_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, number of dimensions, one of them, type, offset

# Value type id -> numpy dtype; 7 is bool, 8 string, 9 array.
SCALARS: dict[int, np.dtype] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
STRING, ARRAY = 8, 9

# Tensor type id -> name, weights per block, bytes per block (ggml.h and ggml-common.h).
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}


@dataclass(frozen=True)
class GgufTensor:
    """One entry of the tensor table. shape: row-major (GGUF's own order reversed); offset: from the file's start."""

    path: Path
    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int

    @property
    def place(self) -> Place:
        """Where its bytes are."""
        return Place(self.path, self.offset, self.nbytes, f"tensor {self.name!r}")


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file's header. Metadata arrays of numbers are numpy arrays, arrays of strings are lists."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def raw(self, tensor: GgufTensor) -> np.ndarray:
        """The bytes of a tensor: uint8 [nbytes]."""
        return tensor.place.read()


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file. StrixhloError names the key or the tensor that is wrong."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                raise StrixhloError(f"{path}: too short for a GGUF file; download it again")
            file.seek(0)
            return _read_header(_Cursor(path, file, size))
    except OSError as error:
        raise StrixhloError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_header(cursor: _Cursor) -> GgufFile:
    version, n_tensors, n_pairs = _read_head(cursor)
    metadata = _read_metadata(cursor, n_pairs)
    alignment = _alignment(cursor, metadata)
    tensors = _read_tensor_table(cursor, n_tensors, alignment)
    return GgufFile(cursor.path, version, metadata, tensors)


class _Cursor:
    """A position in the file that refuses to move past its end; `data` is what has been read so far."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path = path
        self.file = file
        self.data = bytearray()
        self.size = size
        self.at = 0
        self.load(24)

    def load(self, end: int) -> None:
        """Make data[:end] available."""
        while len(self.data) < end:
            piece = self.file.read(max(CHUNK, end - len(self.data)))
            if not piece:
                raise self.fail("the file has become shorter while it was read")
            self.data += piece

    def fail(self, what: str) -> StrixhloError:
        return StrixhloError(f"{self.path}: {what}; the file is damaged or was not fully downloaded")

    def left(self) -> int:
        return self.size - self.at

    def take(self, nbytes: int, what: str) -> int:
        """Move on by nbytes and return where they start."""
        if nbytes > self.left():
            raise self.fail(f"{what} needs {nbytes} bytes where {self.left()} are left")
        start = self.at
        self.at += nbytes
        self.load(self.at)
        return start

    def u32(self, what: str) -> int:
        return struct.unpack_from("<I", self.data, self.take(4, what))[0]

    def u64(self, what: str) -> int:
        return struct.unpack_from("<Q", self.data, self.take(8, what))[0]

    def string(self, what: str) -> str:
        length = self.u64(f"the length of {what}")
        start = self.take(length, what)
        try:
            return self.data[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8") from error


def _read_head(cursor: _Cursor) -> tuple[int, int, int]:
    """Magic, version, and the two counts -> (version, tensors, pairs)."""
    if cursor.data[:4] != MAGIC:
        raise StrixhloError(f"{cursor.path}: not a GGUF file (it starts with {bytes(cursor.data[:4])!r})")
    cursor.at = 4
    version = cursor.u32("the version")
    if version not in (2, 3):
        if version and version & 0xFFFF == 0:
            raise StrixhloError(f"{cursor.path}: a big-endian GGUF file; convert it to little-endian")
        raise StrixhloError(f"{cursor.path}: GGUF version {version} is not supported; convert the model again (2 or 3)")
    n_tensors = cursor.u64("the number of tensors")
    n_pairs = cursor.u64("the number of keys")
    if n_pairs * MIN_PAIR + n_tensors * MIN_TENSOR > cursor.left():
        raise cursor.fail(f"{n_pairs} keys and {n_tensors} tensors do not fit into {cursor.size} bytes")
    return version, n_tensors, n_pairs


def _read_metadata(cursor: _Cursor, n_pairs: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for i in range(n_pairs):
        key = cursor.string(f"key {i}")
        if not key.isprintable():  # names are shown in messages
            raise cursor.fail(f"key {i} is named {key[:80]!r}")
        if key in metadata:
            raise cursor.fail(f"key {key!r} appears twice")
        metadata[key] = _read_value(cursor, key)
    return metadata


def _read_value(cursor: _Cursor, key: str) -> Any:
    value_type = cursor.u32(f"the type of key {key!r}")
    if value_type == STRING:
        return cursor.string(f"key {key!r}")
    if value_type == ARRAY:
        return _read_array(cursor, key)
    return _read_numbers(cursor, key, value_type, 1)[0].item()


def _read_numbers(cursor: _Cursor, key: str, value_type: int, count: int) -> np.ndarray:
    dtype = SCALARS.get(value_type)
    if dtype is None:
        raise cursor.fail(f"key {key!r} has the unknown value type {value_type}")
    start = cursor.take(count * dtype.itemsize, f"key {key!r}")
    raw = np.frombuffer(bytes(cursor.data[start : cursor.at]), np.uint8)
    if dtype.kind == "b" and (raw > 1).any():
        raise cursor.fail(f"key {key!r} holds a bool that is neither 0 nor 1")
    return raw.view(dtype)


def _read_array(cursor: _Cursor, key: str) -> np.ndarray | list[str]:
    element_type = cursor.u32(f"the element type of key {key!r}")
    count = cursor.u64(f"the length of key {key!r}")
    if element_type == ARRAY:
        raise cursor.fail(f"key {key!r} is an array of arrays, which no model uses")
    if count > MAX_ELEMENTS:
        raise cursor.fail(f"key {key!r} claims {count} elements")
    if element_type != STRING:
        return _read_numbers(cursor, key, element_type, count)
    if count * 8 > cursor.left():
        raise cursor.fail(f"key {key!r}: {count} strings do not fit into the {cursor.left()} bytes that are left")
    return _read_strings(cursor, key, count)


def _read_strings(cursor: _Cursor, key: str, count: int) -> list[str]:
    """A tight loop, since vocabularies and merge lists have hundreds of thousands of entries."""
    data, at, size, loaded = cursor.data, cursor.at, cursor.size, len(cursor.data)
    length_of = struct.Struct("<Q").unpack_from
    strings: list[str] = []
    try:
        for _ in range(count):
            start = at + 8
            if start > loaded and start <= size:
                cursor.load(start)
            at = start + length_of(data, at)[0]
            if at > size:
                raise cursor.fail(f"key {key!r}: string {len(strings)} ends outside of the file")
            if at > loaded:
                cursor.load(at)
                loaded = len(data)
            strings.append(data[start:at].decode("utf-8"))
    except struct.error as error:
        raise cursor.fail(f"key {key!r} ends in the middle of its {count} strings") from error
    except UnicodeDecodeError as error:
        raise cursor.fail(f"key {key!r}: string {len(strings)} is not UTF-8") from error
    cursor.at = at
    return strings


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
        raise cursor.fail(f"general.alignment is {alignment!r}, not a power of two of at least 8")
    return alignment


def _read_tensor_table(cursor: _Cursor, count: int, alignment: int) -> dict[str, GgufTensor]:
    """The table, offsets made absolute; StrixhloError when a tensor is outside of the file or overlaps another."""
    tensors: dict[str, GgufTensor] = {}
    for i in range(count):
        tensor = _read_tensor(cursor, i, alignment)
        if tensor.name in tensors:
            raise cursor.fail(f"tensor {tensor.name!r} appears twice")
        tensors[tensor.name] = tensor
    base = -(-cursor.at // alignment) * alignment
    placed = {t.name: replace(t, offset=t.offset + base) for t in tensors.values()}
    end, before = base, ""
    for tensor in sorted(placed.values(), key=lambda t: t.offset):
        if tensor.offset < end:
            raise cursor.fail(f"tensor {tensor.name!r} overlaps tensor {before!r}")
        end, before = tensor.offset + tensor.nbytes, tensor.name
        if end > cursor.size:
            raise cursor.fail(f"tensor {tensor.name!r} ends at byte {end} of a file of {cursor.size} bytes")
    return placed


def _read_tensor(cursor: _Cursor, index: int, alignment: int) -> GgufTensor:
    """One entry of the table, its offset still relative to the start of the data."""
    name = cursor.string(f"the name of tensor {index}")
    if not name or len(name) > MAX_NAME:
        raise cursor.fail(f"tensor {index} has a name of {len(name)} characters")
    if not name.isprintable():
        raise cursor.fail(f"tensor {index} is named {name[:80]!r}")
    n_dims = cursor.u32(f"the dimensions of tensor {name!r}")
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.fail(f"tensor {name!r} has {n_dims} dimensions (1 to {MAX_DIMS} are possible)")
    dims = [cursor.u64(f"the dimensions of tensor {name!r}") for _ in range(n_dims)]
    type_id = cursor.u32(f"the type of tensor {name!r}")
    offset = cursor.u64(f"the offset of tensor {name!r}")
    if type_id not in TENSOR_TYPES:
        raise cursor.fail(f"tensor {name!r} has the unknown type {type_id}")
    type_name, block, block_bytes = TENSOR_TYPES[type_id]
    if not all(0 < dim < 1 << 63 for dim in dims) or dims[0] % block:
        raise cursor.fail(f"tensor {name!r} of type {type_name} has the impossible shape {dims}")
    if offset % alignment:
        raise cursor.fail(f"tensor {name!r} starts at {offset}, which is not a multiple of {alignment}")
    return GgufTensor(cursor.path, name, tuple(reversed(dims)), type_name, offset, prod(dims) // block * block_bytes)
