"""The artifact bundle: the one place where export, compile and runtime meet.

A bundle is a folder: manifest.json (this schema), program.mlir (portable StableHLO), weights/, tokenizer files, and one
folder per compile target with program.vmfb and build.json. A folder is written under a temporary name, synced and
renamed, manifest and build.json last, so that what is there is whole; what is not whole is refused with the reason.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import StrixhloError

SCHEMA_VERSION = 1
MANIFEST, PROGRAM, WEIGHTS = "manifest.json", "program.mlir", "weights/model.safetensors"
VMFB, BUILD = "program.vmfb", "build.json"
DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1, "i32": 4}
ALIGNMENT = 64  # IREE uses a parameter in place only at a file offset that is a multiple of this


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorSpec(_Record):
    """Name, shape and dtype (f32, f16, bf16, i8, i32) of an entry point's input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class EntryPoint(_Record):
    """One public function of the program. `kind`: prefill and score take chunks of one sequence, decode one row each of
    `rows` sequences. The last inputs are the KV pools, donated; the last outputs are the pools again."""

    kind: Literal["prefill", "score", "decode"]
    rows: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class Parameter(_Record):
    """Where a named parameter lies in the weights file: offset and length in bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


class KVCache(_Record):
    """The two pools [layers, rows, width], in blocks of `block_size` rows; `blocks` entries in a block table."""

    dtype: str
    layers: int
    rows: int
    width: int
    block_size: int
    blocks: int

    @property
    def bytes(self) -> int:
        """Bytes of both pools."""
        return 2 * self.layers * self.rows * self.width * DTYPE_BYTES[self.dtype]


class SourceFile(_Record):
    """A file of the checkpoint that the bundle was made from."""

    name: str
    bytes: int
    sha256: str


class Manifest(_Record):
    """manifest.json."""

    schema_version: int
    name: str
    family: str
    config: dict[str, Any]
    context: int
    vocab_size: int
    weight_formats: dict[str, int]  # format -> number of weights
    entry_points: dict[str, EntryPoint]
    kv_cache: KVCache
    parameters: dict[str, Parameter]
    weights_bytes: int
    weights_sha256: str
    program_sha256: str
    custom_ops: dict[str, int]  # op -> number of calls in the program
    container: str
    source: str
    source_files: tuple[SourceFile, ...]
    versions: dict[str, str]


class Build(_Record):
    """build.json: what a target's program.vmfb was built from and for."""

    schema_version: int
    target: str
    key: str  # hash of program, flags, versions and kernel sources
    flags: tuple[str, ...]
    versions: dict[str, str]
    cpu_features: tuple[str, ...] = ()
    activations: str
    vmfb_sha256: str
    vmfb_bytes: int
    report: dict[str, Any]


_R = TypeVar("_R", bound=_Record)


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk whose manifest has been read and checked."""

    path: Path
    manifest: Manifest

    @property
    def program(self) -> Path:
        """The portable StableHLO."""
        return self.path / PROGRAM

    @property
    def weights(self) -> Path:
        """The weights archive."""
        return self.path / WEIGHTS

    def target_dir(self, target: str) -> Path:
        """Where `compile --target` puts its program: "cpu:x86-64-v3" -> cpu-x86-64-v3."""
        return self.path / target.replace(":", "-")


def open_bundle(path: Path) -> Bundle:
    """Read and check a bundle: StrixhloError where it is missing, cut short, or of another schema."""
    if not path.is_dir():
        raise StrixhloError(f"{path}: no such bundle; make one with `strixhlo export SOURCE -o {path}`")
    manifest = read_record(path / MANIFEST, Manifest, "bundle")
    bundle = Bundle(path, manifest)
    for file in (bundle.program, bundle.weights):
        if not file.is_file():
            raise StrixhloError(
                f"{path}: the bundle is not whole, {file.relative_to(path)} is missing; export it again"
            )
    size = bundle.weights.stat().st_size
    if size != manifest.weights_bytes:
        raise StrixhloError(
            f"{bundle.weights}: {size} bytes where the manifest says {manifest.weights_bytes}; export the bundle again"
        )
    for name, parameter in manifest.parameters.items():
        expected = math.prod(parameter.shape) * DTYPE_BYTES.get(parameter.dtype, 0)
        if parameter.length != expected or expected <= 0:
            raise StrixhloError(
                f"{path / MANIFEST}: parameter {name} has {parameter.length} bytes where its shape and type make"
                f" {expected}; export the bundle again"
            )
        if parameter.offset % ALIGNMENT or parameter.offset < 0 or parameter.offset + parameter.length > size:
            raise StrixhloError(
                f"{path / MANIFEST}: parameter {name} lies outside of {WEIGHTS}; export the bundle again"
            )
    return bundle


def read_record(path: Path, kind: type[_R], what: str) -> _R:
    """Read a JSON record of this schema version."""
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise StrixhloError(f"{path.parent}: not a whole {what}, {path.name} is missing") from None
    except (OSError, ValueError) as error:
        raise StrixhloError(f"{path}: cannot be read ({error})") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        raise StrixhloError(
            f"{path}: schema version {version}, this strixhlo reads {SCHEMA_VERSION}; "
            + (
                "upgrade strixhlo"
                if isinstance(version, int) and version > SCHEMA_VERSION
                else f"make the {what} again"
            )
        )
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise StrixhloError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def write_record(path: Path, record: BaseModel) -> None:
    """Write a record as indented JSON, atomically."""
    atomic_write(path, (json.dumps(record.model_dump(mode="json"), indent=1) + "\n").encode())


def atomic_write(path: Path, data: bytes) -> None:
    """Temporary name, sync, rename."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync(path.parent)


@contextmanager
def replaced_directory(path: Path, marker: str) -> Iterator[Path]:
    """Yields a temporary sibling folder that becomes `path` when the block ends without an error.

    An existing `path` is replaced only when it holds `marker` (it is one of ours) or is empty.
    """
    if path.exists() and not (path / marker).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise StrixhloError(f"{path}: exists and is not a strixhlo folder (no {marker}); choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial-{uuid.uuid4().hex[:8]}")
    temporary.mkdir()
    try:
        yield temporary
        for folder, _, files in os.walk(temporary):
            for name in files:
                _sync(Path(folder) / name)
            _sync(Path(folder))
        old = path.with_name(f".{path.name}.old-{uuid.uuid4().hex[:8]}")
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        _sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise StrixhloError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
