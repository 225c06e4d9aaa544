"""Llama 3.x: the whole message is `{"name": "f", "parameters": {...}}`, perhaps after `<|python_tag|>`; several with ;.

Source: Meta's prompt format of Llama 3.1 ("JSON based tool calling"). The same parser reads a call that structured
output forces (tool_choice "required"), where the message is nothing but the call.
"""

from __future__ import annotations

from collections.abc import Set

from .json_call import JsonCall
from .pieces import CallArguments, CallBegin, Content, Piece, merged

TAG = "<|python_tag|>"
ARGUMENTS = "parameters"


class Llama3Parser:
    """A message that begins with an object with the name of a given tool is calls; any other is content."""

    def __init__(self, tool_names: Set[str]) -> None:
        self._names = tool_names
        self._head: str | None = ""  # what came before it was clear what this is; None: it is content
        self._call: JsonCall | None = None
        self._announced = False
        self._calls = 0

    def push(self, text: str) -> list[Piece]:
        """See OutputParser."""
        out: list[Piece] = []
        if self._head is None:
            return [Content(text)] if text else []
        if self._call is None:
            self._head += text
            body = self._head.lstrip()
            if not body or (TAG.startswith(body) and body != TAG):
                return []
            body = body.removeprefix(TAG).lstrip()
            if self._calls:
                body = body.lstrip("; \n")
            if not body:
                return []
            if body[0] != "{":
                return self._as_content()
            text, self._call, self._announced = body, JsonCall(), False
        self._read(self._call, text, out)
        return merged(out)

    def finish(self) -> list[Piece]:
        """See OutputParser."""
        if self._head is None or self._announced:
            return []
        return [] if self._calls and not self._head.strip("; \n") else self._as_content()

    def _as_content(self) -> list[Piece]:
        text, self._head = self._head or "", None
        self._call = None
        return merged([Content(text)])

    def _read(self, call: JsonCall, text: str, out: list[Piece]) -> None:
        if self._head is not None and call.raw:
            self._head += text
        call.feed(text)
        if not self._announced and (call.failed or (call.name is not None and call.name not in self._names)):
            out += self._as_content()
            return
        if call.name is not None and not self._announced:
            out.append(CallBegin(self._calls, call.name))
            self._announced = True
        out.append(CallArguments(self._calls, call.take()))
        if call.done:
            self._calls += 1
            self._call, self._announced, self._head = None, False, ""
            out += self.push(call.rest or "")
