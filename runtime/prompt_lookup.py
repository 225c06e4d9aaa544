"""Drafts out of the text itself: where the last tokens stood before, what followed them there.

Saxena, "Prompt Lookup Decoding", 2023. It costs next to nothing, and hits where an answer repeats its prompt: code that
is edited, documents that are quoted, lists, JSON.
"""

from __future__ import annotations

from collections.abc import Sequence

NGRAM = 3  # tokens that must be the same


class PromptLookup:
    """Of one sequence, whose ids only ever grow."""

    rest = 0

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> index of what last followed it
        self._indexed = NGRAM

    def offer(self, ids: Sequence[int]) -> int:
        """How many tokens `propose` can give; 0 where the last ones are new."""
        for i in range(self._indexed, len(ids)):
            self._after[tuple(ids[i - NGRAM : i])] = i
        self._indexed = max(self._indexed, len(ids))
        return len(ids) if tuple(ids[-NGRAM:]) in self._after else 0

    def propose(self, ids: Sequence[int], count: int, _choose: object = None) -> list[int]:
        """The `count` tokens that followed; a place so near that they run out goes on as the repetition that it is."""
        start = self._after[tuple(ids[-NGRAM:])]
        period = len(ids) - start
        return [ids[start + i % period] for i in range(count)]

    def close(self) -> None:
        """Nothing is held outside of it."""
