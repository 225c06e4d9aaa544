"""One call written as a JSON object, `{"name": "f", "arguments": {...}}`, read while it comes.

The arguments are given out as the model writes them, from the moment the name is known. Numbers, literals and the
arguments' inside are not validated: what the model wrote is what the client gets, and a client checks it anyhow.
"""

from __future__ import annotations

import json

ARGUMENTS = ("arguments", "parameters")
MAX_HEAD = 65_536  # characters without a name after which this is no call


class JsonCall:
    """Feed text; `name` is set once known, `take` gives the new part of the arguments, `rest` what follows the object.

    `failed`: this is no call object; `raw` holds all that was fed.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.failed = False
        self.rest: str | None = None
        self.raw = ""
        self._at = 0  # next character to look at
        self._depth = 0
        self._string = self._escape = False
        self._string_began = 0
        self._key: str | None = None  # top-level key whose value is being read
        self._value_began: int | None = None
        self._arguments_began: int | None = None
        self._arguments_end: int | None = None
        self._taken = 0

    def feed(self, text: str) -> None:
        """More text."""
        self.raw += text
        while self._at < len(self.raw) and not self.failed and self.rest is None:
            self._step(self.raw[self._at])
            self._at += 1
        if self.name is None and self._at > MAX_HEAD:
            self.failed = True

    @property
    def done(self) -> bool:
        """The object has ended."""
        return self.rest is not None

    def take(self) -> str:
        """The part of the arguments that was not taken yet; "{}" at the end of a call that has none."""
        if self.name is None:
            return ""
        if self._arguments_began is None:
            return self._once("{}") if self.done else ""
        if self.raw[self._arguments_began] == '"':  # the object as a string: only whole it can be decoded
            return self._once(self._decoded()) if self._arguments_end is not None else ""
        value = self.raw[self._arguments_began : self._arguments_end or self._at].rstrip()
        new, self._taken = value[self._taken :], max(self._taken, len(value))
        return new

    def _once(self, text: str) -> str:
        new, self._taken = text[self._taken :], len(text)
        return new

    def _decoded(self) -> str:
        value = self.raw[self._arguments_began : self._arguments_end]
        try:
            return str(json.loads(value))
        except ValueError:
            return value

    def _step(self, c: str) -> None:
        if self._string:
            if self._escape:
                self._escape = False
            elif c == "\\":
                self._escape = True
            elif c == '"':
                self._string = False
                self._string_ended()
            return
        if self._depth == 0:
            if c == "{":
                self._depth = 1
            elif not c.isspace():
                self.failed = True
            return
        if self._depth == 1 and self._key is not None and self._value_began is None and not c.isspace() and c != ":":
            self._value_began = self._at
            if self._key in ARGUMENTS:
                self._arguments_began = self._at
        if c == '"':
            self._string, self._string_began = True, self._at
        elif c in "{[":
            self._depth += 1
        elif c in "}]":
            self._depth -= 1
            if self._depth == 0:
                self._value_ended()
                self.rest = self.raw[self._at + 1 :]
                self.failed = self.name is None
        elif c == "," and self._depth == 1:
            self._value_ended()

    def _string_ended(self) -> None:
        if self._depth == 1 and self._key is None:
            self._key = self._text(self._string_began)
        elif self._depth == 1 and self._key == "name":
            self.name = self._text(self._string_began)

    def _text(self, began: int) -> str:
        try:
            return str(json.loads(self.raw[began : self._at + 1], strict=False))
        except ValueError:
            return ""

    def _value_ended(self) -> None:
        if self._key in ARGUMENTS:
            self._arguments_end = self._at
        self._key = self._value_began = None
