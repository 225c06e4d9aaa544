"""Records of a bundle in which anything is something else: refused in one line, or accepted; never a stack trace."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from strixhlo.bundle import BUILD, MANIFEST, Bundle
from strixhlo.cli import main
from strixhlo.replacement import atomic_write

VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2, 16, 2**31 - 1, 2**31, 2**64, 10**18, 10**400, -(10**400), 1.5, 1e308, float("nan"),
    "", "x", "\0", "[/x]", "cpu", "f32", "../..", [], {}, [[]], [1, 2, 3], {"a": 1}, [None],
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, inner in items for p in places(inner, (*path, key)))]


def spoiled(record: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """One or two values gone, changed a little, or of another kind; every key of the record is as likely."""
    record = json.loads(json.dumps(record))
    for _ in range(dice.choice((1, 1, 2))):
        key = dice.choice(list(record) or ["x"])
        *path, last = dice.choice(places(record.get(key), (key,)))
        parent = record
        for step in path:
            parent = parent[step]
        action = dice.random()
        if action < 0.15 and key in record:
            del parent[last]
        elif action < 0.5 and key in record and type(parent[last]) is int:
            parent[last] = dice.choice((parent[last] + 1, parent[last] - 1, parent[last] * 2, -parent[last]))
        else:
            parent[last] = dice.choice(VALUES)
    return record


@pytest.mark.parametrize(("name", "rounds"), [(MANIFEST, 60), (f"cpu/{BUILD}", 25)])
def test_records_in_which_anything_is_something_else(tiny: Bundle, tmp_path: Path, name: str, rounds: int) -> None:
    folder = shutil.copytree(tiny.path, tmp_path / "bundle", copy_function=os.link)
    record = json.loads((folder / name).read_text())
    refused = 0
    for seed in range(rounds):
        atomic_write(folder / name, json.dumps(spoiled(record, random.Random(seed))).encode())
        for command in (
            ["inspect"],
            ["inspect", "--memory"],
            ["run", "--raw", "-p", "w1", "-n", "1", "--threads", "1"],
        ):
            done = CliRunner().invoke(main, [command[0], str(folder), *command[1:]])
            assert isinstance(done.exception, SystemExit | None), (seed, command, done.exception)
            assert done.exit_code in (0, 2), (seed, command, done.stderr)
            assert sum(line.startswith("strixhlo: ") for line in done.stderr.splitlines()) == (done.exit_code == 2)
            refused += done.exit_code == 2
    assert refused > rounds  # most of it is noticed
