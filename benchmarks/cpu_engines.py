"""A bundle's CPU program beside llama.cpp, MLX and transformers in one process, the engines in turn.

    python benchmarks/cpu_engines.py BUNDLE [--mlx FOLDER] [--threads 2] [--repeats 3] [-p 100] [-n 32]

llama.cpp and transformers (float32, dequantized) read the GGUF that the bundle was made of; MLX a folder of its own
format, such as `mlx_lm.convert -q --q-bits 4 --q-group-size 32` makes. The load of the machine is
printed: beside other busy threads the numbers say little.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import click

from strixhlo.bundle import open_bundle
from strixhlo.runtime.compare import PASSAGE
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.native.compiled import CompiledBundle
from strixhlo.runtime.native.contender import Contender
from strixhlo.runtime.program import Program
from strixhlo.runtime.tokenizer import load_tokenizer

SHORT = 16  # tokens of prompt before decoding is timed


def natives(gguf: Path, mlx: Path | None, threads: int) -> dict[str, Contender]:
    """The engines that can be loaded here."""
    from strixhlo.runtime.native.llama_cpp import LlamaCpp
    from strixhlo.runtime.native.transformers_float32 import Float32Model

    found: dict[str, Contender] = {"llama.cpp": LlamaCpp(gguf, n_threads=threads)}
    if mlx is not None:
        from strixhlo.runtime.native.mlx import Mlx

        found["MLX"] = Mlx(mlx)
    return found | {"transformers": Float32Model(gguf, n_threads=threads)}


def rates(
    engines: dict[str, Contender], ids: list[int], prompt: int, decode: int, repeats: int
) -> dict[str, list[float]]:
    """Medians of (prefill, decode) tokens a second of each engine; the first round is not counted."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    for round_ in range(repeats + 1):
        for name, engine in engines.items():
            click.echo(f"round {round_}, {name}", err=True)
            prefill, steps = engine.run(ids[:prompt], 0), engine.run(ids[:SHORT], decode)
            if round_:
                found[name].append((prompt / prefill.first_token, decode / steps.decode))
    return {name: [median(column) for column in zip(*pairs, strict=True)] for name, pairs in found.items()}


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--mlx", type=click.Path(path_type=Path))
@click.option("--threads", default=2, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("-p", "--prompt", default=100, show_default=True)
@click.option("-n", "--decode", default=32, show_default=True)
def main(bundle: Path, mlx: Path | None, threads: int, repeats: int, prompt: int, decode: int) -> None:
    """Prints Markdown: tokens a second, and how many times faster or slower we are."""
    opened = open_bundle(bundle)
    ids = load_tokenizer(bundle).encode(PASSAGE.read_text("utf-8"))
    with Program(opened, "cpu", threads, context=max(prompt, SHORT + decode)) as program:
        ours = CompiledBundle(Engine(program), None)
        others = natives(Path(opened.manifest.source), mlx, threads)
        found = rates({"strixhlo": ours, **others}, ids, prompt, decode, repeats)
        ours.engine.close()
    load = os.getloadavg()[0]
    click.echo(f"load {load:.1f} of {os.cpu_count()} cores, {threads} threads each, medians of {repeats}, in turn\n")
    click.echo(f"| {opened.manifest.name} | pp{prompt} | ratio | tg{decode} | ratio |\n|---|---:|---:|---:|---:|")
    mine = found["strixhlo"]
    for name, (prefill, steps) in found.items():
        ratios = [f"{a / b:.2f}x" for a, b in zip(mine, (prefill, steps), strict=True)]
        click.echo(f"| {name} | {prefill:.1f} | {ratios[0]} | {steps:.1f} | {ratios[1]} |")


if __name__ == "__main__":
    main()
