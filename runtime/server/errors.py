"""Errors in OpenAI's form: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError


class ApiError(Exception):
    """An answer with this HTTP status. `kind` is OpenAI's error type, `code` their short name for it."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.code, self.param = status, message, kind, code, param
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


Place = tuple[int | str, ...]  # keys and indices from a body's root


def bad_request(error: ValidationError, place: Callable[[Place], Place] = lambda where: where) -> ApiError:
    """The first fault of a body that does not fit its schema. place: where it lies in the body that was sent, if what
    was checked was made of another."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    # Of a field with alternatives each one complains: what has the right type says more than what has not.
    same = [fault for fault in faults if fault["loc"][:1] == faults[0]["loc"][:1]]
    first = next((fault for fault in same if not fault["type"].endswith("_type")), faults[0])
    where = ".".join(str(part) for part in (place(first["loc"]) if first["loc"] else ()))[:200]
    what = "the body is not valid JSON" if first["type"] == "json_invalid" else "invalid value"
    return ApiError(400, f"{what}{f' at {where}' if where else ''}: {first['msg']}", param=where or None)
