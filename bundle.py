"""The artifact bundle: the one place where export, compile and runtime meet.

A bundle is a folder: manifest.json (this schema), program.mlir (portable StableHLO), weights/, tokenizer files, and one
folder per compile target with program.vmfb and build.json. A folder is written under a temporary name, synced and
renamed, manifest and build.json last, so that what is there is whole; what is not whole is refused with the reason.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from .errors import StrixhloError
from .replacement import atomic_write

SCHEMA_VERSION = 1
MANIFEST, PROGRAM, WEIGHTS = "manifest.json", "program.mlir", "weights/model.safetensors"
VMFB, BUILD = "program.vmfb", "build.json"
# A parameter of CPU programs that no weight file has: int32 words in which the runtime says what kernels may use here.
MACHINE_PARAMETER, MACHINE_WORDS = "strixhlo.machine", 16
DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1, "i32": 4}
KV_ARRAYS = {"fp8": "i8", "f16": "f16", "bf16": "bf16", "f32": "f32"}  # type of the KV cache -> of the pools' arrays
MOST_RECORD_BYTES = 64 << 20  # of a JSON record; a manifest of many experts has a few
ALIGNMENT = 64  # IREE uses a parameter in place only at a file offset that is a multiple of this

Size = Annotated[int, Field(gt=0, lt=1 << 31)]  # of a dimension
Bytes = Annotated[int, Field(ge=0, lt=1 << 50)]
Kind = Literal["prefill", "score", "decode", "embed"]
DType = Annotated[str, Field(pattern="^(f32|f16|bf16|i8|i32)$")]
Activations = Literal["f32", "f16", "bf16"]
KVDType = Annotated[str, Field(pattern="^(fp8|f16|bf16|f32)$")]  # fp8: E4M3, its bits in int8


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorSpec(_Record):
    """Name, shape and dtype of an entry point's input or output."""

    name: str
    shape: tuple[Size, ...]
    dtype: DType


class EntryPoint(_Record):
    """One public function of the program. `kind`: prefill and score take chunks of one sequence, decode one row each of
    `rows` sequences. The last inputs are the KV pools, donated; the outputs are `logits`,
    `tokens` (of each row the largest logit's, -1 where there is none: see the argmax op) and the pools again.
    embed takes what prefill takes and gives `embedding` [1, hidden], see `Pooling`, and the pools."""

    kind: Kind
    rows: Size
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class Parameter(_Record):
    """Where a named parameter lies: offset and length in bytes in the weights file, or in one of the checkpoint's
    files, the `file`-th of `Manifest.references`."""

    dtype: str
    shape: tuple[Size, ...]
    offset: Bytes
    length: Bytes
    file: Annotated[int, Field(ge=0)] | None = None


class KVCache(_Record):
    """The two pools [layers, rows, width], in blocks of `block_size` rows; `blocks` entries in a block table. `rows` is
    what is exported, for one sequence; most compiled programs take any number (`Build.kv_rows_free`).

    A model's layers are dealt to groups of `layers` layers, each with a block table of its own over the same pools.
    `windows`: of each group, the positions that its layers see (0: all), so that earlier blocks can be used again.
    `chunk`: rows that one call appends to a sequence, at most."""

    dtype: KVDType
    layers: Size
    rows: Size
    width: Size
    block_size: Size
    blocks: Size
    windows: Annotated[tuple[Annotated[int, Field(ge=0, lt=1 << 31)], ...], Field(min_length=1, max_length=1 << 12)] = (
        0,
    )
    chunk: Size = 128

    def group_blocks(self, positions: int) -> tuple[int, ...]:
        """Of each group, the most blocks that a sequence of so many positions holds at a time."""
        whole = -(-positions // self.block_size)
        return tuple(min(whole, -(-(w + self.chunk) // self.block_size) + 1) if w else whole for w in self.windows)

    def rows_for(self, positions: int) -> int:
        """Rows that a sequence of so many positions needs, all groups together."""
        return sum(self.group_blocks(positions)) * self.block_size

    def positions_in(self, rows: int) -> int:
        """The longest sequence, in whole blocks, that so many rows hold, up to the length of a block table."""
        lengths = range(0, (self.blocks + 1) * self.block_size, self.block_size)
        return lengths[bisect_right(lengths, rows, key=self.rows_for) - 1]

    def own_table(self, positions: int, nth: int = 0) -> list[list[int]]:
        """The block tables [groups][blocks] of the nth of several sequences that hold `positions` each and share
        nothing. In a group with a window, blocks that have left it come round again."""
        own = self.group_blocks(positions)
        first = [nth * sum(own) + sum(own[:g]) for g in range(len(own))]
        return [[start + i % count for i in range(self.blocks)] for start, count in zip(first, own, strict=True)]

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of a pool."""
        return DTYPE_BYTES[KV_ARRAYS[self.dtype]]

    def pools(self) -> tuple[TensorSpec, TensorSpec]:
        """The pools as arguments of an entry point."""
        shape = (self.layers, self.rows, self.width)
        dtype = KV_ARRAYS[self.dtype]
        return TensorSpec(name="k_pool", shape=shape, dtype=dtype), TensorSpec(name="v_pool", shape=shape, dtype=dtype)

    @property
    def bytes(self) -> int:
        """Bytes of both pools."""
        return 2 * self.layers * self.rows * self.width * self.element_bytes


class Pooling(_Record):
    """How an embedding model makes one vector of a text out of the normalized last hidden states. method: that of the
    last token, or the mean, of which an embed entry gives the sum over its chunk. normalize: it then has length 1."""

    method: Literal["last", "mean"]
    normalize: bool = True


def entry_point(kind: Kind, rows: int, cache: KVCache, vocab_size: int, hidden: int = 1) -> EntryPoint:
    """The entry point of that kind: export traces it, and no other one is read. hidden: length of an embedding."""
    pools = cache.pools()
    tokens = TensorSpec(name="tokens", shape=(rows,), dtype="i32")
    groups = (len(cache.windows),) if len(cache.windows) > 1 else ()
    tables = (*groups, rows if kind == "decode" else 1, cache.blocks)
    table = TensorSpec(name="block_table", shape=tables, dtype="i32")
    if kind == "decode":
        where: tuple[TensorSpec, ...] = (TensorSpec(name="positions", shape=(rows,), dtype="i32"),)
    else:
        where = (TensorSpec(name="start", shape=(1,), dtype="i32"), TensorSpec(name="count", shape=(1,), dtype="i32"))
    logits = TensorSpec(name="logits", shape=(1 if kind == "prefill" else rows, vocab_size), dtype="f32")
    best = TensorSpec(name="tokens", shape=logits.shape[:1], dtype="i32")  # of the largest logit of each row
    made = (TensorSpec(name="embedding", shape=(1, hidden), dtype="f32"),) if kind == "embed" else (logits, best)
    return EntryPoint(kind=kind, rows=rows, inputs=(tokens, *where, table, *pools), outputs=(*made, *pools))


class SourceFile(_Record):
    """A file of the checkpoint that the bundle was made from."""

    name: str
    bytes: Bytes
    sha256: str


class Reference(_Record):
    """A file of the checkpoint that holds weights of the bundle: its absolute path, its size and hash at the export."""

    path: str
    bytes: Bytes
    sha256: str


class Manifest(_Record):
    """manifest.json."""

    schema_version: int
    name: str
    family: str
    config: dict[str, Any]
    context: Size
    vocab_size: Size
    weight_formats: dict[str, int]  # format -> number of weights
    entry_points: dict[str, EntryPoint]
    kv_cache: KVCache
    parameters: dict[str, Parameter]
    weights_bytes: Bytes
    weights_sha256: str
    program_sha256: str
    custom_ops: dict[str, int]  # op -> number of calls in the program
    container: str
    source: str
    source_files: tuple[SourceFile, ...]
    references: tuple[Reference, ...] = ()
    pooling: Pooling | None = None  # of an embedding model
    activations: Activations = "f32"  # the type of what goes from layer to layer; sums, norms and logits are float32
    versions: dict[str, str]

    @property
    def referenced_bytes(self) -> int:
        """Bytes of the weights that stay in the checkpoint's files."""
        return sum(p.length for p in self.parameters.values() if p.file is not None)


def _check_report(report: dict[str, Any]) -> dict[str, Any]:
    """What memory budgets read of a report, `entries`, the bytes that one call of each entry point takes; and that the
    parts that are shown have what is shown of them."""
    entries = report.get("entries", {})
    if not isinstance(entries, dict):
        raise ValueError("entries is no object")
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            raise ValueError(f"entries.{name:.40} is no object")
        for key in ("transient_bytes", "result_bytes", "unknown_sizes"):
            value = entry.get(key)
            if type(value) is not int or not 0 <= value < 1 << 50:
                raise ValueError(f"entries.{name:.40}.{key} is {value!r:.40}, no number of bytes")
    for part, (keys, kinds) in _SHOWN.items():
        shown = report.get(part, {})
        if not isinstance(shown, dict) or (part in report and not keys <= shown.keys()):
            raise ValueError(f"{part} is {shown!r:.40}, no object with all that it has")
        if not all(isinstance(value, kinds) for value in shown.values()):
            raise ValueError(f"{part} has a value of another type: {shown!r:.80}")
    return report


# Parts of a report -> the keys that are always there, and what values may be.
_SHOWN: dict[str, tuple[set[str], tuple[type, ...]]] = {
    "choices": ({"source", "origin"}, (str, int)),
    "decode": ({"dispatches_per_token", "bytes_per_token", "position"}, (int, float)),
    "kernels": (set(), (dict,)),
}


class Build(_Record):
    """build.json: what a target's program.vmfb was built from and for."""

    schema_version: int
    target: str
    program_sha256: str  # of the program.mlir that it was compiled from
    key: str  # hash of all that a build depends on, these two (build_inputs.py) among it
    lowering_sha256: str = ""  # "": of a version that did not keep them
    interface_sha256: str = ""
    flags: tuple[str, ...]
    versions: dict[str, str]
    cpu_features: tuple[str, ...] = ()
    activations: str
    kv_dtype: KVDType | None = None  # of the KV cache, where it was chosen when compiling; None: as exported
    kv_rows_free: bool = False  # the KV pools may have any number of rows; else as many as exported
    vmfb_sha256: str
    vmfb_bytes: Bytes
    report: Annotated[dict[str, Any], AfterValidator(_check_report)]


def built_cache(manifest: Manifest, build: Build | None) -> KVCache:
    """The KV cache of a compiled program, its rows as exported."""
    dtype = build.kv_dtype if build else None
    return manifest.kv_cache.model_copy(update={"dtype": dtype}) if dtype else manifest.kv_cache


_R = TypeVar("_R", bound=BaseModel)


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

    def program_text(self) -> str:
        """The portable StableHLO; StrixhloError when it is not what export wrote."""
        data = self.program.read_bytes()
        if hashlib.sha256(data).hexdigest() != self.manifest.program_sha256:
            raise StrixhloError(f"{self.program}: was changed after the export; export the bundle again")
        return data.decode()

    def target_dir(self, target: str) -> Path:
        """Where `compile --target` puts its program: "cpu:x86-64-v3" -> cpu-x86-64-v3."""
        if not re.fullmatch(r"[a-z0-9][a-z0-9_.:-]*", target):
            raise StrixhloError(f"{target!r} is no target; see `strixhlo compile --help`")
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
    kinds = {e.kind for e in manifest.entry_points.values()}
    embeds = manifest.pooling is not None
    if "decode_1" not in manifest.entry_points or not {"prefill", "score"} <= kinds or embeds != ("embed" in kinds):
        raise StrixhloError(f"{path / MANIFEST}: entry points are missing; export the bundle again")
    kv = manifest.kv_cache
    positions = kv.blocks * kv.block_size
    if kv.rows_for(positions) != kv.rows or manifest.context > positions:
        raise StrixhloError(
            f"{path / MANIFEST}: a context of {manifest.context} and {kv.blocks} blocks of {kv.block_size} positions"
            f" do not go with a KV cache of {kv.rows}; export the bundle again"
        )
    if any(e.rows > kv.chunk for e in manifest.entry_points.values() if e.kind != "decode"):
        raise StrixhloError(f"{path / MANIFEST}: a chunk is larger than kv_cache.chunk; export the bundle again")
    for name, entry in manifest.entry_points.items():
        hidden = entry.outputs[0].shape[-1] if entry.outputs and entry.outputs[0].shape else 1
        expected = entry_point(entry.kind, entry.rows, kv, manifest.vocab_size, hidden)
        if name != f"{entry.kind}_{entry.rows}" or entry != expected:
            raise StrixhloError(
                f"{path / MANIFEST}: {name} has other inputs or outputs than export writes; export the bundle again"
            )
    size = bundle.weights.stat().st_size
    if size != manifest.weights_bytes:
        raise StrixhloError(
            f"{bundle.weights}: {size} bytes where the manifest says {manifest.weights_bytes}; export the bundle again"
        )
    _check_places(path, manifest, size)
    return bundle


def _check_places(path: Path, manifest: Manifest, size: int) -> None:
    """StrixhloError when a parameter lies outside of its file, or when a file that is referred to is not there."""
    sizes = []
    for reference in manifest.references:
        file = Path(reference.path)
        if not file.is_file() or file.stat().st_size != reference.bytes:
            raise StrixhloError(
                f"{path}: was exported with --reference and uses weights in {file}, which is missing or has changed;"
                " put it back, or export again"
            )
        sizes.append(reference.bytes)
    for name, parameter in manifest.parameters.items():
        expected = math.prod(parameter.shape) * DTYPE_BYTES.get(parameter.dtype, 0)
        if parameter.length != expected or expected <= 0:
            raise StrixhloError(
                f"{path / MANIFEST}: parameter {name} has {parameter.length} bytes where its shape and type make"
                f" {expected}; export the bundle again"
            )
        if parameter.file is None:
            inside, aligned, where = size, parameter.offset % ALIGNMENT == 0, WEIGHTS
        else:
            known = parameter.file < len(sizes)
            inside, aligned, where = (sizes[parameter.file] if known else -1), True, "its file"
        if not aligned or parameter.offset < 0 or parameter.offset + parameter.length > inside:
            raise StrixhloError(f"{path / MANIFEST}: parameter {name} lies outside of {where}; export the bundle again")


def read_record(path: Path, kind: type[_R], what: str) -> _R:
    """Read a JSON record of this schema version."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_RECORD_BYTES + 1)
        if len(data) > MOST_RECORD_BYTES:
            raise ValueError(f"more than {MOST_RECORD_BYTES >> 20} MiB")
        raw = json.loads(data.decode())
    except FileNotFoundError:
        raise StrixhloError(f"{path.parent}: not a whole {what}, {path.name} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise StrixhloError(f"{path}: cannot be read ({error}); make the {what} again") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        advice = "upgrade strixhlo" if newer else f"make the {what} again"
        raise StrixhloError(f"{path}: schema version {version}, this strixhlo reads {SCHEMA_VERSION}; {advice}")
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise StrixhloError(f"{path}: {where}: {first['msg']}; make the {what} again") from None


def write_record(path: Path, record: BaseModel) -> None:
    """Write a record as indented JSON, atomically."""
    atomic_write(path, f"{json.dumps(record.model_dump(mode='json'), indent=1)}\n".encode())


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
