"""An answer as it is shown while it comes: Markdown on a terminal, reasoning dimmed; plain text elsewhere."""

from __future__ import annotations

import re
import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from .runtime.tool_calls.pieces import CallArguments, CallBegin, Content, OutputParser, Piece, Reasoning

REFRESH_SECONDS = 0.1
_FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")


def settled(text: str) -> int:
    """Length of the beginning that later text cannot change: whole blocks, up to the last blank line that is not inside
    of a fence and that no indented text (a list that goes on) follows."""
    end = 0
    for found in _PARAGRAPH_END.finditer(text):
        following = text[found.end() : found.end() + 1]
        if following and not following.isspace() and len(_FENCE.findall(text[: found.end()])) % 2 == 0:
            end = found.end()
    return end


class AnswerView:
    """Use it in a `with`; `push` takes the model's text. On a terminal finished blocks are printed for good, and only
    the last one is drawn again, so that an answer may be longer than the screen."""

    def __init__(self, console: Console, parser: OutputParser) -> None:
        self._console, self._parser = console, parser
        self.content = ""
        self._reasoning = ""
        self._printed = 0  # characters of the content that are on the terminal for good
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="ellipsis")
        self._shown = 0.0

    def __enter__(self) -> AnswerView:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._take(self._parser.finish())
        if not self._console.is_terminal:
            self._console.print()
            return
        self._live.update(Text(""), refresh=True)
        self._live.stop()
        self._print_for_good(len(self.content))

    def push(self, text: str) -> None:
        """Show a little more."""
        self._take(self._parser.push(text))
        if self._console.is_terminal and time.monotonic() - self._shown > REFRESH_SECONDS:
            self._shown = time.monotonic()
            self._print_for_good(self._printed + settled(self.content[self._printed :]))
            self._live.update(self._unfinished(), refresh=True)

    def _take(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, Reasoning):
                self._reasoning += piece.text
            elif isinstance(piece, Content):
                self.content += piece.text
            else:
                self.content += f"\n`{piece.name}` " if isinstance(piece, CallBegin) else piece.text
            if not self._console.is_terminal and not isinstance(piece, CallBegin | CallArguments):
                if isinstance(piece, Content) and self._reasoning:
                    self._reasoning = ""
                    self._console.print("\n")
                self._console.print(piece.text, end="", markup=False, soft_wrap=True)

    def _print_for_good(self, end: int) -> None:
        """Reasoning too, once the content has begun."""
        if self._reasoning and (self.content or not self._live.is_started):
            self._console.print(Text(self._reasoning.strip() + "\n", style="dim"))
            self._reasoning = ""
        if end > self._printed:
            if self._printed:
                self._console.print()  # between blocks, as inside of a Markdown
            self._console.print(Markdown(self.content[self._printed : end]))
            self._printed = end

    def _unfinished(self) -> RenderableType:
        parts: list[RenderableType] = [Markdown(self.content[self._printed :])]
        if self._reasoning:
            parts.insert(0, Text(self._reasoning, style="dim"))
        elif self._printed:
            parts.insert(0, Text(""))
        return Group(*parts)
