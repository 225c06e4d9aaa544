"""`strixhlo bench`: how fast a compiled bundle is, and how much of the device's bandwidth that takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .bundle import Bundle, open_bundle
from .command_group import Progress, say_dim
from .errors import StrixhloError
from .number_list import NumberList
from .progress import spinner

if TYPE_CHECKING:
    from .comparison.bench_table import Setting
    from .runtime.bench import Result, Test

FROM_ZERO, FROM_ONE = NumberList(0), NumberList(1)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--target", default="cpu", show_default=True, help="Which compiled program to run.")
@click.option("-p", "--prompt", type=FROM_ZERO, help="Prompt lengths; 0: none.  [default: 512; with --simulate 16]")
@click.option("-n", "--decode", type=FROM_ZERO, help="Tokens to decode; 0: none.  [default: 128; with --simulate 1]")
@click.option("-b", "--batch", type=FROM_ONE, default="1", show_default=True, help="Sequences to decode at a time.")
@click.option(
    "--depth", type=FROM_ZERO, default="0", show_default=True, help="Positions that are filled before a test."
)
@click.option("-r", "--repeats", default=5, show_default=True, type=click.IntRange(1), help="Timed runs of each test.")
@click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads. Default: one per core.")
@click.option("-o", "--output", type=click.Choice(["md", "json", "csv"]), default="md", show_default=True)
@click.option(
    "--simulate",
    is_flag=True,
    help="rocm only: execute the program in the gfx1151 simulator, and print what each launch of a decoded token did.",
)
def bench(
    bundle: Path,
    target: str,
    prompt: tuple[int, ...] | None,
    decode: tuple[int, ...] | None,
    batch: tuple[int, ...],
    depth: tuple[int, ...],
    repeats: int,
    threads: int | None,
    output: str,
    simulate: bool,
) -> None:
    """Tokens a second of prompts and of decoding, with bandwidth, dispatches and energy a token.

    Without a device, rocm gets a figure that is predicted from bytes, and says so.
    """
    opened = open_bundle(bundle)
    if simulate:
        if (batch, depth) != ((1,), (0,)) or target.partition(":")[0] != "rocm":
            raise StrixhloError("--simulate is for --target rocm, and takes -p and -n only (one number each)")
        from .comparison.simulated_bench import show_simulated

        show_simulated(opened, target, prompt or (16,), decode or (1,), output)
        return
    from .comparison.bench_table import as_csv, as_json, markdown
    from .runtime.bench import check_room, plan

    tests = plan((512,) if prompt is None else prompt, (128,) if decode is None else decode, batch, depth)
    if not tests:
        raise StrixhloError("bench: nothing to do; give -p or -n a number above 0")
    check_room(opened, tests)
    with spinner(Progress(), "bench") as say:
        setting, results = _measure(opened, target, tests, repeats, threads, say)
    click.echo({"md": markdown, "json": as_json, "csv": as_csv}[output](setting, results))


def _measure(
    bundle: Bundle, target: str, tests: list[Test], repeats: int, threads: int | None, say: Callable[[str], None]
) -> tuple[Setting, list[Result]]:
    """The device's copy first, while nothing else is in its memory; then the tests."""
    from .comparison.bench_table import Setting
    from .runtime.bench import PREDICTED, plan_cache, predict, run_tests
    from .runtime.device import Device
    from .runtime.energy import energy_sources
    from .runtime.program import Program, read_build, version_line
    from .runtime.selftest import TIMED, copy_bandwidth
    from .step_traffic import STRIX_HALO_BANDWIDTH, step_traffic

    build = read_build(bundle, target)
    if line := version_line(bundle, build):
        say_dim(line)
    kind = build.target.partition(":")[0]
    traffic = step_traffic(bundle, build)
    m = bundle.manifest
    size = m.weights_bytes + m.referenced_bytes
    try:
        device = Device(kind, threads)
    except StrixhloError as error:
        if kind != "rocm":
            raise
        note = f"no device: {error}"
        how = "which a copy reaches on gfx1151"
        setting = Setting(m.name, size, build.target, None, STRIX_HALO_BANDWIDTH, how, (PREDICTED, note))
        return setting, predict(bundle, build, tests, traffic)
    say(f"copy of {TIMED[kind] >> 20} MiB on the device")
    try:
        copy = copy_bandwidth(device, TIMED[kind])
    finally:
        device.close()
    how = f"the device's own copy of {TIMED[kind] >> 20} MiB, read and written"
    if kind == "cpu":
        how += ", which one thread does"
    with Program(bundle, build.target, threads, plan=plan_cache(bundle, build, tests)) as program:
        results = run_tests(program, tests, traffic, repeats=repeats, sources=energy_sources(), say=say)
    return Setting(m.name, size, build.target, threads, copy, how), results
