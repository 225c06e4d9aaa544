"""Checkpoint -> bundle: trace the model, write the weights archive, the tokenizer and the manifest."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..bundle import (
    KV_ARRAYS,
    MANIFEST,
    PROGRAM,
    SCHEMA_VERSION,
    WEIGHTS,
    Activations,
    Bundle,
    Kind,
    KVCache,
    Manifest,
    Reference,
    SourceFile,
    open_bundle,
    sha256_file,
    write_record,
)
from ..errors import StrixhloError
from ..progress import Stages
from ..replacement import replaced_directory
from .archive import referred_parameters, write_archive
from .checkpoint.contents import Checkpoint, Tensor
from .config_values import count, wrong
from .layers.layer_groups import layer_groups
from .models import Model, check_activations, model_from_config
from .stored_weights import StoredWeight, stored_weights
from .trace import Traced, trace

ENTRIES: dict[str, tuple[Kind, int]] = {
    "prefill_16": ("prefill", 16),
    "prefill_128": ("prefill", 128),
    "score_128": ("score", 128),
    **{f"decode_{rows}": ("decode", rows) for rows in (1, 2, 4, 8)},
}
BLOCK_SIZE = 16  # rows of a KV block
DEFAULT_CONTEXT = 4096
MAX_CONTEXT = 1 << 20  # bounds the rotary tables, which are weights
KV_DTYPES = tuple(KV_ARRAYS)
# Buffers that some checkpoints carry beside their weights.
NOT_WEIGHTS = re.compile(r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias)$")


def export_checkpoint(
    checkpoint: Checkpoint,
    out: Path,
    *,
    context: int | None,
    dtype: str,
    kv_dtype: str,
    progress: Stages,
    reference: bool = False,
    activations: Activations = "f32",
) -> Bundle:
    """Write the bundle of `checkpoint` to `out`.

    context: positions that the KV cache holds, None: the model's own, at most 4,096. dtype: see `stored_weights`.
    kv_dtype: f16, bf16, f32, or fp8 (E4M3). reference: weights that the bundle would store byte for byte as the
    checkpoint has them stay in its files, and the bundle refers to them. activations: the type of what goes from layer
    to layer; kernels compute in float32 whatever it is, and logits are float32.
    """
    model, kv, weights = planned(checkpoint, context=context, dtype=dtype, kv_dtype=kv_dtype, activations=activations)
    _check_place(checkpoint, out)
    with replaced_directory(out, MANIFEST) as folder:
        progress.stage("tracing", 0)
        shapes = {name: w.traced() for name, w in weights.items()}
        traced = trace(model, shapes, kv, _entries(checkpoint), checkpoint.pooling, activations)
        used = {name: w for name, w in weights.items() if name in traced.used}
        _write(folder, out.resolve().name, checkpoint, model, kv, used, traced, progress, reference, activations)
    return open_bundle(out)


def _entries(checkpoint: Checkpoint) -> dict[str, tuple[Kind, int]]:
    """Those of every model, and of an embedding model one more: chunks as long as the longest of a prompt."""
    rows = max(rows for kind, rows in ENTRIES.values() if kind == "prefill")
    return ENTRIES | ({f"embed_{rows}": ("embed", rows)} if checkpoint.pooling else {})


def _expected_tensors(checkpoint: Checkpoint, model: Model) -> dict[str, Tensor]:
    """The checkpoint's tensors that the model reads: none missing, each of the configured shape, none left over."""
    expected: dict[str, Tensor] = {}
    for name, shape in model.shapes():  # the first one missing ends this, whatever number of layers is configured
        tensor = checkpoint.tensors.get(name)
        if tensor is None:
            why = f"num_hidden_layers = {model.layers}" if ".layers." in name else "the configuration"
            raise StrixhloError(
                f"{checkpoint.source}: tensor {name} is missing, which {why} asks for; download it again"
            )
        if tensor.shape != shape:
            raise StrixhloError(
                f"{checkpoint.source}: tensor {name} has shape {list(tensor.shape)} where the configuration makes it"
                f" {list(shape)}; weights and configuration are not of one model"
            )
        expected[name] = tensor
    left_over = sorted(n for n in checkpoint.tensors if not (n in expected or NOT_WEIGHTS.search(n) or model.unused(n)))
    if left_over:
        raise StrixhloError(
            f"{checkpoint.source}: {len(left_over)} tensors have no place in a {checkpoint.config['model_type']} model,"
            f" the first is {left_over[0]:.120}"
        )
    return expected


def _check_place(checkpoint: Checkpoint, out: Path) -> None:
    """Writing a bundle replaces the whole folder: it must be a bundle's, and the checkpoint must not be in it."""
    inside = [f for f in checkpoint.files if (f.parent.resolve() / f.name).is_relative_to(out.resolve())]
    if inside:
        raise StrixhloError(f"{out}: holds the checkpoint {inside[0].name}, which would be lost; choose another --out")
    manifest = out / MANIFEST
    if manifest.is_file() and b'"schema_version"' not in manifest.read_bytes():
        raise StrixhloError(f"{out}: its {MANIFEST} is not a bundle's; choose another --out, or remove it")


def _context(config: Mapping[str, Any], wanted: int | None) -> int:
    """The context in positions, a multiple of the block size."""
    limit = min(count(config, "max_position_embeddings", DEFAULT_CONTEXT), MAX_CONTEXT)
    if limit < BLOCK_SIZE:
        raise wrong("max_position_embeddings", limit, f"at least {BLOCK_SIZE}")
    context = min(limit, DEFAULT_CONTEXT) if wanted is None else wanted
    if context < BLOCK_SIZE or context > limit:
        raise StrixhloError(f"context {context} is not possible: this model takes {BLOCK_SIZE} to {limit} positions")
    return context // BLOCK_SIZE * BLOCK_SIZE


def _kv_cache(model: Model, context: int, dtype: str) -> KVCache:
    if dtype not in KV_DTYPES:
        raise StrixhloError(f"KV cache of dtype {dtype!r} is not possible; choose one of {', '.join(KV_DTYPES)}")
    layers, width = model.pool
    groups = layer_groups(model.windows, context)
    kv = KVCache(
        dtype=dtype,
        layers=groups.layers if len(groups.windows) > 1 else layers,
        rows=context,
        width=width,
        block_size=BLOCK_SIZE,
        blocks=context // BLOCK_SIZE,
        windows=groups.windows,
        chunk=max(rows for kind, rows in ENTRIES.values() if kind != "decode"),
    )
    return kv.model_copy(update={"rows": kv.rows_for(context)})


def _write(
    folder: Path,
    name: str,
    checkpoint: Checkpoint,
    model: Model,
    kv: KVCache,
    weights: Mapping[str, StoredWeight],
    traced: Traced,
    progress: Stages,
    reference: bool,
    activations: Activations,
) -> None:
    """Fill a new folder; the manifest comes last."""
    program = traced.program.encode()
    (folder / PROGRAM).write_bytes(program)
    progress.stage("tokenizer", 0)
    checkpoint.write_tokenizer(folder)
    groups = [w.group(n) for n, w in weights.items()]
    referred = referred_parameters(groups, checkpoint.files) if reference else {}
    groups = [g.without(referred) for g in groups]
    progress.stage("weights", sum(g.nbytes for g in groups))
    (folder / WEIGHTS).parent.mkdir()
    parameters, size, digest = write_archive(folder / WEIGHTS, groups, progress.advance)
    progress.stage("hashing the source", sum(f.stat().st_size for f in checkpoint.files))
    sources = []
    for file in checkpoint.files:
        sources.append(SourceFile(name=file.name, bytes=file.stat().st_size, sha256=sha256_file(file)))
        progress.advance(sources[-1].bytes)
    references = zip(checkpoint.files, sources, strict=True) if referred else ()
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        name=name,
        family=checkpoint.config["model_type"],
        config=checkpoint.config,
        context=kv.blocks * kv.block_size,
        vocab_size=model.vocab_size,
        weight_formats=dict(sorted(Counter(w.format for w in weights.values()).items())),
        entry_points=traced.entry_points,
        kv_cache=kv,
        parameters=parameters | referred,
        weights_bytes=size,
        weights_sha256=digest,
        program_sha256=hashlib.sha256(program).hexdigest(),
        custom_ops=traced.custom_ops,
        container=checkpoint.container,
        source=checkpoint.source,
        source_files=tuple(sources),
        pooling=checkpoint.pooling,
        activations=activations,
        references=tuple(Reference(path=str(f.resolve()), bytes=s.bytes, sha256=s.sha256) for f, s in references),
        versions={p: version(p) for p in ("strixhlo", "jax")},
    )
    write_record(folder / MANIFEST, manifest)


def planned(
    checkpoint: Checkpoint, *, context: int | None, dtype: str, kv_dtype: str, activations: str = "f32"
) -> tuple[Model, KVCache, dict[str, StoredWeight]]:
    """What an export would write, checked as an export checks it, without tracing and without reading weights."""
    try:
        model = model_from_config(checkpoint.config)
        check_activations(checkpoint.config, activations)
        kv = _kv_cache(model, _context(checkpoint.config, context), kv_dtype)
    except StrixhloError as error:
        raise StrixhloError(f"{checkpoint.source}: {error}") from None
    tensors = _expected_tensors(checkpoint, model)
    return model, kv, stored_weights(tensors, model.tables(kv.blocks * kv.block_size), dtype)
