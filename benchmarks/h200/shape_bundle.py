"""A compiled bundle of a shape without its weights: they are made where it runs (see random_weights)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from strixhlo.bundle import (
    MANIFEST,
    PROGRAM,
    SCHEMA_VERSION,
    WEIGHTS,
    Activations,
    Bundle,
    Manifest,
    Parameter,
    write_record,
)
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.targets import parse_target
from strixhlo.custom_kernels.ops.formats import FORMATS
from strixhlo.export.archive import PAGE, _layout, _nbytes
from strixhlo.export.checkpoint.contents import Checkpoint, Tensor
from strixhlo.export.export import planned
from strixhlo.export.models import model_from_config
from strixhlo.export.trace import Kind, trace

from .random_weights import FORMATS_RECORD
from .shapes import Shape

# What a run needs; fewer entries than an export has, since 32 layers of ten formats are compiled.
ENTRIES: dict[str, tuple[Kind, int]] = {
    "prefill_128": ("prefill", 128),
    "score_16": ("score", 16),
    "decode_1": ("decode", 1),
    "decode_8": ("decode", 8),
}


def nothing_to_read() -> dict[str, np.ndarray]:
    """The values of a tensor that has a shape only."""
    raise ValueError("a checkpoint of shapes has no values")


def random_checkpoint(config: dict[str, Any], formats: str | Mapping[str, str]) -> Checkpoint:
    """A checkpoint whose matrices have that format, but for routers, and no values. formats: also by the end of a
    tensor's name, the first that fits. Stacked experts have a global_scale each, where the format has one."""
    by_end = {"": formats} if isinstance(formats, str) else formats
    small_ones = (".bias", ".mlp.gate.weight", ".router.weight", ".router.proj.weight", "_bias")

    def tensors() -> Iterator[Tensor]:
        for name, dimensions in model_from_config(config).shapes():
            small = len(dimensions) < 2 or name.endswith(small_ones)
            format_name = "f32" if small else next(f for end, f in by_end.items() if name.endswith(end))
            affine = {"scale": "bf16", "bias": "bf16"} if format_name.startswith("affine") else {}
            stack = ".experts." in name and format_name == "nvfp4"
            parts = {"global_scale": (_experts(config),)} if stack else {}
            yield Tensor(name, dimensions, format_name, nothing_to_read, affine, part_shapes=parts)

    return Checkpoint("random", "safetensors", (), config, {t.name: t for t in tensors()}, lambda _folder: None)


def _experts(config: Mapping[str, Any]) -> int:
    """How many experts a layer has."""
    keys = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    return next(config[key] for key in keys if config.get(key))


def make_bundle(
    shape: Shape, format_name: str, out: Path, context: int, target: str, activations: Activations
) -> Bundle:
    """Trace and compile; the manifest says where each weight will lie in the archive."""
    bundle = uncompiled_bundle(
        random_checkpoint(shape.config(context), format_name), out, context, ENTRIES, activations
    )
    compile_bundle(bundle, parse_target(target), activations="f32", keep_intermediates=None, say=print)
    (out / "formats.json").write_text(json.dumps({"format": format_name, "known": format_name in FORMATS}))
    return bundle


def uncompiled_bundle(
    checkpoint: Checkpoint,
    out: Path,
    context: int,
    entries: Mapping[str, tuple[Kind, int]],
    activations: Activations = "f32",
) -> Bundle:
    """Trace a checkpoint of shapes; the manifest says where each weight will lie in the archive."""
    model, kv, weights = planned(checkpoint, context=context, dtype="auto", kv_dtype="f16", activations=activations)
    shapes = {name: w.traced() for name, w in weights.items()}
    traced = trace(model, shapes, kv, entries, activations=activations)
    tensors = {n: t for name, w in weights.items() if name in traced.used for n, t in w.group(name).tensors.items()}
    header, offsets, size = _layout(tensors)
    parameters = {
        name: Parameter(dtype=dtype, shape=dims, offset=len(header) + offsets[name], length=_nbytes(dims, dtype))
        for name, (dims, dtype) in tensors.items()
    }
    assert len(header) % PAGE == 0
    (out / WEIGHTS).parent.mkdir(parents=True, exist_ok=True)
    (out / PROGRAM).write_text(traced.program)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        name=out.name,
        family=checkpoint.config["model_type"],
        config=checkpoint.config,
        context=kv.blocks * kv.block_size,
        vocab_size=model.vocab_size,
        weight_formats=dict(Counter(w.format for w in weights.values() if w.format in FORMATS)),
        entry_points=traced.entry_points,
        kv_cache=kv,
        parameters=parameters,
        weights_bytes=len(header) + size,
        weights_sha256="0" * 64,  # random
        program_sha256=hashlib.sha256(traced.program.encode()).hexdigest(),
        custom_ops=traced.custom_ops,
        container="random",
        source="random",
        source_files=(),
        versions={},
        activations=activations,
    )
    write_record(out / MANIFEST, manifest)
    quantized = {name: w.format for name, w in weights.items() if w.format in FORMATS}
    (out / FORMATS_RECORD).write_text(json.dumps(quantized))
    return Bundle(out, manifest)
