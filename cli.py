"""The command line: `strixhlo export | compile | run | compare | inspect`.

Rooms are imported inside the commands, so that `run` needs neither JAX nor the compiler.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from .bench_command import bench
from .bundle import Activations, open_bundle
from .chat_command import chat
from .command_group import Commands, Output, Progress, say_dim
from .compare_command import compare
from .doctor_command import doctor
from .errors import StrixhloError
from .eval_command import eval_
from .progress import export_progress, spinner
from .run_command import run
from .runtime.sizes import size
from .serve_command import serve
from .tune_command import check_activations, tune

stderr = Progress()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("strixhlo"), prog_name="strixhlo")
def main() -> None:
    """LLM inference through StableHLO and IREE.

    \b
    Three steps:
      strixhlo export  SOURCE -o BUNDLE        checkpoint -> portable bundle
      strixhlo compile BUNDLE --target cpu     bundle -> program for one kind of device
      strixhlo run     BUNDLE -p "Hello"       generate text
    """


@main.command()
@click.argument("source")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="Bundle folder. Default: artifacts/<name of SOURCE>."
)
@click.option(
    "--context", type=click.IntRange(min=1), help="Positions in the KV cache. Default: the model's, up to 4096."
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "f32", "f16", "bf16"]),
    default="auto",
    show_default=True,
    help="How matrices that are not quantized are stored; auto keeps the checkpoint's type.",
)
@click.option(
    "--kv-dtype",
    type=click.Choice(["fp8", "f16", "bf16", "f32"]),
    default="f16",
    show_default=True,
    help="KV cache; fp8 (E4M3) takes half of the memory of f16; bf16 has float32's range.",
)
@click.option(
    "--activations",
    type=click.Choice(["f32", "f16", "bf16"]),
    default="f32",
    show_default=True,
    help="What goes from layer to layer; every kernel computes in float32. On GPUs 16 bits are faster for prompts.",
)
@click.option(
    "--reference",
    is_flag=True,
    help="Leave weights that can be used as they are in the checkpoint's files, which must stay where they are. For"
    " GPUs; on the CPU, weights that are not aligned are copied into memory.",
)
@click.option("--dry-run", is_flag=True, help="Write nothing; print sizes, formats and the memory that a run needs.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def export(
    source: str,
    out: Path | None,
    context: int | None,
    dtype: str,
    kv_dtype: str,
    activations: Activations,
    reference: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Trace a checkpoint into a bundle: StableHLO program, weights, tokenizer.

    SOURCE is a GGUF file, a folder with safetensors and config.json, or a Hugging Face hub id such as
    HuggingFaceTB/SmolLM2-135M-Instruct (downloaded once; HF_HUB_OFFLINE=1 uses the cache alone).
    """
    from .export.checkpoint.checkpoint import open_checkpoint
    from .export.export import export_checkpoint
    from .inspection import compiled_targets

    out = out or Path("artifacts") / _name(source)
    with export_progress(stderr) as progress:
        progress.stage(f"opening {source}", 0)
        checkpoint = open_checkpoint(source, progress)
        if not dry_run:
            lost = compiled_targets(out)
            bundle = export_checkpoint(
                checkpoint,
                out,
                context=context,
                dtype=dtype,
                kv_dtype=kv_dtype,
                progress=progress,
                reference=reference,
                activations=activations,
            )
    if dry_run:
        from .export_plan import show_plan

        types = {"dtype": dtype, "kv_dtype": kv_dtype, "activations": activations}
        show_plan(checkpoint, context=context, **types, as_json=as_json)
        return
    if lost:
        say_dim(f"{out}: replaces the bundle that was there, whose programs for {', '.join(lost)} are gone")
    m = bundle.manifest
    if as_json:
        click.echo(json.dumps({"bundle": str(out), "weights_bytes": m.weights_bytes, "context": m.context}))
    else:
        click.echo(
            f"{out}: {m.family}, {size(m.weights_bytes)} of weights, context {m.context}, {m.activations} activations"
        )


def _name(source: str) -> str:
    """The bundle's name for a path or a hub id."""
    path = Path(source)
    return (path.resolve() if path.exists() else path).name.removesuffix(".gguf")


@main.command("compile")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--target",
    default="cpu",
    show_default=True,
    help="cpu (this machine), cpu:x86-64[-v2|-v3|-v4], rocm[:gfx1151], cuda[:sm_80|...] or vulkan.",
)
@click.option(
    "--activations",
    type=click.Choice(["int8", "f32"]),
    default="int8",
    show_default=True,
    help="CPU only. int8: rounded to 8 bits before each quantized matmul, as llama.cpp does; f32: exact, slower.",
)
@click.option(
    "--kv-cache-dtype",
    type=click.Choice(["fp8", "f16", "bf16", "f32"]),
    help="KV cache in place of the exported one (not on vulkan); fp8 takes half of the memory of f16.",
)
@click.option("--keep-intermediates", type=click.Path(path_type=Path), help="Folder for what the compiler dumps.")
@click.option("--json", "as_json", is_flag=True, help="Print build.json.")
def compile_(
    bundle: Path,
    target: str,
    activations: str,
    kv_cache_dtype: str | None,
    keep_intermediates: Path | None,
    as_json: bool,
) -> None:
    """Compile a bundle's program for a target: BUNDLE/<target>/program.vmfb and build.json.

    Does nothing when program, manifest, flags, versions and the sources that lower it are those of the build there.
    """
    if click.get_current_context().get_parameter_source("activations") != ParameterSource.DEFAULT:
        check_activations(target, activations)
    from .compile.compile import compile_bundle
    from .compile.report import report_lines
    from .compile.targets import parse_target

    with spinner(stderr, f"compiling for {target}") as say:
        result = compile_bundle(
            open_bundle(bundle),
            parse_target(target),
            activations=activations,
            keep_intermediates=keep_intermediates,
            say=say,
            kv_dtype=kv_cache_dtype,
        )
    if as_json:
        click.echo(result.build.model_dump_json(indent=1))
        return
    state = "compiled" if result.fresh else "up to date"
    calls = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in result.build.report.items() if isinstance(v, int))
    click.echo(f"{bundle}: {target} {state}, {size(result.build.vmfb_bytes)} ({calls})")
    for line in report_lines(result.build.report):
        click.echo(line)


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--verify", is_flag=True, help="Also read all files, and hold their SHA-256 against the records.")
@click.option("--memory", is_flag=True, help="What it needs, line by line, and whether this or a named machine has it.")
@click.option("--machine", multiple=True, help="With --memory: a machine by name, in place of this one; `all` is all.")
@click.option("--target", help="With --memory: the compiled program. Default: cpu; rocm for a named machine.")
@click.option("--context", type=click.IntRange(1, 1 << 30), help="With --memory: positions of each sequence.")
@click.option("--parallel", type=click.IntRange(1, 1 << 20), default=1, help="With --memory: sequences at a time.")
@click.option("--memory-budget", help="With --memory: hold it against this, such as 24G.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def inspect(bundle: Path, verify: bool, memory: bool, as_json: bool, **budget: Any) -> None:
    """What is in a bundle: model, weights, KV cache, entry points, custom ops, compiled targets."""
    from .inspection import bundle_record, bundle_table, verify_bundle

    opened = open_bundle(bundle)
    if budget["machine"] and not memory:
        raise StrixhloError("--machine says against what to hold the memory that it needs; add --memory")
    if verify:
        with spinner(stderr, f"verifying {bundle}"):
            verify_bundle(opened)
    if memory:
        from .memory_table import show_budgets

        show_budgets(opened, as_json=as_json, **budget)
        return
    record = bundle_record(opened)
    if verify:
        record["verified"] = True
    if as_json:
        click.echo(json.dumps(record, indent=1))
    else:
        Output().print(bundle_table(record))


main.add_command(bench)
main.add_command(chat)
main.add_command(compare)
main.add_command(doctor)
main.add_command(eval_)
main.add_command(run)
main.add_command(serve)
main.add_command(tune)


if __name__ == "__main__":
    main()
