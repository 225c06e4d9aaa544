"""The options of `run` and `chat` that say how a program is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from .bundle import Bundle, open_bundle
from .command_group import say_dim
from .speculation_options import speculation_options

if TYPE_CHECKING:
    from .runtime.loaded import Loaded
    from .runtime.tokenizer import BundleTokenizer

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Loading:
    """What the options say."""

    speculate: str
    draft: Path | None
    ctx: int | None
    threads: int | None
    memory_budget: str | None

    @contextmanager
    def loaded(self, bundle: Bundle, tokenizer: BundleTokenizer, target: str) -> Iterator[Loaded]:
        """The bundle's program for one request at a time; says what memory it takes."""
        from .runtime.loaded import loaded
        from .runtime.sizes import optional_size

        with loaded(
            bundle,
            tokenizer,
            target,
            threads=self.threads,
            memory_limit=optional_size(self.memory_budget),
            context=self.ctx,
            speculate=self.speculate,
            draft=open_bundle(self.draft) if self.draft else None,
            say=say_dim,
        ) as made:
            yield made


def loading_options(command: _F) -> _F:
    """Adds the options to a command, which gets them together as `loading`."""

    @wraps(command)
    def grouped(**values: Any) -> Any:
        return command(loading=Loading(**{f.name: values.pop(f.name) for f in fields(Loading)}), **values)

    options = [
        speculation_options,
        click.option("--ctx", type=click.IntRange(1), help="Positions of the text at most. Default: the bundle's."),
        click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads. Default: one per core."),
        click.option(
            "--memory-budget", help="Memory that the program may take, such as 24G. Default: what the device has."
        ),
    ]
    result: Any = grouped
    for option in reversed(options):
        result = option(result)
    return cast(_F, result)
