"""`<think>...</think>` before the answer (Qwen 3, DeepSeek, GLM, SmolLM3): reasoning, then another parser's text."""

from __future__ import annotations

from .markers import split_at_marker
from .pieces import OutputParser, Piece, Reasoning, merged

BEGIN, END = "<think>", "</think>"


class ThinkParser:
    """inside: the prompt ended with `<think>`, so the text begins with reasoning."""

    def __init__(self, rest: OutputParser, inside: bool) -> None:
        self._rest = rest
        self._mode = "reasoning" if inside else "start"  # start, reasoning, gap, rest
        self._held = ""
        self._space = ""
        self._said = False

    def push(self, text: str) -> list[Piece]:
        """See OutputParser."""
        if self._mode == "rest":
            return self._rest.push(text)
        self._held += text
        out: list[Piece] = []
        if self._mode == "start":
            body = self._held.lstrip()
            if BEGIN.startswith(body) and body != BEGIN:
                return []
            if body.startswith(BEGIN):
                self._mode, self._held = "reasoning", body[len(BEGIN) :]
            else:
                self._mode = "rest"
                held, self._held = self._held, ""
                return self._rest.push(held)
        if self._mode == "reasoning":
            before, marker, self._held = split_at_marker(self._held, (END,))
            self._reason(before, out)
            if marker:
                self._mode = "gap"
        if self._mode == "gap" and (body := self._held.lstrip()):
            self._mode, self._held = "rest", ""
            out += self._rest.push(body)
        return merged(out)

    def finish(self) -> list[Piece]:
        """See OutputParser."""
        out: list[Piece] = []
        if self._mode == "reasoning":
            self._reason(self._held, out)
        elif self._mode == "start":
            out += self._rest.push(self._held)
        self._held = ""
        return merged(out + self._rest.finish())

    def _reason(self, text: str, out: list[Piece]) -> None:
        """White space around the reasoning is left out."""
        text = self._space + text
        if not self._said:
            text = text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        self._said = self._said or bool(kept)
        out.append(Reasoning(kept))
