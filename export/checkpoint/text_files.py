"""Text and JSON files that a user gave or asked for: what goes wrong becomes an error that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import StrixhloError


def read_text(path: Path) -> str:
    """The text of a UTF-8 file; StrixhloError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StrixhloError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise StrixhloError(f"{path}: not UTF-8 text; download it again") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object; StrixhloError where it cannot be read or holds something else."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise StrixhloError(f"{path}: not valid JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise StrixhloError(f"{path}: not a JSON object; download it again")
    return content


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file; StrixhloError where that is not possible."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StrixhloError(f"{path}: cannot be written: {error.strerror or error}") from error
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can spell
        raise StrixhloError(f"{path}: cannot be written: the checkpoint's text is not valid Unicode") from error


def write_json(path: Path, content: dict[str, Any], indent: int | None = 2) -> None:
    """Write an object as JSON, readable unless indent is None."""
    write_text(path, json.dumps(content, ensure_ascii=False, indent=indent) + "\n")
