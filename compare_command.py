"""`strixhlo compare`: a compiled bundle against an engine that people trust."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .bundle import Bundle, open_bundle
from .command_group import Output, Progress, say_dim
from .comparison.native_engine import Native, open_native, open_target
from .errors import StrixhloError
from .number_list import NumberList
from .progress import spinner
from .replacement import atomic_write

if TYPE_CHECKING:
    from .bisection.bisect import Bisection
    from .runtime.native.contender import Contender


COUNTS = NumberList(1)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--native",
    type=Native(),
    help="The engine to compare with: llama.cpp, mlx, transformers, jax, or the URL of an OpenAI-compatible server.",
)
@click.option(
    "--top",
    default=20,
    show_default=True,
    type=click.IntRange(1, 1 << 20),
    help="Tokens of a position to ask a server for; llama-server gives as many as the vocabulary has.",
)
@click.option("--against-target", help="In place of --native: another compiled program of the same bundle.")
@click.option(
    "--bisect",
    "find",
    is_flag=True,
    help="Name the first layer and op that computes something else than the checkpoint says (both targets').",
)
@click.option("--source", type=click.Path(path_type=Path), help="Its checkpoint. Default: the source of the export.")
@click.option("--target", default="cpu", show_default=True, help="Which compiled program to run.")
@click.option(
    "--threads", default=2, show_default=True, type=click.IntRange(1, 1024), help="CPU threads of each engine."
)
@click.option("--text", type=click.Path(path_type=Path), help="Text to score. Default: a passage that comes along.")
@click.option("--tokens", default=100, show_default=True, type=click.IntRange(min=18), help="Tokens of it to score.")
@click.option("--greedy", default=64, show_default=True, type=click.IntRange(min=1), help="Greedy tokens to compare.")
@click.option("-p", "--prefill", type=COUNTS, default="512", show_default=True, help="Prompt lengths to time.")
@click.option("-n", "--decode", type=COUNTS, default="128", show_default=True, help="Decode lengths to time.")
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(min=1), help="Timed runs of each engine.")
@click.option("--memory-budget", help="Memory that the program may take, such as 24G. Default: what the device has.")
@click.option("--memory/--no-memory", default=True, help="Load each side once more, alone, for its peak memory.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with the numbers and pictures of them.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def compare(
    bundle: Path,
    native: str | None,
    top: int,
    against_target: str | None,
    find: bool,
    source: Path | None,
    target: str,
    threads: int,
    text: Path | None,
    tokens: int,
    greedy: int,
    prefill: tuple[int, ...],
    decode: tuple[int, ...],
    repeats: int,
    memory_budget: str | None,
    memory: bool,
    html: Path | None,
    as_json: bool,
) -> None:
    """Hold a compiled bundle against a native engine, or against its program for another target, on the same token
    ids: numbers, speed and a verdict.

    Exit code 1 where the numbers differ by more than the stated limits.
    """
    from .comparison.contender_memory import side_peak
    from .comparison.page import comparison_page
    from .comparison.table import comparison_table, verdict_lines
    from .runtime.compare import DECODED, GREEDY_PROMPT, PASSAGE, Workload
    from .runtime.compare import compare as run_comparison
    from .runtime.engine import Engine
    from .runtime.native.compiled import CompiledBundle
    from .runtime.program import Program
    from .runtime.sizes import optional_size
    from .runtime.tokenizer import load_tokenizer

    if (native is None) == (against_target is None):
        raise StrixhloError("give either --native, the engine to compare with, or --against-target")
    if html and not html.absolute().parent.is_dir():
        raise StrixhloError(f"--html {html}: no such folder")
    if html and html.is_dir():
        raise StrixhloError(f"--html {html}: is a folder; name a file")
    opened = open_bundle(bundle)
    tokenizer = load_tokenizer(bundle)
    try:
        content = (text or PASSAGE).read_text("utf-8")
    except UnicodeDecodeError:
        raise StrixhloError(f"{text}: is not UTF-8 text; choose another --text") from None
    limit = optional_size(memory_budget)
    with spinner(Progress(), "comparing") as say, Program(opened, target, threads, limit, say_dim) as program:
        ours = CompiledBundle(Engine(program), tokenizer)
        longest = max((tokens, *prefill, *(16 + n for n in decode)))
        if longest > ours.engine.context:
            ours.close()
            raise StrixhloError(
                f"{longest} tokens do not fit into the context of {ours.engine.context}; give smaller -p, -n or"
                " --tokens, or export with a larger --context"
            )
        ids = tuple(tokenizer.encode(content)[:tokens])
        work = Workload(ids, tuple(tokenizer.encode(GREEDY_PROMPT)), greedy, prefill, decode, repeats)
        say(f"loading {native or against_target}")
        try:
            if native is None:
                theirs: Contender = open_target(str(against_target), opened, threads)
            else:
                theirs = open_native(native, source, opened, threads, longest, top)
            try:
                result = run_comparison(ours, theirs, work, say=say)
            finally:
                theirs.close()
        finally:
            ours.engine.close()
    if memory:
        with spinner(Progress(), "peak memory of each side, alone in a process"):
            load = {"source": source, "threads": threads, "ids": ids[:1000], "length": max(prefill)}
            peaks = [
                side_peak(bundle, side, **load, decode=DECODED, target=name)
                for side, name in ((None, target), (native, against_target))
            ]
        result = replace(result, memory=(peaks[0], peaks[1]))
    found = _bisections(opened, [target, against_target], source, ids, threads) if find else []
    if html:
        lines = [line for b in found for line in b.lines()]
        page = comparison_page(result, f"{opened.manifest.name} beside {result.native}", lines)
        atomic_write(html, page.encode())
    if as_json:
        click.echo(json.dumps(result.record() | {"bisect": [b.record() for b in found]}, indent=1))
    else:
        output = Output()
        output.print(comparison_table(result))
        for line in verdict_lines(result):
            output.print(line, soft_wrap=True)
        for line in (line for b in found for line in b.lines()):
            output.print(line, soft_wrap=True)
    if result.failures or any(b.findings for b in found):
        sys.exit(1)


def _bisections(
    bundle: Bundle, targets: Sequence[str | None], source: Path | None, ids: Sequence[int], threads: int
) -> list[Bisection]:
    """Of each target in turn."""
    from .bisection.bisect import bisect
    from .export.checkpoint.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(str(source or bundle.manifest.source))
    with spinner(Progress(), "bisecting") as say:
        return [bisect(bundle, t, ids, checkpoint, threads=threads, say=say) for t in targets if t is not None]
