"""One line of `strixhlo doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and, where it is not ok, what to do. skip: it does not apply here, or was not
    run, for the reason in `text`."""

    name: str
    status: Status
    text: str
    fix: str = ""


def ok(name: str, text: str) -> Check:
    """All is well."""
    return Check(name, "ok", text)


def warn(name: str, text: str, fix: str) -> Check:
    """It works, but not as it could."""
    return Check(name, "warn", text, fix)


def fail(name: str, text: str, fix: str) -> Check:
    """It does not work until it is fixed."""
    return Check(name, "fail", text, fix)


def skip(name: str, text: str) -> Check:
    """Not looked at, for a reason."""
    return Check(name, "skip", text)
