"""What the user types in `strixhlo chat`: edited, with history, on a terminal; plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import StrixhloError

if TYPE_CHECKING:
    from prompt_toolkit.history import History


def line_reader() -> Callable[[], str | None]:
    """Gives the next message, None at the end."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        return _plain_line
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession("> ", history=_history(), key_bindings=keys)

    def read() -> str | None:
        while True:
            try:
                return session.prompt(prompt_continuation="  ")
            except KeyboardInterrupt:
                continue
            except EOFError:
                return None

    return read


def _plain_line() -> str | None:
    line = sys.stdin.buffer.readline() if sys.stdin else b""
    try:
        return line.decode().rstrip("\r\n") if line else None
    except UnicodeDecodeError as error:
        text = f"{line[:60]!r}{'...' if len(line) > 60 else ''}"
        raise StrixhloError(
            f"standard input is not UTF-8 text (byte {error.start} of {text}); convert it first"
        ) from None


def history_path() -> Path:
    """$XDG_STATE_HOME/strixhlo/chat_history"""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "strixhlo" / "chat_history"


def _history() -> History:
    """In a file that only the user can read; in memory where there is no place for one."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        path = history_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except (OSError, RuntimeError):  # RuntimeError: no home
        return InMemoryHistory()
    return FileHistory(str(path))
