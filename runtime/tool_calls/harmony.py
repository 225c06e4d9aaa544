"""gpt-oss's harmony format: messages with channels, of which `analysis` is reasoning and `final` is content.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
    <|message|>{...}<|call|>

Source: OpenAI's "harmony response format". The prompt ends with `<|start|>assistant`, so the text begins in a header.
"""

from __future__ import annotations

import re

from .markers import split_at_marker
from .pieces import CallArguments, CallBegin, Content, Piece, Reasoning, merged
from .step_parser import StepParser

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>", START)


class HarmonyParser(StepParser):
    """Needs the special tokens in its text."""

    def __init__(self) -> None:
        super().__init__()
        self._header: str | None = ""  # being read; None: inside a message
        self._channel = "final"
        self._recipient: str | None = None
        self._calls = -1

    def finish(self) -> list[Piece]:
        """See OutputParser."""
        out: list[Piece] = []
        if self._header is None:
            self._body(self._held, out)
        elif self._header + self._held and CHANNEL not in self._header + self._held:
            out.append(Content(self._header + self._held))  # a model that does not keep to the format
        self._held = ""
        return merged(out)

    def _step(self, out: list[Piece]) -> bool:
        if self._header is not None:
            before, marker, self._held = split_at_marker(self._held, (MESSAGE,))
            self._header += before
            if marker:
                self._begin(self._header, out)
            return marker is not None
        before, marker, self._held = split_at_marker(self._held, ENDS)
        self._body(before, out)
        if marker:
            self._header = ""
        return marker is not None

    def _begin(self, header: str, out: list[Piece]) -> None:
        channel = re.search(r"<\|channel\|>\s*(\w+)", header)
        recipient = re.search(r"to=(?:functions\.)?([\w.-]+)", header)
        self._header = None
        self._channel = channel[1] if channel else "final"
        self._recipient = recipient[1] if recipient else None
        if self._recipient:
            self._calls += 1
            out.append(CallBegin(self._calls, self._recipient))

    def _body(self, text: str, out: list[Piece]) -> None:
        if self._recipient:
            out.append(CallArguments(self._calls, text))
        elif self._channel == "analysis":
            out.append(Reasoning(text))
        else:
            out.append(Content(text))
