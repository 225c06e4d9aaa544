"""Opens a checkpoint from wherever the user has it."""

from __future__ import annotations

from pathlib import Path

from ...errors import StrixhloError
from ...progress import Stages
from .contents import Checkpoint, Tensor
from .gguf_checkpoint import open_gguf
from .gguf_parts import PART
from .hub import HUB_ID, SILENT, download
from .safetensors import open_safetensors

__all__ = ["Checkpoint", "Tensor", "open_checkpoint"]


def open_checkpoint(source: str, progress: Stages = SILENT) -> Checkpoint:
    """Open a GGUF file, a directory of safetensors + config.json, or a Hugging Face hub id.

    Weights are read lazily: the files must stay in place while the checkpoint is in use. progress: of a download, in
    bytes. StrixhloError for anything else, naming what was looked for.
    """
    path = Path(source).expanduser()
    if not path.exists():
        if HUB_ID.fullmatch(source) is None or path.suffix in (".gguf", ".safetensors"):
            raise StrixhloError(
                f"{source}: no such file or directory, and not a hub id (owner/name); "
                f"give a GGUF file, a directory with config.json and *.safetensors, or a hub id"
            )
        path = download(source, progress)
    if path.suffix == ".safetensors":
        raise StrixhloError(f"{source}: give the directory that also holds config.json, not a safetensors file")
    if path.is_file():
        return open_gguf(path)
    if not path.is_dir():
        raise StrixhloError(f"{source}: neither a file nor a directory; copy what a pipe gives into a file first")
    return _open_directory(path)


def _open_directory(directory: Path) -> Checkpoint:
    """safetensors + config.json, or a directory whose only model is a GGUF file."""
    if (directory / "config.json").is_file():
        return open_safetensors(directory)
    ggufs = sorted(directory.glob("*.gguf"))
    if len(ggufs) == 1 or (ggufs and len({PART.sub(r"\1 \3", f.name) for f in ggufs}) == 1):  # all parts of one model
        return open_gguf(ggufs[0])
    if ggufs:
        raise StrixhloError(
            f"{directory}: {len(ggufs)} GGUF files; give one of them: {', '.join(f.name for f in ggufs)}"
        )
    raise StrixhloError(f"{directory}: neither config.json with *.safetensors nor a GGUF file in this directory")
