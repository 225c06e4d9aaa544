"""`strixhlo serve`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .bundle import open_bundle
from .command_group import Progress
from .errors import StrixhloError
from .runtime.sizes import parse_size, size

if TYPE_CHECKING:
    from .runtime.program import Program

stderr = Progress()


@click.command()
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="BUNDLE...")
@click.option("--target", default="cpu", show_default=True, help="Which compiled program to run.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is all.")
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--api-key", multiple=True, envvar="STRIXHLO_API_KEY", help="Key that clients must send; repeatable.")
@click.option("--parallel", default=8, show_default=True, type=click.IntRange(1), help="Requests that run at a time.")
@click.option("--queue", default=64, show_default=True, type=click.IntRange(1), help="Requests that may wait.")
@click.option("--max-body", default="8M", show_default=True, help="Largest body of a request.")
@click.option("--request-seconds", default=600.0, show_default=True, help="Time limit of one request.")
@click.option("--drain-seconds", default=30, show_default=True, help="After SIGTERM, time for requests that run.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads. Default: one per core.")
@click.option("--memory-budget", help="Memory that each program may take, such as 24G. Default: what the device has.")
@click.option("--webui", is_flag=True, help="Also serve a chat page at /.")
def serve(
    bundles: tuple[Path, ...],
    target: str,
    host: str,
    port: int,
    api_key: tuple[str, ...],
    parallel: int,
    queue: int,
    max_body: str,
    request_seconds: float,
    drain_seconds: int,
    threads: int | None,
    memory_budget: str | None,
    webui: bool,
) -> None:
    """Serve compiled bundles over OpenAI's HTTP interface: /v1/chat/completions and others, see docs/serving.md."""
    from .runtime.batch_engine import BatchEngine
    from .runtime.program import Program
    from .runtime.scheduler import Scheduler
    from .runtime.server.app import Settings, create_app
    from .runtime.server.run import allowed_hosts, listen
    from .runtime.server.run import serve as run_server
    from .runtime.server.served import ServedModel
    from .runtime.tokenizer import load_tokenizer

    if "" in api_key:
        raise StrixhloError("--api-key is empty; leave it out for a server without keys")
    bound = listen(host, port)
    with ExitStack() as stack:
        stack.enter_context(bound)
        models: dict[str, ServedModel] = {}
        programs = []
        for path in bundles:
            opened = open_bundle(path)
            name = opened.manifest.name
            if name in models:
                raise StrixhloError(f"{path}: a model named {name!r} is already served; export it under another name")
            limit = None if memory_budget is None else parse_size(memory_budget)
            program = stack.enter_context(Program(opened, target, threads, limit))
            engine = stack.enter_context(closing(BatchEngine(program)))
            tokenizer = load_tokenizer(path)
            made = Scheduler(
                engine, tokenizer.tokenizer, eos_ids=tokenizer.eos_ids, parallel=parallel, queue_size=queue
            )
            scheduler = stack.enter_context(closing(made))
            models[name] = ServedModel(name, tokenizer, opened.manifest.context, parallel, scheduler)
            programs.append(program)
            _require_fit_together(programs)
            left = "" if program.budget.left is None else f", {size(program.budget.left)} left"
            stderr.print(f"{name}: {size(program.budget.needed)} planned{left}", soft_wrap=True)
        hosts = allowed_hosts(host)
        settings = Settings(api_key, hosts, parse_size(max_body), request_seconds=request_seconds, webui=webui)
        address = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"

        def ready() -> None:
            stderr.print(f"listening on {address}", soft_wrap=True)

        run_server(create_app(models, settings), bound, drain_seconds=drain_seconds, ready=ready)
        for name, program in zip(models, programs, strict=True):
            stderr.print(f"{name}: memory peak {program.peak()}", soft_wrap=True)


def _require_fit_together(programs: Sequence[Program]) -> None:
    """Each program was held against what the device has left; their sum is held against it here."""
    amount = programs[0].budget.amount
    needed = sum(program.budget.needed for program in programs)
    if amount is not None and needed > amount:
        raise StrixhloError(
            f"{len(programs)} models need {size(needed)} together where {programs[0].budget.source} leaves"
            f" {size(amount)}; serve fewer of them, or export with a smaller --context"
        )
