"""Commands that write to one place at the same time."""

from __future__ import annotations

import subprocess
from pathlib import Path

from processes import COMMAND, PARTS, names

from strixhlo.bundle import open_bundle
from strixhlo.inspection import verify_bundle


def both(commands: list[list[object]]) -> None:
    processes = [
        subprocess.Popen([*COMMAND, *map(str, c)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for c in commands
    ]
    for process in processes:
        _, stderr = process.communicate(timeout=480)
        assert process.returncode == 0, stderr


def test_two_exports_to_one_place(checkpoint: Path, tmp_path: Path) -> None:
    both([["export", checkpoint, "-o", tmp_path / "out"]] * 3)
    verify_bundle(open_bundle(tmp_path / "out"))
    assert names(tmp_path) == ["out"]


def test_two_compilations_of_one_bundle(bundle: Path) -> None:
    both([["compile", bundle], ["compile", bundle, "--activations", "f32"]])
    verify_bundle(open_bundle(bundle))
    assert set(names(bundle)) == PARTS | {"cpu"}
