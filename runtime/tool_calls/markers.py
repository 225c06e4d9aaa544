"""Finds the first of several markers in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


def split_at_marker(text: str, markers: Sequence[str]) -> tuple[str, str | None, str]:
    """(before, marker, after) at the first marker; without one (certain, None, held).

    `held` is the longest end of the text that may still become a marker. Of markers that begin at one place the
    longest counts.
    """
    found = [(at, -len(m), m) for m in markers if (at := text.find(m)) >= 0]
    if found:
        at, _, marker = min(found)
        return text[:at], marker, text[at + len(marker) :]
    keep = possible_beginning(text, markers)
    return text[: len(text) - keep], None, text[len(text) - keep :]


def possible_beginning(text: str, markers: Sequence[str]) -> int:
    """How many characters at the end of the text may be the beginning of a marker."""
    longest = max((len(m) for m in markers), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(m.startswith(text[-size:]) for m in markers):
            return size
    return 0
