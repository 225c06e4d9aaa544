"""A text that a person names: `compare --text`, `eval --perplexity`."""

from __future__ import annotations

from pathlib import Path

from .errors import StrixhloError

LARGEST_TEXT = 256 << 20  # bytes: it is tokenized as a whole


def text_of(path: Path) -> str:
    """The contents of a UTF-8 file; StrixhloError for devices, pipes, what is too large, and other encodings."""
    if path.is_char_device() or path.is_fifo() or path.stat().st_size > LARGEST_TEXT:
        raise StrixhloError(f"{path}: not a file of at most {LARGEST_TEXT >> 20} MiB; give a UTF-8 text")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise StrixhloError(f"{path}: is not UTF-8 text (byte {error.start}); convert it first") from None
