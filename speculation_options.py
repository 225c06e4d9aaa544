"""The options of `run`, `chat` and `serve` for speculative decoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


def speculation_options(command: _F) -> _F:
    """--speculate and --draft."""
    command = click.option(
        "--draft",
        type=click.Path(path_type=Path),
        help="Bundle of a small model with the same tokenizer, whose guesses are checked in place of the text's own.",
    )(command)
    return click.option(
        "--speculate",
        type=click.Choice(["auto", "lookup", "none"]),
        default="auto",
        show_default=True,
        help="Guess tokens, and check several in one step; the answer stays the same. auto: where it is measured to"
        " help; lookup: always, by what followed the same words before.",
    )(command)
