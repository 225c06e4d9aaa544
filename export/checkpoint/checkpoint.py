"""Opens a checkpoint from wherever the user has it."""

from __future__ import annotations

from pathlib import Path

from ...errors import StrixhloError
from .contents import Checkpoint, Tensor
from .gguf_checkpoint import open_gguf

__all__ = ["Checkpoint", "Tensor", "open_checkpoint"]


def open_checkpoint(source: str) -> Checkpoint:
    """Open a GGUF file, a directory of safetensors + config.json, or a Hugging Face hub id.

    Weights are read lazily; the source must stay in place while the checkpoint is used. StrixhloError for anything else.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return open_gguf(path)
    raise StrixhloError(f"{source}: neither a GGUF file, a directory with config.json, nor a hub id")
