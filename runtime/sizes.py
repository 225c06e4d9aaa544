"""Sizes as people write and read them. 1 GiB is 2^30 bytes."""

from __future__ import annotations

import re

from ..errors import StrixhloError

GIB = 1 << 30
MIB = 1 << 20
_UNITS = {"": 1, "k": 10, "m": 20, "g": 30, "t": 40}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """ "24G", "24GiB", "512M", "1.5 GB" or bytes -> bytes, units as powers of 1024; StrixhloError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if not found or float(found[1]) <= 0:
        raise StrixhloError(f"size {text!r} is not understood; write it as 24G, 512M or a number of bytes")
    unit = found[2].lower()
    return int(float(found[1]) * (1 << _UNITS[unit] if unit else 1))


def optional_size(text: str | None) -> int | None:
    """The same for an option that may be left out."""
    return None if text is None else parse_size(text)


def size(nbytes: int) -> str:
    """12.3 GiB, 4.0 MiB, 512 B."""
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(nbytes) >= 1 << bits:
            tenths = (abs(nbytes) * 10 + (1 << bits - 1)) >> bits  # in whole numbers, which have no largest one
            return f"{'-' * (nbytes < 0)}{tenths // 10}.{tenths % 10} {unit}"
    return f"{nbytes} B"
