"""`strixhlo eval`: how good a compiled bundle's model is: perplexity of a text, or tasks of lm-evaluation-harness."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from .bundle import open_bundle
from .command_group import Progress
from .errors import StrixhloError
from .progress import spinner

WINDOW = 512  # tokens, as llama-perplexity


@click.command("eval")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--perplexity", "text", required=True, type=click.Path(path_type=Path), help="A UTF-8 text to score.")
@click.option("--target", default="cpu", show_default=True, help="Which compiled program to run.")
@click.option(
    "--ctx", type=click.IntRange(1), help=f"Tokens of a window. Default: {WINDOW}, or all that the bundle has."
)
@click.option("--stride", type=click.IntRange(1), help="Windows begin every so many tokens. Default: side by side.")
@click.option("--chunks", type=click.IntRange(1), help="Windows at most. Default: all of the text.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads. Default: one per core.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def eval_(
    bundle: Path,
    text: Path,
    target: str,
    ctx: int | None,
    stride: int | None,
    chunks: int | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Perplexity of a text, with its standard error, in windows as llama-perplexity has them; docs/eval.md."""
    from .runtime.engine import Engine
    from .runtime.perplexity import perplexity, windows
    from .runtime.program import Program
    from .runtime.tokenizer import load_tokenizer

    opened = open_bundle(bundle)
    try:
        content = text.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise StrixhloError(f"{text}: is not UTF-8 text (byte {error.start}); convert it first") from None
    tokenizer = load_tokenizer(bundle)
    with spinner(Progress(), "perplexity") as say:
        say("tokenizing")
        head = tokenizer.encode("")
        ids = tokenizer.encode(content)
        size = min(WINDOW, opened.manifest.context) if ctx is None else ctx
        parts = windows(ids, size, stride=stride, chunks=chunks, bos=head[0] if head and ids[:1] == head[:1] else None)
        with Program(opened, target, threads, context=size) as program, closing(Engine(program)) as engine:
            result = perplexity(engine, parts, say)
    if as_json:
        about = {"bundle": str(bundle), "target": target, "text": str(text), "ctx": size, "stride": stride}
        click.echo(json.dumps(about | {"text_tokens": len(ids)} | asdict(result), indent=1))
        return
    spread = "" if result.error is None else f" ± {result.error:.5f}"
    how = f"{result.windows} windows of {size}" + (f", stride {stride}" if stride else "")
    click.echo(f"perplexity {result.value:.4f}{spread} ({result.tokens} of {len(ids)} tokens scored, {how})")
