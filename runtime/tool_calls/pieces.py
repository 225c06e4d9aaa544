"""What parsers give out: pieces of a message in the order in which they became certain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text of the model's thinking."""

    text: str


@dataclass(frozen=True)
class CallBegin:
    """A tool call has begun; `index` counts the calls of a message from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A fragment of a call's arguments; together the fragments are its JSON text, as far as the model came."""

    index: int
    text: str


Piece = Content | Reasoning | CallBegin | CallArguments


class OutputParser(Protocol):
    """Turns generated text into pieces, however the text was cut."""

    def push(self, text: str) -> list[Piece]:
        """The pieces that are certain now."""
        ...

    def finish(self) -> list[Piece]:
        """What was held back, once no more text comes."""
        ...


class PlainParser:
    """Everything is content."""

    def push(self, text: str) -> list[Piece]:
        """The text itself."""
        return [Content(text)] if text else []

    def finish(self) -> list[Piece]:
        """Nothing is ever held back."""
        return []


def merged(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring texts of one kind joined, empty ones left out."""
    out: list[Piece] = []
    for piece in pieces:
        last = out[-1] if out else None
        if isinstance(piece, CallBegin):
            out.append(piece)
        elif isinstance(piece, CallArguments) and isinstance(last, CallArguments) and last.index == piece.index:
            out[-1] = CallArguments(piece.index, last.text + piece.text)
        elif isinstance(piece, Content) and isinstance(last, Content):
            out[-1] = Content(last.text + piece.text)
        elif isinstance(piece, Reasoning) and isinstance(last, Reasoning):
            out[-1] = Reasoning(last.text + piece.text)
        elif piece.text:
            out.append(piece)
    return out
