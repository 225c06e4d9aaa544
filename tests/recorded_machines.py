"""What /sys, /proc and the like said on users' machines: tests/data/sysfs, as `strixhlo doctor --record` writes it."""

from __future__ import annotations

from pathlib import Path

from strixhlo.runtime.checks import Check
from strixhlo.runtime.machine_record import read_machine

RECORDS = Path(__file__).parent / "data" / "sysfs"


def tree(name: str, folder: Path) -> Path:
    """The files of the machine of that name under `folder`, which may be there already."""
    folder.mkdir(exist_ok=True)
    read_machine(RECORDS / f"{name}.json", folder)
    return folder


def line(checks: list[Check], name: str) -> Check:
    """The one check whose name begins so."""
    found = [c for c in checks if c.name.startswith(name)]
    assert len(found) == 1, [c.name for c in checks]
    return found[0]
