"""`strixhlo compare`: a compiled bundle against an engine that people trust."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .bundle import Bundle, open_bundle
from .command_group import Output
from .comparison.native_engine import NAMES, Native, open_native, open_target
from .errors import StrixhloError
from .inspection import check_activations
from .number_list import NumberList
from .replacement import atomic_write

if TYPE_CHECKING:
    from .bisection.bisect import Bisection
    from .runtime.compare import Comparison
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
    from .comparison.both_sides import bisections, compared, open_source, peaks, workload
    from .comparison.page import comparison_page
    from .comparison.source import other_source
    from .runtime.sizes import optional_size
    from .runtime.tokenizer import load_tokenizer

    opened = open_bundle(bundle)
    _check_sides(opened, native, target, against_target, source, find)
    _check_page(html)
    limit = optional_size(memory_budget)
    checkpoint = open_source(opened, source) if find else None
    tokenizer = load_tokenizer(bundle)
    work = workload(opened, tokenizer, text, tokens, greedy, prefill, decode, repeats)

    def their_side() -> Contender:
        if native is None:
            return open_target(str(against_target), opened, threads)
        return open_native(native, source, opened, threads, work.longest, top)

    result = compared(opened, tokenizer, target, threads, limit, their_side, work)
    if memory:
        load = {"source": source, "threads": threads, "ids": work.ids[:1000], "length": max(prefill)}
        result = replace(result, memory=peaks(bundle, (None, target), (native, against_target), load))
    found = []
    if checkpoint is not None:
        found = bisections(opened, [target, against_target], checkpoint, work.ids, threads)
    notes = [line for b in found for line in b.lines()]
    if result.failures and source is not None and other_source(opened.manifest, source):
        notes.append(f"{source} is not what the bundle was exported from, which was {opened.manifest.source}")
    if html:
        page = comparison_page(result, f"{opened.manifest.name} beside {result.native}", notes)
        atomic_write(html, page.encode())
    _show(result, found, notes, as_json)
    if result.failures or any(b.findings for b in found):
        sys.exit(1)


def _show(result: Comparison, found: list[Bisection], notes: list[str], as_json: bool) -> None:
    """On standard output."""
    from .comparison.table import comparison_table, verdict_lines

    if as_json:
        click.echo(json.dumps(result.record() | {"bisect": [b.record() for b in found], "notes": notes}, indent=1))
        return
    output = Output()
    output.print(comparison_table(result))
    for line in (*verdict_lines(result), *notes):
        output.print(line, soft_wrap=True)


def _check_sides(
    bundle: Bundle, native: str | None, target: str, against: str | None, source: Path | None, find: bool
) -> None:
    """Two sides, and they are two."""
    from .runtime.program import read_build

    if (native is None) == (against is None):
        raise StrixhloError("give either --native, the engine to compare with, or --against-target")
    check_activations(bundle)
    ours = read_build(bundle, target)
    if against is not None and read_build(bundle, against).target == ours.target:
        raise StrixhloError(f"--against-target {against}: is the target that runs already; name another one")
    if source is not None and not find and (native is None or native not in NAMES):
        raise StrixhloError("--source is what a native engine loads, or --bisect reads; here nothing would read it")


def _check_page(html: Path | None) -> None:
    if html is None:
        return
    folder = html.absolute().parent
    if not folder.is_dir():
        raise StrixhloError(f"--html {html}: no such folder")
    if html.is_dir():
        raise StrixhloError(f"--html {html}: is a folder; name a file")
    if not os.access(folder, os.W_OK):
        raise StrixhloError(f"--html {html}: its folder cannot be written to")
