"""Typed access to the metadata of a GGUF file: a wrong or missing value is an error that names its key."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...errors import StrixhloError
from .gguf import GgufFile

_REQUIRED: Any = object()


def _fail(file: GgufFile, key: str, what: str) -> StrixhloError:
    return StrixhloError(f"{file.path}: {key} {what}; convert the model again")


def integer(file: GgufFile, key: str, default: int = _REQUIRED) -> int:
    """A count of at least 0. An array with one value per layer is accepted where all layers agree."""
    value = file.metadata.get(key, default)
    if value is _REQUIRED:
        raise _fail(file, key, "is missing")
    if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
        value = value[0].item()
    if isinstance(value, np.ndarray):
        raise StrixhloError(f"{file.path}: {key} differs between layers, which is not supported")
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _fail(file, key, f"is {value!r}, not a count")
    return value


def real(file: GgufFile, key: str, default: float = _REQUIRED) -> float:
    """A finite number. A float32 comes back as the shortest decimal that rounds to it (1e-05, not 9.99999975e-06)."""
    value = file.metadata.get(key, default)
    if value is _REQUIRED:
        raise _fail(file, key, "is missing")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _fail(file, key, f"is {value!r}, not a number")
    single = np.float32(value)
    return float(str(single)) if float(single) == value else float(value)


def text(file: GgufFile, key: str, default: str = _REQUIRED) -> str:
    """A string."""
    value = file.metadata.get(key, default)
    if value is _REQUIRED:
        raise _fail(file, key, "is missing")
    if not isinstance(value, str):
        raise _fail(file, key, "is not a string")
    return value


def boolean(file: GgufFile, key: str, default: bool) -> bool:
    """True or False."""
    value = file.metadata.get(key, default)
    if not isinstance(value, bool):
        raise _fail(file, key, f"is {value!r}, not a bool")
    return value


def strings(file: GgufFile, key: str) -> list[str]:
    """A list of strings."""
    value = file.metadata.get(key)
    if value is None:
        raise _fail(file, key, "is missing")
    if not isinstance(value, list):
        raise _fail(file, key, "is not a list of strings")
    return value


def numbers(file: GgufFile, key: str, count: int) -> np.ndarray | None:
    """An array of `count` numbers, or None where the key is missing."""
    value = file.metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or value.size != count:
        raise _fail(file, key, f"is not an array of {count} numbers")
    return value
