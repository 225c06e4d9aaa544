"""Mistral: `[TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]`, and from tokenizer v11 `[TOOL_CALLS]f[ARGS]{...}`.

Source: mistral-common's instruct tokenizers (v3 and v7: a list; v11 and v13: one marker a call, [CALL_ID] optional).
"""

from __future__ import annotations

from .json_call import JsonCall
from .markers import split_at_marker
from .pieces import CallArguments, CallBegin, Content, Piece, merged
from .step_parser import StepParser

BEGIN, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class MistralParser(StepParser):
    """Content up to the first marker; after it only calls."""

    def __init__(self) -> None:
        super().__init__()
        self._mode = "content"  # content, begun, list, name, arguments
        self._call = JsonCall()
        self._announced = False
        self._calls = 0

    def finish(self) -> list[Piece]:
        """See OutputParser."""
        out: list[Piece] = []
        if self._mode == "content":
            out.append(Content(self._held))
        elif self._mode == "name" and (name := self._held.strip()):
            out += [CallBegin(self._calls, name), CallArguments(self._calls, "{}")]
        self._held = ""
        return merged(out)

    def _step(self, out: list[Piece]) -> bool:
        return bool(getattr(self, f"_{self._mode}")(out))

    def _content(self, out: list[Piece]) -> bool:
        before, marker, self._held = split_at_marker(self._held, (BEGIN,))
        out.append(Content(before))
        if marker:
            self._mode = "begun"
        return marker is not None

    def _begun(self, _out: list[Piece]) -> bool:
        self._held = self._held.lstrip()
        if not self._held:
            return False
        self._mode = "list" if self._held[0] in "[{" else "name"
        return True

    def _list(self, out: list[Piece]) -> bool:
        """Objects between brackets and commas."""
        if not self._call.raw:
            self._held = self._held.lstrip("[], \n\t")
            if not self._held:
                return False
        self._call.feed(self._held)
        self._held = ""
        if self._call.name is not None and not self._announced:
            out.append(CallBegin(self._calls, self._call.name))
            self._announced = True
        out.append(CallArguments(self._calls, self._call.take()))
        if self._call.failed and not self._announced:
            self._held = self._call.raw  # read it again as content
            self._call, self._mode = JsonCall(), "content"
            return True
        elif self._call.done:
            self._held = self._call.rest or ""
            self._call, self._announced = JsonCall(), False
            self._calls += 1
            return bool(self._held)
        return False

    def _name(self, out: list[Piece]) -> bool:
        before, marker, after = split_at_marker(self._held, (ARGS, "{"))
        if marker is None:
            return False
        name = before.partition(CALL_ID)[0].strip()
        out.append(CallBegin(self._calls, name))
        self._held = after if marker == ARGS else marker + after
        self._mode = "arguments"
        return True

    def _arguments(self, out: list[Piece]) -> bool:
        before, marker, self._held = split_at_marker(self._held, (BEGIN,))
        out.append(CallArguments(self._calls, before))
        if marker:
            self._calls += 1
            self._mode = "begun"
        return marker is not None
