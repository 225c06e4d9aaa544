"""Whether a checkpoint that is named with --source can be what a bundle was exported from."""

from __future__ import annotations

from pathlib import Path

from ..bundle import Manifest


def other_source(manifest: Manifest, source: Path) -> bool:
    """By the sizes of the files: a GGUF file's, or those of a folder's safetensors."""
    files = sorted(source.glob("*.safetensors")) if source.is_dir() else [source]
    weights = [f.bytes for f in manifest.source_files if f.name.endswith((".safetensors", ".gguf"))]
    return sorted(f.stat().st_size for f in files) != sorted(weights)
