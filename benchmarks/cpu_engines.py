"""A bundle's CPU program beside llama.cpp, transformers and MLX in one process, the engines in turn.

    python benchmarks/cpu_engines.py BUNDLE [--mlx FOLDER] [--threads 2] [--repeats 3] [-p 100] [-n 32]

llama.cpp and transformers (float32, dequantized) read the GGUF that the bundle was made of; MLX a folder of its own
format, such as `mlx_lm.convert -q --q-bits 4 --q-group-size 32` makes. MLX is slow on this kind of CPU, so it gets
lengths of its own, once and without a warm-up, which its row says. The load of the machine is printed: beside other
busy threads the numbers say little.
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


def natives(gguf: Path, threads: int) -> dict[str, Contender]:
    """The engines that read the bundle's own file."""
    from strixhlo.runtime.native.llama_cpp import LlamaCpp
    from strixhlo.runtime.native.transformers_float32 import Float32Model

    return {
        "llama.cpp": LlamaCpp(gguf, n_threads=threads),
        "transformers, float32": Float32Model(gguf, n_threads=threads),
    }


Rates = tuple[float, float]  # tokens a second of prefill and of decoding


def once(engine: Contender, ids: list[int], prompt: int, short: int, decode: int) -> Rates:
    """short: tokens of prompt before decoding is timed."""
    prefill, steps = engine.run(ids[:prompt], 0), engine.run(ids[:short], decode)
    return prompt / prefill.first_token, decode / steps.decode


def in_turn(engines: dict[str, Contender], ids: list[int], prompt: int, decode: int, repeats: int) -> dict[str, Rates]:
    """Medians of each engine; the first round is not counted."""
    found: dict[str, list[Rates]] = {name: [] for name in engines}
    for round_ in range(repeats + 1):
        for name, engine in engines.items():
            click.echo(f"round {round_}, {name}", err=True)
            rates = once(engine, ids, prompt, SHORT, decode)
            if round_:
                found[name].append(rates)
    return {name: (median(p for p, _ in pairs), median(d for _, d in pairs)) for name, pairs in found.items()}


def shown(rate: float) -> str:
    """Three digits or so."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 10 else f"{rate:.2f}"


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--mlx", type=click.Path(path_type=Path))
@click.option("--mlx-prompt", default=8, show_default=True)
@click.option("--mlx-decode", default=4, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("-p", "--prompt", default=100, show_default=True)
@click.option("-n", "--decode", default=32, show_default=True)
def main(
    bundle: Path,
    mlx: Path | None,
    mlx_prompt: int,
    mlx_decode: int,
    threads: int,
    repeats: int,
    prompt: int,
    decode: int,
) -> None:
    """Prints Markdown: tokens a second, and how many times faster or slower we are."""
    opened = open_bundle(bundle)
    ids = load_tokenizer(bundle).encode(PASSAGE.read_text("utf-8"))
    load = os.getloadavg()[0]
    with Program(opened, "cpu", threads, context=max(prompt, SHORT + decode)) as program:
        ours = CompiledBundle(Engine(program), None)
        name = f"strixhlo, {program.build.activations} activations"
        engines = {name: ours, **natives(Path(opened.manifest.source), threads)}
        found = in_turn(engines, ids, prompt, decode, repeats)
        ours.engine.close()
    if mlx is not None:
        from strixhlo.runtime.native.mlx import Mlx

        click.echo("MLX", err=True)
        row = f"MLX, 4 bits: prefill of {mlx_prompt}, decode of {mlx_decode}, once"
        found[row] = once(Mlx(mlx), ids, mlx_prompt, mlx_prompt, mlx_decode)
    click.echo(f"load {load:.1f} of {os.cpu_count()} cores, {threads} threads each, medians of {repeats}, in turn\n")
    click.echo(f"| {opened.manifest.name} | prefill of {prompt}, tok/s | ratio | decode of {decode}, tok/s | ratio |")
    click.echo("|---|---:|---:|---:|---:|")
    for engine, (prefill, steps) in found.items():
        ratios = [f"{a / b:.2f}x" for a, b in zip(found[name], (prefill, steps), strict=True)]
        click.echo(f"| {engine} | {shown(prefill)} | {ratios[0]} | {shown(steps)} | {ratios[1]} |")


if __name__ == "__main__":
    main()
