"""`strixhlo chat`: a conversation on the terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .bundle import open_bundle
from .command_group import Output, Progress, say_dim
from .errors import StrixhloError

if TYPE_CHECKING:
    from .runtime.engine import Engine
    from .runtime.sampling import SamplingParams
    from .runtime.tokenizer import BundleTokenizer

HELP = """/system TEXT  set the system message (without TEXT: remove it), and begin anew
/reset        forget the conversation
/save FILE    write the conversation as JSON
/load FILE    read one back
/help         this list
/quit         leave (Ctrl-D too); Ctrl-C ends an answer
Alt-Enter, or Esc then Enter, begins a new line; Enter sends."""
Messages = list[dict[str, str]]


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--target", default="cpu", show_default=True, help="Which compiled program to run.")
@click.option("--system", help="System message.")
@click.option("-n", "--max-tokens", default=1024, show_default=True, help="Tokens of an answer at most.")
@click.option("--temp", "temperature", default=0.7, show_default=True, help="Temperature; 0 is greedy.")
@click.option("--top-p", default=0.95, show_default=True, help="Keep the likeliest tokens up to this mass.")
@click.option("--seed", type=int, help="Same seed, same answers.")
@click.option("--ctx", type=click.IntRange(1), help="Positions of the conversation at most. Default: the bundle's.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads. Default: one per core.")
@click.option("--memory-budget", help="Memory that the program may take, such as 24G. Default: what the device has.")
def chat(
    bundle: Path,
    target: str,
    system: str | None,
    max_tokens: int,
    temperature: float,
    top_p: float,
    seed: int | None,
    ctx: int | None,
    threads: int | None,
    memory_budget: str | None,
) -> None:
    """Talk with a compiled bundle; /help lists the commands. Without a terminal, each line of input is a message."""
    from .runtime.engine import Engine
    from .runtime.program import Program
    from .runtime.sampling import SamplingParams
    from .runtime.sizes import optional_size
    from .runtime.tokenizer import load_tokenizer

    params = SamplingParams(temperature=temperature, top_p=top_p, seed=seed, max_tokens=max_tokens)
    opened = open_bundle(bundle)
    tokenizer = load_tokenizer(bundle)
    messages: Messages = [{"role": "system", "content": system}] if system else []
    next_line = line_reader()
    limit = optional_size(memory_budget)
    loaded = Program(opened, target, threads, limit, say_dim, context=ctx)
    with loaded as program, closing(Engine(program)) as engine:
        while (line := next_line()) is not None:
            try:
                if line.startswith("/"):
                    if not obey(line, messages):
                        return
                elif line.strip():
                    messages.append({"role": "user", "content": line})
                    answer(engine, tokenizer, messages, params)
            except StrixhloError as error:
                Progress().print(str(error), style="red", markup=False, soft_wrap=True)


def line_reader() -> Callable[[], str | None]:
    """Gives the next message, None at the end: edited with history on a terminal, plain lines elsewhere."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        return lambda: line.rstrip("\n") if sys.stdin and (line := sys.stdin.readline()) else None
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession("> ", history=InMemoryHistory(), key_bindings=keys)

    def read() -> str | None:
        while True:
            try:
                return session.prompt(prompt_continuation="  ")
            except KeyboardInterrupt:
                continue
            except EOFError:
                return None

    return read


def obey(line: str, messages: Messages) -> bool:
    """Do what a /command says; False to leave. StrixhloError for what cannot be done."""
    command, _, rest = line.partition(" ")
    rest = rest.strip()
    if command == "/quit":
        return False
    if command == "/help":
        click.echo(HELP)
    elif command == "/reset":
        messages[:] = [m for m in messages if m["role"] == "system"]
    elif command == "/system":
        messages[:] = [{"role": "system", "content": rest}] if rest else []
    elif command in ("/save", "/load") and not rest:
        raise StrixhloError(f"{command} needs a file name")
    elif command == "/save":
        save(Path(rest), messages)
    elif command == "/load":
        messages[:] = load(Path(rest))
    else:
        raise StrixhloError(f"{command} is no command; /help lists them")
    return True


def save(path: Path, messages: Messages) -> None:
    """Write a conversation."""
    try:
        path.write_text(json.dumps(messages, ensure_ascii=False, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise StrixhloError(f"{path}: {error.strerror}") from None


def load(path: Path) -> Messages:
    """Read a conversation that `save` wrote."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise StrixhloError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise StrixhloError(f"{path}: is not JSON: {error}") from None
    if not isinstance(value, list) or not all(
        isinstance(m, dict) and set(m) == {"role", "content"} and all(isinstance(v, str) for v in m.values())
        for m in value
    ):
        raise StrixhloError(f"{path}: is not a list of messages with a role and a content")
    return value


def answer(engine: Engine, tokenizer: BundleTokenizer, messages: Messages, params: SamplingParams) -> None:
    """Stream the next answer, as Markdown on a terminal, and append it; Ctrl-C ends it early."""
    from rich.live import Live
    from rich.markdown import Markdown

    from .runtime.generate import generate

    console = Output()
    pieces: list[str] = []
    shown = 0.0
    ids = tokenizer.encode_chat(messages)
    engine.reset()
    stopped = False
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:

        def show(piece: str) -> None:
            nonlocal shown
            pieces.append(piece)
            if not console.is_terminal:
                console.print(piece, end="", markup=False, soft_wrap=True)
            elif time.monotonic() - shown > 0.1:
                shown = time.monotonic()
                live.update(Markdown("".join(pieces)), refresh=True)

        try:
            result = generate(engine, tokenizer, ids, params, show=show)
        except KeyboardInterrupt:
            stopped = True
        if console.is_terminal:
            live.update(Markdown("".join(pieces)), refresh=True)
    if not console.is_terminal:
        console.print()
    messages.append({"role": "assistant", "content": "".join(pieces)})
    if stopped:
        Progress().print("[dim]stopped[/dim]")
    else:
        rate = f" at {result.decode_rate:.1f} tok/s" if result.decode_rate else ""
        used = f"context {engine.length} of {engine.context}"
        Progress().print(f"[dim]{len(result.tokens)} tokens{rate}, {used}[/dim]", soft_wrap=True)
