"""A conversation on disk: the messages as JSON, and beside them the KV cache, so that going on needs no prefill."""

from __future__ import annotations

import json
from pathlib import Path

from .errors import StrixhloError
from .replacement import atomic_write
from .text_file import text_of

Messages = list[dict[str, str]]


def cache_path(path: Path) -> Path:
    """Where the KV cache of a conversation lies: chat.json -> chat.json.kv"""
    return path.with_name(f"{path.name}.kv")


def save_messages(path: Path, messages: Messages) -> None:
    """Write a conversation."""
    try:
        atomic_write(path, (json.dumps(messages, ensure_ascii=False, indent=1) + "\n").encode())
    except (OSError, UnicodeEncodeError) as error:
        raise StrixhloError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def load_messages(path: Path) -> Messages:
    """Read a conversation that `save_messages` wrote."""
    try:
        value = json.loads(text_of(path))
    except OSError as error:
        raise StrixhloError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise StrixhloError(f"{path}: is not JSON: {error}") from None
    if not isinstance(value, list) or not all(
        isinstance(m, dict) and set(m) == {"role", "content"} and all(isinstance(v, str) for v in m.values())
        for m in value
    ):
        raise StrixhloError(f"{path}: is not a list of messages with a role and a content")
    return value
