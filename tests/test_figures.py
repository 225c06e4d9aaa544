"""Every figure of docs/performance.md can be made again: its command is there, and make knows it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPT = re.compile(r"benchmarks/\w+\.py")


def test_each_figure_has_its_command_and_a_make_target() -> None:
    named = set(SCRIPT.findall((ROOT / "docs" / "performance.md").read_text()))
    assert len(named) > 8
    assert [script for script in sorted(named) if not (ROOT / script).is_file()] == []
    makefile = (ROOT / "Makefile").read_text()
    assert named - set(SCRIPT.findall(makefile)) == set()


def test_make_benchmarks_runs_each_of_them_in_turn() -> None:
    command = ["make", "--dry-run", "--old-file=.venv/.installed", "benchmarks"]
    plan = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for script in ("cpu_against_llama_cpp", "cpu_kernels", "moe_cpu", "serve_load", "speculative", "moe_models"):
        assert f"benchmarks/{script}.py" in plan
