"""A small model of OLMoE's shape on the CPU beside llama.cpp: one GGUF file of random weights, the engines in turn.

    python benchmarks/moe_cpu.py [--type Q4_0] [--layers 4] [--threads 2] [--runs 40]

64 experts of which a token has 8, as OLMoE 1B-7B; half of its width. Runs are short, so that on a busy machine some of
them are not interrupted.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import click
import gguf
import numpy as np
from cpu_against_llama_cpp import ARTIFACTS, read_bandwidth
from tokenizers.pre_tokenizers import ByteLevel

from strixhlo.bundle import Bundle
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.targets import parse_target
from strixhlo.export import export
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.progress import Stages
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.native.compiled import CompiledBundle
from strixhlo.runtime.native.contender import Contender
from strixhlo.runtime.native.llama_cpp import LlamaCpp
from strixhlo.runtime.program import Program
from strixhlo.step_traffic import step_traffic

HIDDEN, INNER, EXPERTS, USED, HEADS, VOCABULARY = 1024, 512, 64, 8, 8, 8192
PROMPT, SHORT, DECODED = 64, 4, 3  # tokens: of a prefill; before those that are decoded; decoded in one run


def random_blocks(rng: np.random.Generator, kind: str, *shape: int) -> np.ndarray:
    """uint8 [..., bytes of a row]: random codes, and float16 scales that make weights of about 1 / sqrt(columns)."""
    type_ = gguf.GGMLQuantizationType[kind]
    block, nbytes = gguf.GGML_QUANT_SIZES[type_]
    raw = rng.integers(0, 256, (*shape[:-1], shape[-1] // block, nbytes), np.uint8)
    spread = {"Q4_0": 4.6, "Q8_0": 74.0}[kind]  # of the codes
    scale = np.full(raw.shape[:-1], shape[-1] ** -0.5 / spread, np.float16)
    raw[..., :2] = scale[..., None].view(np.uint8)
    return raw.reshape(*shape[:-1], -1)


def write_model(path: Path, kind: str, layers: int) -> Path:
    """The GGUF file, unless it is there."""
    if path.is_file():
        return path
    rng, temporary = np.random.default_rng(0), path.with_suffix(".part")
    writer = gguf.GGUFWriter(temporary, "olmoe")
    writer.add_block_count(layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    letters = sorted(ByteLevel.alphabet())
    tokens = ["<|endoftext|>", *letters, "he", *(f"w{i}" for i in range(VOCABULARY - 2 - len(letters)))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (VOCABULARY - 1))
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(0)
    quantized = gguf.GGMLQuantizationType[kind]

    def matrix(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", random_blocks(rng, kind, *shape), raw_dtype=quantized)

    def plain(name: str, values: np.ndarray) -> None:
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    matrix("token_embd", VOCABULARY, HIDDEN)
    matrix("output", VOCABULARY, HIDDEN)
    plain("output_norm", np.ones(HIDDEN))
    for i in range(layers):
        p = f"blk.{i}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(p + name, HIDDEN, HIDDEN)
        for name in ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"):
            plain(p + name, np.ones(HIDDEN))
        plain(p + "ffn_gate_inp", rng.standard_normal((EXPERTS, HIDDEN)) * HIDDEN**-0.5)
        matrix(p + "ffn_gate_exps", EXPERTS, INNER, HIDDEN)
        matrix(p + "ffn_up_exps", EXPERTS, INNER, HIDDEN)
        matrix(p + "ffn_down_exps", EXPERTS, HIDDEN, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return temporary.replace(path)


def bundle_of(source: Path, activations: str) -> Bundle:
    """Exported with what is timed, and compiled for this machine."""
    export.ENTRIES = {"prefill_64": ("prefill", PROMPT), "score_64": ("score", PROMPT), "decode_1": ("decode", 1)}
    quiet = Stages(lambda _name, _total: None, lambda _bytes: None)
    bundle = export.export_checkpoint(
        open_checkpoint(str(source)),
        ARTIFACTS / source.stem,
        context=512,
        dtype="auto",
        kv_dtype="f16",
        progress=quiet,
    )
    compile_bundle(
        bundle, parse_target("cpu"), activations=activations, keep_intermediates=None, say=lambda _text: None
    )
    return bundle


def times(bundle: Bundle, source: Path, threads: int, runs: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of (prefill of 64 tokens, a decoded token) of each run of each engine, in turn."""
    ids = np.random.default_rng(1).integers(300, VOCABULARY, PROMPT).tolist()
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "llama.cpp": []}
    with Program(bundle, "cpu", threads) as program, LlamaCpp(source, n_threads=threads) as native:
        engine = Engine(program)
        sides: dict[str, Contender] = {"ours": CompiledBundle(engine, None), "llama.cpp": native}
        for _ in range(runs):
            for name, side in sides.items():
                prefill = side.run(ids, 0).first_token
                found[name].append((prefill, side.run(ids[:SHORT], DECODED).decode / DECODED))
        engine.close()
    return found


@click.command()
@click.option("--type", "kind", default="Q4_0", show_default=True, type=click.Choice(["Q4_0", "Q8_0"]))
@click.option("--layers", default=4, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--runs", default=40, show_default=True)
def main(kind: str, layers: int, threads: int, runs: int) -> None:
    """Prints a Markdown table: least and median times, for on a busy machine the least says most."""
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    source = write_model(ARTIFACTS / f"olmoe-small-{layers}-{kind}.gguf", kind, layers)
    click.echo("| activations | | ms a token, least | median | ms of 64 tokens, least | median |")
    click.echo("|---|---|---:|---:|---:|---:|")
    for activations in ("int8", "f32"):
        bundle = bundle_of(source, activations)
        for name, pairs in times(bundle, source, threads, runs).items():
            prefill, decode = ([1000 * x for x in column] for column in zip(*pairs, strict=True))
            click.echo(
                f"| {activations} | {name} | {min(decode):.2f} | {median(decode):.2f}"
                f" | {min(prefill):.1f} | {median(prefill):.1f} |"
            )
        floor = step_traffic(bundle).step_bytes(1, SHORT, DECODED) / read_bandwidth(threads)
        click.echo(f"| {activations} | a plain read of its bytes | {1000 * floor:.2f} | | | |")
    click.echo(
        f"\nload {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores, {threads} threads each, {runs} runs, in turn"
    )


if __name__ == "__main__":
    main()
