"""Hermes and Qwen: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, any number, between or after content.

Source: NousResearch's Hermes function-calling format, and the chat templates of Qwen 2.5 and Qwen 3.
"""

from __future__ import annotations

from .json_call import JsonCall
from .markers import split_at_marker
from .pieces import CallArguments, CallBegin, Content, Piece, merged
from .step_parser import StepParser

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesParser(StepParser):
    """Content outside the markers, a call inside; text inside them that is no call object is content too."""

    def __init__(self) -> None:
        super().__init__()
        self._space = ""  # white space that is content only if content follows
        self._call: JsonCall | None = None
        self._after = False  # the call's object has ended, its closing marker has not come
        self._calls = 0
        self._announced = False

    def finish(self) -> list[Piece]:
        """See OutputParser."""
        out: list[Piece] = []
        if self._call is not None and not self._announced:
            out.append(Content(self._space + BEGIN + self._call.raw))
        elif not self._after and self._call is None:
            self._content(self._held, out)
            if not self._calls:
                out.append(Content(self._space))
        self._held = ""
        return merged(out)

    def _step(self, out: list[Piece]) -> bool:
        """Consume what can be; whether to go on."""
        if self._call is not None:
            self._read_call(self._call, out)
            return bool(self._held)
        if self._after:
            _, marker, self._held = split_at_marker(self._held, (END, BEGIN))
            if marker is None:
                return False
            self._after = False
            if marker == BEGIN:
                self._begin()
            return True
        before, marker, self._held = split_at_marker(self._held, (BEGIN,))
        self._content(before, out)
        if marker is None:
            return False
        self._begin()
        return True

    def _begin(self) -> None:
        self._call, self._announced = JsonCall(), False

    def _content(self, text: str, out: list[Piece]) -> None:
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if self._calls and not kept.strip():
            return
        out.append(Content(kept))

    def _read_call(self, call: JsonCall, out: list[Piece]) -> None:
        call.feed(self._held)
        self._held = ""
        if call.failed:  # read it again as content, from where it can be told however the text was cut
            self._call, self._held = None, call.raw
            self._content(BEGIN, out)
            return
        if call.name is not None and not self._announced:
            out.append(CallBegin(self._calls, call.name))
            self._announced, self._space = True, ""
        out.append(CallArguments(self._calls, call.take()))
        if call.done:
            self._held, self._call, self._after = call.rest or "", None, True
            self._calls += 1
