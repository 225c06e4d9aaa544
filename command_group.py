"""How every command ends: what the user can act on is one line on standard error and exit code 2, never a stack trace.

Interrupted commands unwind, so that nothing half-written stays, and exit with 128 plus the signal's number.
"""

from __future__ import annotations

import _thread
import os
import platform
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires
from types import FrameType
from typing import Any, TextIO

import click
from rich.console import Console

from .errors import StrixhloError

# The first names of a module -> the distributions that bring it; others have the name of their module.
DISTRIBUTIONS = {
    "iree": ("iree-base-compiler", "iree-base-runtime"),
    "iree.compiler": ("iree-base-compiler",),
    "iree.runtime": ("iree-base-runtime",),
    "jaxlib": ("jax",),
    "lm_eval": ("lm-eval",),
    "ml-dtypes": ("ml_dtypes",),
    "yaml": ("PyYAML",),
}


class Ended(BaseException):
    """SIGTERM or SIGHUP: the command is to end, and to clean up on the way."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


class Progress(Console):
    """Standard error. When its reader has left, the work goes on in silence."""

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        _discard(sys.stderr)  # Python would try again when it ends, and end with an error of its own


def say_dim(line: str) -> None:
    """One line beside the result, on standard error."""
    Progress().print(line, style="dim", markup=False, soft_wrap=True)


class Output(Console):
    """Standard output. When its reader has left (`| head`), the command ends."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Commands(click.Group):
    """A group whose commands end as this module says; STRIXHLO_DEBUG=1 shows the stack trace."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for argument in args:
            if not _is_text(argument):
                fail(f"the argument {argument!a} is not valid UTF-8", 2)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        if sys.stdout is not None and getattr(sys.stdout, "errors", "") == "strict":
            sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
        try:
            check_platform()
            with _ending_signals():
                return super().invoke(ctx)
        except BrokenPipeError:
            _discard_output()
            sys.exit(0)
        except KeyboardInterrupt:
            fail("interrupted", 130)
        except Ended as signal_:
            fail(f"ended by {signal_}", signal_.code)
        except (StrixhloError, OSError, MemoryError, ModuleNotFoundError) as error:
            if os.environ.get("STRIXHLO_DEBUG"):
                raise
            fail(_one_line(error), 2)


def check_platform() -> None:
    """Linux on x86-64 is what strixhlo supports."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise StrixhloError(
            f"{platform.system()} on {platform.machine()} is not supported yet; strixhlo runs on Linux x86-64"
        )


def fail(message: str, code: int) -> None:
    """One line on standard error, and the exit code."""
    try:
        click.echo(f"strixhlo: {' '.join(message.split())}", err=True)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # nobody reads, or the disk behind it is full
        _discard_output()
    sys.exit(code)


def _one_line(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return _missing_package(error)
    if isinstance(error, OSError) and error.strerror:
        where = os.fsdecode(error.filename) if error.filename else "reading or writing failed"
        return f"{where}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"not enough memory ({error})" if str(error) else "not enough memory"
    return str(error)


def _missing_package(error: ModuleNotFoundError) -> str:
    """Which package is missing and how to get the version that this one asks for."""
    name = error.name or str(error)
    if name.partition(".")[0] == __package__:
        raise error
    first, two = name.partition(".")[0], ".".join(name.split(".")[:2])
    distributions = DISTRIBUTIONS.get(two) or DISTRIBUTIONS.get(first) or (first,)
    return f"the Python package {name} is missing; run `pip install {' '.join(map(_requirement, distributions))}`"


def _requirement(distribution: str) -> str:
    """The distribution as our own metadata ask for it: jax -> jax==0.10.2."""
    try:
        known = requires("strixhlo") or []
    except PackageNotFoundError:
        known = []
    for requirement in known:
        plain = requirement.partition(";")[0].strip()
        if re.match(r"[\w.-]+", plain)[0] == distribution:  # type: ignore[index]
            return f"'{plain}'"
    return distribution


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def _ending_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `Ended`, unless something else (nohup) has been arranged for them."""

    def end(number: int, _: FrameType | None) -> None:
        raise Ended(number)

    ours = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    hook = sys.unraisablehook
    sys.unraisablehook = _again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _again(swallowed: sys.UnraisableHookArgs) -> None:
    """A signal inside a callback whose exceptions Python drops (JAX has one of the collector) comes once more."""
    error = swallowed.exc_value
    if isinstance(error, KeyboardInterrupt):
        number = int(signal.SIGINT)
    elif isinstance(error, Ended):
        number = error.code - 128
    else:
        sys.__unraisablehook__(swallowed)
        return
    timer = threading.Timer(0.01, _thread.interrupt_main, (number,))  # by then the callback has returned
    timer.daemon = True
    timer.start()


def _discard_output() -> None:
    _discard(sys.stdout, sys.stderr)


def _discard(*streams: TextIO | None) -> None:
    """Point streams nowhere: what is still in their buffers could not be written at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        if stream is not None:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
