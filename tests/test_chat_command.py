"""`strixhlo chat`: in a pseudo-terminal as a user types, and with lines on standard input."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from strixhlo.bundle import Bundle
from strixhlo.chat_record import load_messages

COMMAND = [sys.executable, "-m", "strixhlo.cli", "chat"]


@pytest.fixture(scope="module")
def bundle(smollm2: Callable[[str], Bundle]) -> str:
    return str(smollm2("int8").path)


class Terminal:
    """A process in a pseudo-terminal: what it shows, and keys for it."""

    def __init__(self, options: list[str], folder: Path) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
        environment |= {"XDG_STATE_HOME": str(folder / "state"), "PROMPT_TOOLKIT_NO_CPR": "1"}
        environment.pop("NO_COLOR", None)
        code = "import fcntl, runpy, signal, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        code += " signal.signal(signal.SIGINT, signal.default_int_handler);"  # a background job would ignore it
        code += " runpy.run_module('strixhlo.cli', run_name='__main__', alter_sys=True)"  # so that Ctrl-C is a signal
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "chat", *options],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""
        self._seen = 0

    def wait(self, pattern: str, seconds: float = 120) -> re.Match[str]:
        """Until the pattern is shown behind what was found last."""
        end = time.monotonic() + seconds
        while not (found := re.compile(pattern, re.DOTALL).search(self.shown, self._seen)):
            ready, _, _ = select.select([self._master], [], [], max(0, end - time.monotonic()))
            assert ready, f"{pattern!r} was not shown: {self.shown[self._seen :]!r}"
            try:
                self.shown += os.read(self._master, 65536).decode(errors="replace")
            except OSError:  # the other side is closed
                raise AssertionError(f"{pattern!r} was not shown: {self.shown[self._seen :]!r}") from None
        self._seen = found.end()
        return found

    def type(self, keys: str) -> None:
        """As from a keyboard; Enter is \\r."""
        os.write(self._master, keys.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def test_in_a_terminal(bundle: str, tmp_path: Path) -> None:
    options = ["--temp", "0", "--threads", "1", "-n", "400", "--repetition-penalty", "1.3"]
    terminal = Terminal([bundle, *options], tmp_path)
    try:
        prompt = r"\x1b\[\?2004h"  # bracketed paste is switched on: keys are read
        terminal.wait(prompt)
        terminal.type("Write a very long story about the sea.\r")
        terminal.wait(r"\x1b\[2K.*\w{3}")  # drawn anew: it streams
        terminal.type("\x03")
        terminal.wait("stopped")
        terminal.wait(prompt)
        terminal.type("/save story.json\r")
        saved_tokens = int(terminal.wait(r"2 messages, (\d+) tokens of cache")[1])
        assert saved_tokens >= 32 and saved_tokens % 16 == 0
        terminal.wait(prompt)
        terminal.type("/system Answer in one word.\r")
        terminal.wait(prompt)
        terminal.type("Name a colour.\x1b\rOnly one.\r")  # Alt-Enter
        terminal.wait(r"tokens.* at [\d.]+ tok/s, context \d+ of \d+, \d+ reused")
        terminal.wait(prompt)
        terminal.type("/save colour.json\r")
        terminal.wait(r"3 messages")
        terminal.wait(prompt)
        terminal.type("/reset\r")
        terminal.wait(prompt)
        terminal.type("/save reset.json\r")
        terminal.wait(r"1 messages")
        terminal.wait(prompt)
        terminal.type("/load story.json\r")
        terminal.wait(rf"2 messages, {saved_tokens} tokens of cache")
        terminal.wait(prompt)
        terminal.type("\x1b[A\r")  # Up: once more
        terminal.wait(rf"2 messages, {saved_tokens} tokens of cache")
        terminal.wait(prompt)
        terminal.type("Thanks, stop now.\r")
        terminal.wait(r"context \d+ of \d+, (\d+) reused|stopped")
        terminal.wait(prompt)
        terminal.type("\x04")
        assert terminal.process.wait(240) == 0
    finally:
        terminal.close()
    assert "Traceback" not in terminal.shown
    story = load_messages(tmp_path / "story.json")
    assert [m["role"] for m in story] == ["user", "assistant"] and story[1]["content"]
    colour = load_messages(tmp_path / "colour.json")
    assert colour[:2] == [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "Name a colour.\nOnly one."},
    ]
    assert load_messages(tmp_path / "reset.json") == colour[:1]
    history = tmp_path / "state" / "strixhlo" / "chat_history"
    assert "Thanks, stop now." in history.read_text() and history.stat().st_mode & 0o077 == 0


def test_by_lines_a_loaded_conversation_needs_no_prefill(bundle: str, tmp_path: Path) -> None:
    def chat(lines: str) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, bundle, "-n", "24", "--temp", "0", "--threads", "1"]
        return subprocess.run(
            command, input=lines, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=True
        )

    first = chat("/system Be brief.\nWhat is gravity?\n/bad\n/save talk.json\n/quit\nno\n")
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert [m["role"] for m in saved] == ["system", "user", "assistant"]
    assert saved[2]["content"].strip() and saved[2]["content"].strip() in first.stdout
    assert "/bad is no command" in first.stderr
    second = chat("/load talk.json\nAnd what is mass?\n")
    kept = int(re.search(r"3 messages, (\d+) tokens of cache", second.stderr)[1])  # type: ignore[index]
    assert kept >= 32 and f"{kept} reused" in second.stderr
    (tmp_path / "talk.json.kv").write_bytes(b"broken")
    third = chat("/load talk.json\nAnd what is mass?\n")
    assert "without the cache: talk.json.kv: cannot be read" in third.stderr and " 0 reused" in third.stderr
    assert third.stdout.split()[:3] == second.stdout.split()[:3]


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ('[{"role": "user"}]', "list of messages"), (None, "No such file")]
)
def test_load_says_what_is_wrong(tmp_path: Path, text: str | None, message: str) -> None:
    from strixhlo.errors import StrixhloError

    file = tmp_path / "chat.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(StrixhloError, match=message):
        load_messages(file)
