"""Checkpoint -> bundle: trace the model, write the weights archive, the tokenizer and the manifest."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from ..bundle import (
    MANIFEST,
    PROGRAM,
    SCHEMA_VERSION,
    WEIGHTS,
    Bundle,
    KVCache,
    Manifest,
    SourceFile,
    open_bundle,
    replaced_directory,
    sha256_file,
    write_record,
)
from ..errors import StrixhloError
from ..progress import Stages
from .archive import write_archive
from .checkpoint.contents import Checkpoint
from .models import Model, model_from_config
from .stored_weights import StoredWeight, stored_weights
from .trace import Kind, Traced, trace

ENTRIES: dict[str, tuple[Kind, int]] = {
    "prefill_16": ("prefill", 16),
    "prefill_128": ("prefill", 128),
    "score_128": ("score", 128),
    "decode_1": ("decode", 1),
    "decode_4": ("decode", 4),
}
BLOCK_SIZE = 16  # rows of a KV block
DEFAULT_CONTEXT = 4096
KV_DTYPES = ("f16", "f32")
# Buffers that some checkpoints carry beside their weights.
NOT_WEIGHTS = re.compile(r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias)$")


def export_checkpoint(
    checkpoint: Checkpoint, out: Path, *, context: int | None, dtype: str, kv_dtype: str, progress: Stages
) -> Bundle:
    """Write the bundle of `checkpoint` to `out`.

    context: positions that the KV cache holds, None: the model's own, at most 4,096. dtype: see `stored_weights`.
    kv_dtype: f16 or f32.
    """
    model = model_from_config(checkpoint.config)
    kv = _kv_cache(model, _context(checkpoint, context), kv_dtype)
    weights = stored_weights(checkpoint, model.tables(kv.rows), dtype)
    progress.stage("tracing", 0)
    traced = trace(model, {name: w.traced() for name, w in weights.items()}, kv, ENTRIES)
    unused = sorted(n for n in weights if n not in traced.used and not NOT_WEIGHTS.search(n))
    if unused:
        raise StrixhloError(
            f"{checkpoint.source}: {len(unused)} tensors have no place in a {checkpoint.config['model_type']} model,"
            f" the first is {unused[0]}"
        )
    used = {name: w for name, w in weights.items() if name in traced.used}
    with replaced_directory(out, MANIFEST) as folder:
        _write(folder, out.name, checkpoint, model, kv, used, traced, progress)
    return open_bundle(out)


def _context(checkpoint: Checkpoint, wanted: int | None) -> int:
    """The context in positions, a multiple of the block size."""
    limit = int(checkpoint.config.get("max_position_embeddings") or DEFAULT_CONTEXT)
    context = min(limit, DEFAULT_CONTEXT) if wanted is None else wanted
    if context < BLOCK_SIZE or context > limit:
        raise StrixhloError(f"context {context} is not possible: this model takes {BLOCK_SIZE} to {limit} positions")
    return context // BLOCK_SIZE * BLOCK_SIZE


def _kv_cache(model: Model, context: int, dtype: str) -> KVCache:
    if dtype not in KV_DTYPES:
        raise StrixhloError(f"KV cache of dtype {dtype!r} is not possible; choose one of {', '.join(KV_DTYPES)}")
    return KVCache(
        dtype=dtype,
        layers=model.layers,
        rows=context,
        width=model.kv_heads * model.head_dim,
        block_size=BLOCK_SIZE,
        blocks=context // BLOCK_SIZE,
    )


def _write(
    folder: Path,
    name: str,
    checkpoint: Checkpoint,
    model: Model,
    kv: KVCache,
    weights: Mapping[str, StoredWeight],
    traced: Traced,
    progress: Stages,
) -> None:
    """Fill a new folder; the manifest comes last."""
    program = traced.program.encode()
    (folder / PROGRAM).write_bytes(program)
    progress.stage("tokenizer", 0)
    checkpoint.write_tokenizer(folder)
    groups = [w.group(n) for n, w in weights.items()]
    progress.stage("weights", sum(g.nbytes for g in groups))
    (folder / WEIGHTS).parent.mkdir()
    parameters, size, digest = write_archive(folder / WEIGHTS, groups, progress.advance)
    progress.stage("hashing the source", sum(f.stat().st_size for f in checkpoint.files))
    sources = []
    for file in checkpoint.files:
        sources.append(SourceFile(name=file.name, bytes=file.stat().st_size, sha256=sha256_file(file)))
        progress.advance(sources[-1].bytes)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        name=name,
        family=checkpoint.config["model_type"],
        config=checkpoint.config,
        context=kv.rows,
        vocab_size=model.vocab_size,
        weight_formats=dict(sorted(Counter(w.format for w in weights.values()).items())),
        entry_points=traced.entry_points,
        kv_cache=kv,
        parameters=parameters,
        weights_bytes=size,
        weights_sha256=digest,
        program_sha256=hashlib.sha256(program).hexdigest(),
        custom_ops=traced.custom_ops,
        container=checkpoint.container,
        source=checkpoint.source,
        source_files=tuple(sources),
        versions={p: version(p) for p in ("strixhlo", "jax")},
    )
    write_record(folder / MANIFEST, manifest)
