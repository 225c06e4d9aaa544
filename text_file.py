"""A text that a person names: `compare --text`, `eval --perplexity`, `run --json-schema`, a saved conversation."""

from __future__ import annotations

from pathlib import Path

from .errors import StrixhloError

LARGEST_TEXT = 256 << 20  # bytes: it is held, and mostly tokenized, as a whole


def text_of(path: Path) -> str:
    """The contents of a UTF-8 file or pipe; StrixhloError for what is too large or never ends, and other encodings."""
    with path.open("rb") as file:
        data = file.read(LARGEST_TEXT + 1)
    if len(data) > LARGEST_TEXT:
        raise StrixhloError(f"{path}: not a file of at most {LARGEST_TEXT >> 20} MiB; give a UTF-8 text")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise StrixhloError(f"{path}: is not UTF-8 text (byte {error.start}); convert it first") from None
