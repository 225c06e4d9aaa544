"""Random weights for a manifest: values of ordinary size, so that nothing becomes infinite on the way."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from strixhlo.bundle import WEIGHTS, Manifest, Parameter

FORMATS_RECORD = "weight_formats.json"  # in a bundle's folder: name of a quantized weight -> its format
BLOCK = 1 << 26  # bytes of random numbers that are repeated: beyond any cache, and quickly made
WRITERS = 8  # threads: one alone took 9.5 s for 16 GB


def write_weights(folder: Path, manifest: Manifest, place: Path) -> None:
    """The archive of a bundle in `folder`, written to `place` (a disk or memory with room) and linked."""
    archive = folder / WEIGHTS
    archive.unlink(missing_ok=True)
    target = place / f"{folder.name}.weights"
    formats = json.loads((folder / FORMATS_RECORD).read_text())
    blocks: dict[str, np.ndarray] = {}
    with target.open("wb") as file, ThreadPoolExecutor(WRITERS) as pool:
        file.truncate(manifest.weights_bytes)
        writing = []
        for name, parameter in sorted(manifest.parameters.items(), key=lambda item: item[1].offset):
            kind = _kind(formats, name, parameter)
            if kind not in blocks:
                blocks[kind] = _values(kind, np.random.default_rng(len(blocks)))
            writing.append(pool.submit(_write, file.fileno(), parameter, blocks[kind]))
        for done in writing:
            done.result()
    archive.symlink_to(target.resolve())


def _write(descriptor: int, parameter: Parameter, block: np.ndarray) -> None:
    """The block, again and again, where a parameter lies."""
    written = 0
    while written < parameter.length:
        piece = block[: parameter.length - written].data
        written += os.pwrite(descriptor, piece, parameter.offset + written)


def _kind(formats: Mapping[str, str], name: str, parameter: Parameter) -> str:
    """Which values a part of a weight gets: the format's name and the part's."""
    weight, _, part = name.rpartition(".")
    if name.startswith("rope."):
        return "f32 angle"
    if part == "dense":
        return f"{parameter.dtype} dense" if len(parameter.shape) > 1 else "f32 norm"
    return f"{formats[weight]} {parameter.dtype} {part}"


def _values(kind: str, rng: np.random.Generator) -> np.ndarray:
    """uint8 [BLOCK]."""
    words = kind.split(" ")
    count = BLOCK // 4
    if kind == "f32 norm":
        made = np.ones(count, np.float32)
    elif kind == "f32 angle":
        made = rng.uniform(-1, 1, count).astype(np.float32)
    elif words[-1] == "dense":
        made = _as_type(rng.standard_normal(count, np.float32) * 0.02, words[0])
    else:
        made = _part(*words, rng)  # type: ignore[misc]
    data = made.view(np.uint8).reshape(-1)
    return np.resize(data, BLOCK)


def _part(format_name: str, dtype: str, part: str, rng: np.random.Generator) -> np.ndarray:
    """Codes are any bits, but for E4M3, which must not be NaN; scales make weights of about 0.02."""
    raw = rng.integers(0, 256, BLOCK, np.uint8)
    e4m3 = format_name.startswith(("fp8", "mxfp8"))
    if part in ("codes", "high"):
        return raw & np.uint8(0xBF) if e4m3 else raw  # below 2 in magnitude
    if dtype == "i8":
        if format_name.startswith("mxfp"):
            return 119 + raw % 3  # E8M0: 2^-8 to 2^-6
        return 0x28 + raw % 16 if format_name == "nvfp4" else 1 + raw % 31  # E4M3; integers of K-quants
    size = {"global_scale": 0.02, "super_scale": 1e-4, "super_minimum": -1e-4, "minimum": -0.03, "bias": -0.03}
    middle = size.get(part, 2e-4 if "8" in format_name and not e4m3 else 4e-3)
    return _as_type(rng.uniform(0.7, 1.3, BLOCK // 4).astype(np.float32) * np.float32(middle), dtype)


def _as_type(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16 if dtype == "f16" else np.float32)
