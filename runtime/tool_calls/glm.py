"""GLM 4.5 and later: `<tool_call>f\\n<arg_key>k</arg_key>\\n<arg_value>v</arg_value>...</tool_call>`.

Source: the chat template of GLM-4.5. A value is JSON, except where the tool's schema says that it is a string.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .markers import split_at_marker
from .pieces import CallArguments, CallBegin, Content, Piece, merged
from .step_parser import StepParser

BEGIN, END = "<tool_call>", "</tool_call>"
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


class GlmParser(StepParser):
    """Content outside the markers; arguments are given out value by value."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = [t.get("function") or {} for t in tools]
        self._schemas = {f.get("name"): (f.get("parameters") or {}).get("properties") or {} for f in functions}
        super().__init__()
        self._mode = "content"  # content, name, between, key, before_value, value
        self._name = self._key = ""
        self._calls = self._values = 0

    def finish(self) -> list[Piece]:
        """See OutputParser."""
        held, self._held = self._held, ""
        if self._mode == "content":
            return merged([Content("" if self._calls and not held.strip() else held)])
        return merged([Content(BEGIN + held)]) if self._mode == "name" else []

    def _step(self, out: list[Piece]) -> bool:
        wanted = {
            "content": (BEGIN,),
            "name": (KEY, END, "\n"),
            "between": (KEY, END),
            "key": (KEY_END,),
            "before_value": (VALUE,),
            "value": (VALUE_END,),
        }[self._mode]
        whole = self._held
        before, marker, after = split_at_marker(whole, wanted)
        if self._mode == "content":
            held = before[len(before.rstrip()) :]  # white space before a call is not content
            out.append(Content(before.rstrip() if not (self._calls and not before.strip()) else ""))
            self._held = after if marker else held + after
        if marker is None:
            return False
        if self._mode == "name" and marker == "\n" and not before.strip():
            self._held = after
            return True
        self._held = after
        self._reached(marker, before, out)
        return True

    def _reached(self, marker: str, before: str, out: list[Piece]) -> None:
        if self._mode == "content":
            self._mode = "name"
            return
        if self._mode == "name":
            self._name, self._values, self._mode = before.strip(), 0, "between"
            out.append(CallBegin(self._calls, self._name))
        if marker == KEY:
            self._mode = "key"
        elif marker == KEY_END:
            self._key, self._mode = before.strip(), "before_value"
        elif marker == VALUE:
            self._mode = "value"
        elif marker == VALUE_END:
            prefix = ", " if self._values else "{"
            out.append(CallArguments(self._calls, f"{prefix}{json.dumps(self._key)}: {self._value(before)}"))
            self._values += 1
            self._mode = "between"
        elif marker == END:
            out.append(CallArguments(self._calls, "}" if self._values else "{}"))
            self._calls += 1
            self._mode = "content"

    def _value(self, text: str) -> str:
        """The value as JSON text."""
        schema = self._schemas.get(self._name, {}).get(self._key)
        if not (isinstance(schema, Mapping) and schema.get("type") == "string"):
            try:
                return json.dumps(json.loads(text), ensure_ascii=False)
            except (ValueError, RecursionError):
                pass  # not JSON: then it is a string
        return json.dumps(text, ensure_ascii=False)
