"""Progress on a terminal: a spinner with what is being done, a bar in bytes; plain lines where there is no terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from .runtime.sizes import size

REMIND_SECONDS = 10.0


@dataclass(frozen=True)
class Stages:
    """`stage` names what begins, with its number of bytes (0: unknown); `advance` counts bytes done."""

    stage: Callable[[str, int], None]
    advance: Callable[[int], None]


@contextmanager
def export_progress(console: Console) -> Iterator[Stages]:
    """A line per stage, with a bar in bytes where the size is known."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeElapsedColumn(),
    )
    if not console.is_terminal:
        with spinner(console, "export") as say:
            yield Stages(lambda name, total: say(f"{name}{f' ({size(total)})' if total else ''}"), lambda _: None)
        return
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield Stages(
            lambda name, total: progress.reset(task, description=name, total=total or None),
            lambda n: progress.advance(task, n),
        )


@contextmanager
def spinner(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """Yields a function that says what is being done now; a long step is repeated with its time every 10 seconds."""
    if console.is_terminal:
        with console.status(Text(title)) as status:
            yield lambda text: status.update(Text(f"{title}: {text}"))
        return
    current, began = title, time.monotonic()
    done = threading.Event()

    def say(text: str) -> None:
        nonlocal current, began
        current, began = text, time.monotonic()
        console.print(text, markup=False, soft_wrap=True)

    def remind() -> None:
        while not done.wait(REMIND_SECONDS):
            console.print(f"{current}: {time.monotonic() - began:.0f} s", markup=False, soft_wrap=True)

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield say
    finally:
        done.set()
        thread.join()
