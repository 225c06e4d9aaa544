"""`strixhlo tune`: measure what the lowering rules may choose, on the owner's device, for one bundle."""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from traceback import clear_frames
from typing import TYPE_CHECKING

import click

from .bundle import Bundle, open_bundle, read_record, sha256_file
from .choice_table import FOLDER, ChoiceTable, table_path, write_table
from .command_group import Progress
from .cpu_features import cpu_model
from .errors import StrixhloError
from .progress import spinner
from .replacement import atomic_write, only_user
from .tuning_plan import PLAN, Measured, Plan

if TYPE_CHECKING:
    from .runtime.device import Device

MODULE_NAME = re.compile(r"m\d+\.vmfb")  # of what is in a folder that --prepare was stopped in
CPU, INT8 = "cpu", "int8"  # what is tuned unless something else is asked for


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path), required=False)
@click.option("--target", help="As for compile: cpu, rocm, cuda:sm_89, ... Default: cpu.")
@click.option("--activations", type=click.Choice(["int8", "f32"]), help="CPU only, as for compile. Default: int8.")
@click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads. Default: one per core.")
@click.option(
    "--rounds", default=7, show_default=True, type=click.IntRange(1, 1000), help="Timed calls of a candidate."
)
@click.option("--prepare", type=click.Path(path_type=Path), help="Only compile the candidates, into this folder.")
@click.option(
    "--measure",
    type=click.Path(path_type=Path),
    help="Only measure what --prepare wrote to this folder: needs the device, not the compiler, and no BUNDLE.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the table, or what was prepared, as JSON.")
def tune(
    bundle: Path | None,
    target: str | None,
    activations: str | None,
    threads: int | None,
    rounds: int,
    prepare: Path | None,
    measure: Path | None,
    as_json: bool,
) -> None:
    """Measure the kernels' choices for a bundle's matrices on this device: BUNDLE/tuning/<chip>.json.

    `strixhlo compile` then uses that table. Beside it is a report that can be sent: it names no paths and no weights.
    An interrupted run goes on where it was.
    """
    if prepare and measure:
        raise StrixhloError("--prepare is for the machine with the compiler, --measure for the one with the device")
    if bundle is None and not measure:
        raise StrixhloError("tune needs a BUNDLE, or --measure with a folder that --prepare has written")
    opened = open_bundle(bundle) if bundle else None
    if not measure:
        check_activations(target or CPU, activations)
    with spinner(Progress(), "tune") as say:
        if prepare and opened:
            with only_user(prepare):
                _check_ours(prepare)
                plan = _prepared(opened, target or CPU, activations or INT8, prepare, say)
            said = f"{prepare}: {_count(plan)}; measure with `strixhlo tune --measure {prepare}`"
            click.echo(json.dumps(_about_plan(plan, prepare), indent=1) if as_json else said)
            return
        folder = _folder(opened, target or CPU, measure)
        with only_user(folder):
            table, where = _tuned(opened, target, activations, measure, folder, threads, rounds, say)
    if as_json:
        click.echo(table.model_dump_json(indent=1))
        return
    better = [e for e in table.entries if e.answer != e.rule]
    click.echo(
        f"{where}: {len(table.entries)} choices measured on {table.device}, {len(better)} better than the rules'"
    )
    use = "compile again to use it" if opened else f"to use it, put it into BUNDLE/{FOLDER}/ and compile again"
    click.echo(f"{use}; to send it: {where.with_suffix('.md')}")


def check_activations(target: str, activations: str | None) -> None:
    """StrixhloError where 8-bit activations were asked for of a target whose kernels have none."""
    from .compile.targets import parse_target

    if parse_target(target).kind != CPU and activations == INT8:
        raise StrixhloError(f"--activations int8 is for the CPU, {target} computes in floating point; leave it out")


def _check_ours(folder: Path) -> None:
    """StrixhloError where a folder has files, and neither a plan of ours nor only modules that a stopped run left."""
    plan = folder / PLAN
    if not plan.is_file():
        foreign = next((p.name for p in sorted(folder.iterdir()) if not MODULE_NAME.fullmatch(p.name)), "")
        if foreign:
            raise StrixhloError(f"{folder}: holds something else ({foreign}); choose an empty folder or a new one")
        return
    try:
        found = json.loads(plan.read_bytes())
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not {"key", "trials"} <= found.keys():
        raise StrixhloError(f"{plan}: was not written by `strixhlo tune`; choose an empty folder or a new one")


def _prepared(bundle: Bundle, target: str, activations: str, folder: Path, say: Callable[[str], None]) -> Plan:
    """The plan in the folder, compiled unless it is there. StrixhloError where the target has nothing to choose."""
    from .compile.candidates import plan_key, write_candidates
    from .compile.targets import parse_target

    parsed = parse_target(target)
    activations = activations if parsed.kind == "cpu" else "f32"
    versions = {p: version(p) for p in ("strixhlo", "iree-base-compiler")}
    key = plan_key(bundle, parsed, activations, versions)
    if plan := _found(folder, key):
        return plan
    say("looking for choices")
    return write_candidates(bundle.program_text(), key, parsed, activations, versions, folder, say)


def _found(folder: Path, key: str) -> Plan | None:
    """The folder's plan, where it has this key and its modules are there."""
    if not (folder / PLAN).is_file():
        return None
    try:
        plan = read_record(folder / PLAN, Plan, "plan")
    except StrixhloError:  # damaged, or of another version: it is made again
        return None
    whole = all((folder / name).is_file() and sha256_file(folder / name) == sha for name, sha in plan.modules.items())
    return plan if plan.key == key and whole else None


def _folder(bundle: Bundle | None, target: str, measure: Path | None) -> Path:
    """Where the candidates are, or will be."""
    from .compile.targets import parse_target

    if measure and not measure.is_dir():
        raise StrixhloError(f"{measure}: no such folder; make it with `strixhlo tune BUNDLE --prepare {measure}`")
    if measure:
        return measure
    assert bundle is not None
    return bundle.path / FOLDER / f"work-{parse_target(target).name.replace(':', '-')}"


def _read_plan(folder: Path, bundle: Bundle | None, target: str | None, activations: str | None) -> Plan:
    """The plan that --measure names. StrixhloError where it is another bundle's, another CPU's, or for another target
    or activations than were asked for."""
    from .compile.targets import parse_target

    plan = read_record(folder / PLAN, Plan, "plan")
    if target and parse_target(target).name != plan.target:
        raise StrixhloError(f"{folder}: was prepared for {plan.target}, not for {target}; leave --target out")
    if activations and activations != plan.activations:
        raise StrixhloError(f"{folder}: was prepared for activations {plan.activations}; leave --activations out")
    if bundle and plan.program_sha256 != bundle.manifest.program_sha256:
        raise StrixhloError(f"{folder}: was prepared from another bundle than {bundle.path}; prepare it from this one")
    if plan.target.startswith("cpu") and plan.chip != cpu_model():
        raise StrixhloError(f"{folder}: was prepared for {plan.chip}, this is {cpu_model()}; prepare it here")
    return plan


def _tuned(
    bundle: Bundle | None,
    target: str | None,
    activations: str | None,
    measure: Path | None,
    folder: Path,
    threads: int | None,
    rounds: int,
    say: Callable[[str], None],
) -> tuple[ChoiceTable, Path]:
    """The table, and where it is."""
    from .compile.targets import parse_target
    from .runtime.device import Device
    from .runtime.tuned import choice_table, report
    from .runtime.tuning import measure as measure_plan

    plan = _read_plan(measure, bundle, target, activations) if measure else None
    kind = plan.target.partition(":")[0] if plan else parse_target(target or CPU).kind
    device = Device(kind, threads)  # before anything is compiled: without one there is no point
    try:
        if plan is None:
            assert bundle is not None
            plan = _prepared(bundle, target or CPU, activations or INT8, folder, say)
        measured: Measured = measure_plan(plan, folder, device, _about(kind, device), rounds, say)
    except BaseException as error:
        clear_frames(error.__traceback__)  # what an interrupted call holds must not outlive the device
        raise
    finally:
        device.close()
    table = choice_table(plan, measured)
    where = table_path(bundle.path if bundle else folder, table.chip)
    write_table(where, table)
    atomic_write(where.with_suffix(".md"), report(plan, measured).encode())
    if not measure:
        shutil.rmtree(folder)
    return table, where


def _count(plan: Plan) -> str:
    return f"{len(plan.trials)} choices, {_candidates(plan)} candidates for {plan.target}"


def _candidates(plan: Plan) -> int:
    return sum(len(trial.candidates) for trial in plan.trials)


def _about_plan(plan: Plan, folder: Path) -> dict[str, object]:
    """What --prepare prints as JSON."""
    fields = plan.model_dump(include={"target", "chip", "activations", "kernels", "versions"})
    return {"folder": str(folder), **fields, "choices": len(plan.trials), "candidates": _candidates(plan)}


def _about(kind: str, device: Device) -> tuple[str, str]:
    """What the device and its driver call themselves."""
    from .runtime.nvidia import nvidia_gpus

    if kind == "cpu":
        return cpu_model(), f"iree-base-runtime {version('iree-base-runtime')}"
    driver = f"Linux {platform.release()}"
    if kind == "cuda":
        text = Path("/proc/driver/nvidia/version")
        driver = text.read_text().splitlines()[0].partition(":")[2].strip()[:150] if text.is_file() else driver
        gpus, _ = nvidia_gpus()
        return (gpus[0].name if gpus else "NVIDIA GPU"), driver
    return device.name, driver
