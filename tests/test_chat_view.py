"""Streaming Markdown: finished blocks are printed once, reasoning is dimmed, plain output is the text itself."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from strixhlo import chat_view
from strixhlo.chat_view import AnswerView, settled
from strixhlo.runtime.tool_calls.pieces import PlainParser
from strixhlo.runtime.tool_calls.reasoning import ThinkParser

ANSWER = "# Title\n\nSome **bold** text.\n\n```python\nx = 1\n\ny = 2\n```\n\n- one\n\n  more of one\n- two\n\nEnd.\n"


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("a paragraph", 0),
        ("a paragraph\n\n", 0),  # what follows may be indented
        ("one\n\ntwo", 5),
        ("- one\n\n  more", 0),
        ("```\na\n\nb", 0),  # inside of a fence
        ("```\na\n\nb\n```\n\nc", 14),
    ],
)
def test_settled_blocks(text: str, end: int) -> None:
    assert settled(text) == end


def shown(terminal: bool, text: str, size: int, parser: object = None) -> tuple[str, AnswerView]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=60, height=8, color_system="standard", highlight=False)
    with AnswerView(console, parser or PlainParser()) as view:  # type: ignore[arg-type]
        for i in range(0, len(text), size):
            view.push(text[i : i + size])
    return out.getvalue(), view


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_every_block_is_on_the_terminal_once_at_the_end(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_view, "REFRESH_SECONDS", 0.0)
    out, view = shown(True, ANSWER, size)
    assert view.content == ANSWER
    screen = final_screen(out)
    for word in ("Title", "Some bold text.", "x = 1", "y = 2", "one", "more of one", "two", "End."):
        assert sum(word in line for line in screen) == (2 if word == "one" else 1), (word, screen)
    assert not any("**" in line or "```" in line for line in screen)


def final_screen(out: str) -> list[str]:
    """The lines that remain: a terminal of endless height that knows what rich's Live writes."""
    import re

    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", out):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b["):
            n = int(part[2:-1]) if part[2:-1].isdigit() else 1
            if part[-1] == "A":
                row = max(0, row - n)
            elif part[-1] == "K":
                lines[row] = ""
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return lines


def test_reasoning_is_dimmed_and_no_part_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_view, "REFRESH_SECONDS", 0.0)
    text = "<think>\nLet me see.\n</think>\n\nIt is four."
    out, view = shown(True, text, 3, ThinkParser(PlainParser(), inside=False))
    assert view.content == "It is four."
    screen = final_screen(out)
    assert [line.strip() for line in screen if line.strip()] == ["Let me see.", "It is four."]
    assert "\x1b[2mLet me see." in out and "\x1b[2mIt is four" not in out
    plain, view = shown(False, text, 3, ThinkParser(PlainParser(), inside=False))
    assert plain == "Let me see.\n\nIt is four.\n" and view.content == "It is four."


def test_plain_output_is_the_text() -> None:
    out, _ = shown(False, ANSWER, 5)
    assert out == ANSWER + "\n"
