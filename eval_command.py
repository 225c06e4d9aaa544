"""`strixhlo eval`: how good a compiled bundle's model is: perplexity of a text, or tasks of lm-evaluation-harness."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .bundle import Bundle, open_bundle
from .command_group import Progress, say_dim
from .errors import StrixhloError
from .progress import spinner
from .text_file import text_of

WINDOW = 512  # tokens, as llama-perplexity


@click.command("eval")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--perplexity", "text", type=click.Path(path_type=Path), help="A UTF-8 text to score.")
@click.option("--tasks", help="Tasks of lm-evaluation-harness, by name, with commas.")
@click.option("--target", default="cpu", show_default=True, help="Which compiled program to run.")
@click.option(
    "--ctx",
    type=click.IntRange(1),
    help=f"Tokens of a window. Default: for a text {WINDOW}, for tasks all that the bundle has.",
)
@click.option("--stride", type=click.IntRange(1), help="Windows begin every so many tokens. Default: side by side.")
@click.option("--chunks", type=click.IntRange(1), help="Windows at most. Default: all of the text.")
@click.option("--task-path", type=click.Path(path_type=Path), help="Folder of task files, in place of the harness's.")
@click.option("--num-fewshot", type=click.IntRange(0), help="Examples before each question. Default: the task's.")
@click.option("--limit", type=click.IntRange(1), help="Questions of each task at most.")
@click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads. Default: one per core.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def eval_(
    bundle: Path,
    text: Path | None,
    tasks: str | None,
    target: str,
    ctx: int | None,
    threads: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Perplexity of a text, in llama-perplexity's windows, or tasks of lm-evaluation-harness; see docs/eval.md."""
    opened = open_bundle(bundle)
    if ctx is not None and ctx > opened.manifest.context:
        raise StrixhloError(
            f"eval: --ctx {ctx} is more than the {opened.manifest.context} positions that {bundle} was exported with;"
            " give a smaller one, or export with a larger --context"
        )
    if (text is None) == (tasks is None):
        raise StrixhloError("eval: give either --perplexity FILE or --tasks NAMES")
    for_text, for_tasks = ("stride", "chunks"), ("task_path", "num_fewshot", "limit")
    stray = [n for n in (for_tasks if tasks is None else for_text) if options[n] is not None]
    if stray:
        needed = "--tasks" if tasks is None else "--perplexity"
        raise StrixhloError(f"eval: --{stray[0].replace('_', '-')} goes with {needed}")
    run = (opened, target, threads)
    if text is not None:
        _perplexity(*run, text, ctx, options["stride"], options["chunks"], as_json)
    else:
        names = [name.strip() for name in (tasks or "").split(",") if name.strip()]
        _tasks(*run, names, ctx, options["task_path"], options["num_fewshot"], options["limit"], as_json)


def _perplexity(
    bundle: Bundle,
    target: str,
    threads: int | None,
    text: Path,
    ctx: int | None,
    stride: int | None,
    chunks: int | None,
    as_json: bool,
) -> None:
    from .runtime.engine import Engine
    from .runtime.perplexity import perplexity, windows
    from .runtime.program import Program
    from .runtime.tokenizer import load_tokenizer

    content = text_of(text)
    tokenizer = load_tokenizer(bundle.path)
    with spinner(Progress(), "perplexity") as say:
        say("tokenizing")
        head = tokenizer.encode("")
        ids = tokenizer.encode(content)
        size = min(WINDOW, bundle.manifest.context) if ctx is None else ctx
        parts = windows(ids, size, stride=stride, chunks=chunks, bos=head[0] if head and ids[:1] == head[:1] else None)
        with Program(bundle, target, threads, say=say_dim, context=size) as program, closing(Engine(program)) as engine:
            result = perplexity(engine, parts, say)
    if as_json:
        about = {"bundle": str(bundle.path), "target": target, "text": str(text), "ctx": size, "stride": stride}
        click.echo(json.dumps(about | {"text_tokens": len(ids)} | asdict(result), indent=1))
        return
    spread = "" if result.error is None else f" ± {result.error:.5f}"
    how = f"{result.windows} windows of {size}" + (f", stride {stride}" if stride else "")
    click.echo(f"perplexity {result.value:.4f}{spread} ({result.tokens} of {len(ids)} tokens scored, {how})")


def _tasks(
    bundle: Bundle,
    target: str,
    threads: int | None,
    names: list[str],
    ctx: int | None,
    folder: Path | None,
    fewshot: int | None,
    limit: int | None,
    as_json: bool,
) -> None:
    from lm_eval.utils import make_table

    from .runtime.engine import Engine
    from .runtime.harness import HarnessModel, evaluate
    from .runtime.program import Program
    from .runtime.tokenizer import load_tokenizer

    if not names:
        raise StrixhloError("eval: --tasks names no task")
    if folder is not None and not folder.is_dir():
        raise StrixhloError(f"{folder}: no such folder; --task-path is one with task files of lm-evaluation-harness")
    tokenizer = load_tokenizer(bundle.path)
    with (
        spinner(Progress(), "eval") as say,
        Program(bundle, target, threads, say=say_dim, context=ctx) as program,
        closing(Engine(program)) as engine,
    ):
        found = evaluate(HarnessModel(engine, tokenizer, say), names, folder=folder, fewshot=fewshot, limit=limit)
    if as_json:
        kept = {key: found.get(key) for key in ("results", "n-samples", "n-shot", "versions", "higher_is_better")}
        click.echo(json.dumps({"bundle": str(bundle.path), "target": target, **kept}, indent=1, default=str))
    else:
        click.echo(make_table(found))
