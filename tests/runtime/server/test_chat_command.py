"""`strixhlo chat` with lines on standard input, and its commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strixhlo.bundle import Bundle
from strixhlo.chat_command import load, obey
from strixhlo.errors import StrixhloError


def test_a_conversation_by_lines(smollm2: Callable[[str], Bundle], tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    lines = (
        f"/system Be brief.\nWhat is gravity?\n/bad\n/save {file}\n/reset\n/save {tmp_path / 'reset.json'}\n/quit\nno\n"
    )
    command = [sys.executable, "-m", "strixhlo.cli", "chat", str(smollm2("int8").path), "-n", "8", "--temp", "0"]
    done = subprocess.run([*command, "--threads", "1"], input=lines, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    saved = json.loads(file.read_text())
    assert [m["role"] for m in saved] == ["system", "user", "assistant"]
    assert saved[2]["content"].strip() and saved[2]["content"].strip() in done.stdout
    assert "/bad is no command" in done.stderr and "8 tokens at" in done.stderr
    assert load(tmp_path / "reset.json") == saved[:1]


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ('[{"role": "user"}]', "list of messages"), (None, "No such file")]
)
def test_load_says_what_is_wrong(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "chat.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(StrixhloError, match=message):
        obey(f"/load {file}", [])
