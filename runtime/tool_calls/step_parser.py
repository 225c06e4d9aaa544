"""What parsers have in common that read the text they hold step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod

from .pieces import Piece, merged


class StepParser(ABC):
    """Holds text back until it is certain what it is."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> list[Piece]:
        """See OutputParser."""
        self._held += text
        out: list[Piece] = []
        while self._held and self._step(out):
            pass
        return merged(out)

    @abstractmethod
    def _step(self, out: list[Piece]) -> bool:
        """Take from the held text what is certain; False: more text must come first."""
