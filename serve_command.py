"""`strixhlo serve`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import click

from .bundle import Bundle, open_bundle
from .command_group import Progress, say_dim
from .errors import StrixhloError
from .runtime.sizes import optional_size, parse_size, size
from .speculation_options import speculation_options

stderr = Progress()


@click.command()
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="BUNDLE...")
@click.option("--target", default="cpu", show_default=True, help="Which compiled program to run.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is all.")
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--api-key", multiple=True, envvar="STRIXHLO_API_KEY", help="Key that clients must send; repeatable.")
@click.option(
    "--parallel", default=8, show_default=True, type=click.IntRange(1, 1024), help="Requests that run at a time."
)
@click.option(
    "--ctx", type=click.IntRange(1), help="Tokens of a request and its answer at most. Default: the bundle's."
)
@click.option(
    "--kv-cache-dtype", type=click.Choice(["fp8", "f16", "bf16", "f32"]), help="Refuse programs with another one."
)
@speculation_options
@click.option("--queue", default=64, show_default=True, type=click.IntRange(1), help="Requests that may wait.")
@click.option("--max-body", default="8M", show_default=True, help="Largest body of a request.")
@click.option(
    "--request-seconds",
    default=600.0,
    show_default=True,
    type=click.FloatRange(0, 1e9, min_open=True),
    help="Time limit of one request.",
)
@click.option(
    "--drain-seconds",
    default=30,
    show_default=True,
    type=click.IntRange(0),
    help="After SIGTERM, time for requests that run.",
)
@click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads. Default: one per core.")
@click.option("--memory-budget", help="Memory that all models together may take, such as 24G.")
@click.option("--webui", is_flag=True, help="Also serve a chat page at /.")
def serve(
    bundles: tuple[Path, ...],
    target: str,
    host: str,
    port: int,
    api_key: tuple[str, ...],
    parallel: int,
    ctx: int | None,
    kv_cache_dtype: str | None,
    speculate: str,
    draft: Path | None,
    queue: int,
    max_body: str,
    request_seconds: float,
    drain_seconds: int,
    threads: int | None,
    memory_budget: str | None,
    webui: bool,
) -> None:
    """Serve compiled bundles over OpenAI's HTTP interface: /v1/chat/completions and others, see docs/serving.md."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # it is given one text at a time, and needs no threads
    from .runtime.memory import item_line
    from .runtime.server.app import Settings, create_app
    from .runtime.server.loading import Wanted, loaded_models
    from .runtime.server.run import allowed_hosts, listen
    from .runtime.server.run import serve as run_server

    if math.isnan(request_seconds):
        raise StrixhloError("--request-seconds is not a number; give seconds, above 0")
    if "" in api_key:
        raise StrixhloError("--api-key is empty; leave it out for a server without keys")
    limit, body_limit = optional_size(memory_budget), parse_size(max_body)
    settings = Settings(api_key, allowed_hosts(host), body_limit, request_seconds=request_seconds, webui=webui)
    with listen(host, port) as bound:
        drafting = open_bundle(draft) if draft else None
        wanted = Wanted(target, parallel, queue, ctx, kv_cache_dtype, speculate, drafting, threads, limit)
        with loaded_models(_open_all(bundles), wanted, say_dim) as models:
            address = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"

            def ready() -> None:
                stderr.print(f"listening on {address}", soft_wrap=True)

            run_server(create_app(models.served, settings), bound, drain_seconds=drain_seconds, ready=ready)
            for name, budget in zip([*models.served, "draft"], models.budgets, strict=False):
                say_dim(f"{name}: {size(budget.needed)} planned: {item_line(budget)}")
            say_dim(f"memory peak of this process, all models together: {models.programs[0].peak()}")


def _open_all(paths: Sequence[Path]) -> dict[str, Bundle]:
    """Name of the model -> its bundle; StrixhloError for two of one name."""
    opened: dict[str, Bundle] = {}
    for path in paths:
        bundle = open_bundle(path)
        name = bundle.manifest.name
        if name in opened:
            raise StrixhloError(f"{path}: a model named {name!r} is already served; export it under another name")
        opened[name] = bundle
    return opened
