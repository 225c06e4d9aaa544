"""DRY: what would continue a repetition of earlier text is made less likely, the more the longer the repetition is.

The definition is its author's (p-e-w, text-generation-webui, pull request 5677). Where the text ends with n tokens that
stand earlier in it too, the token that followed them there loses multiplier * base ** (n - allowed_length), if n is
allowed_length or more; of several places the longest counts. Breakers (line ends, quotation marks) end a match, and are
never made less likely themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np

from .token_bytes import OPAQUE

LONGEST = 50  # a match is followed no further: that bounds the work and the exponent


class Breakers:
    """Which tokens of a vocabulary contain one of a request's breakers."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        """token_bytes: see `CanonicalBytes`; tokens that stand for nothing but themselves contain no text."""
        self._token_bytes = token_bytes
        self.mask = lru_cache(maxsize=16)(self._mask)

    @cached_property
    def _text(self) -> tuple[bytes, np.ndarray]:
        """All tokens, each ended by a byte that UTF-8 does not have, and where they end, int64 [vocabulary]."""
        texts = [b"" if t.startswith(OPAQUE) else t for t in self._token_bytes]
        return b"\xff".join(texts) + b"\xff", np.cumsum([len(t) + 1 for t in texts])

    def _mask(self, breakers: tuple[str, ...]) -> np.ndarray:
        """bool [vocabulary]"""
        text, ends = self._text
        result = np.zeros(len(ends), bool)
        for breaker in breakers:
            places = [found.start() for found in re.finditer(re.escape(breaker.encode()), text)]
            result[np.searchsorted(ends, places, side="right")] = True
        return result


def repetitions(ids: Sequence[int], breaks: np.ndarray) -> dict[int, int]:
    """token -> length of the longest repetition, at most LONGEST, that it would continue. breaks: bool [vocabulary]."""
    text = np.asarray(ids, np.int64)
    if text.size < 2 or breaks[text[-1]]:
        return {}
    ends = np.flatnonzero(text[:-1] == text[-1])
    ends = ends[~breaks[text[ends + 1]]]
    longest: dict[int, int] = {}
    for length in range(1, LONGEST + 1):
        longest |= dict.fromkeys(text[ends + 1].tolist(), length)
        if length == text.size or breaks[text[-1 - length]]:
            break
        ends = ends[ends >= length]
        ends = ends[text[ends - length] == text[-1 - length]]
        if not ends.size:
            break
    return longest
