"""`strixhlo doctor`: what stands in the way of running on this machine, and what to do about it."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape
from rich.table import Table

from .command_group import Output, Progress
from .errors import StrixhloError
from .progress import spinner
from .replacement import atomic_write

if TYPE_CHECKING:
    from .runtime.checks import Check
    from .runtime.doctor import Build

COLORS = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


@click.command()
@click.option("--no-self-test", is_flag=True, help="Only look: run nothing on a device.")
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    help="Also write what was read to this file, to be sent with a report: no names, serials or paths of yours.",
)
@click.option("--replay", type=click.Path(path_type=Path), help="Look at a recorded machine in place of this one.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def doctor(no_self_test: bool, record: Path | None, replay: Path | None, as_json: bool) -> None:
    """Look at GPU, driver, memory pools and libraries, and test each device; exit code 1 when something fails.

    Each line is ok, warn or fail, with what to do about it; skip is what does not apply here, or was not run.
    """
    from .runtime.doctor import machine_checks, self_tests
    from .runtime.machine_record import read_machine, record_machine

    if replay and record:
        raise StrixhloError("--record is of this machine, --replay looks at another one; leave one of them out")
    if record and not record.name:
        raise StrixhloError("--record needs the name of a file")
    if replay:
        with tempfile.TemporaryDirectory(prefix="strixhlo-replay-") as folder:
            read_machine(replay, Path(folder))
            checks = machine_checks(Path(folder), {})
    else:
        with spinner(Progress(), "looking at this machine") as say:
            checks = machine_checks()
            if not no_self_test:
                say("testing devices")
                checks += self_tests(_build())
    if record:
        atomic_write(record, (json.dumps(record_machine(checks), indent=1) + "\n").encode())
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=1))
    else:
        Output().print(_table(checks))
    if any(check.status == "fail" for check in checks):
        sys.exit(1)


def _build() -> Build | None:
    """What compiles the self-test's programs, None where the compiler is not installed."""
    if importlib.util.find_spec("iree.compiler") is None:
        return None
    from .selftest_programs import build_programs

    return build_programs


def _table(checks: list[Check]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column()
    for check in checks:
        color = COLORS[check.status]
        fix = f"\n[bold]{escape(check.fix)}[/bold]" if check.fix else ""
        table.add_row(f"[{color}]{check.status}[/{color}]", escape(check.name), escape(check.text) + fix)
    return table
