"""README's table of what works says what the parity tests' marks say, neither more nor less."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import conftest
import coverage_table
import pytest
from coverage_table import (
    ALL,
    BEGIN,
    DECLARED,
    END,
    NOT_WRITTEN,
    PASSED,
    README,
    WRITE,
    Covered,
    covers,
    declared,
    formats,
    pytest_sessionfinish,
    pytest_testnodedown,
    rows_of,
    table,
)


def test_readme(pytestconfig: pytest.Config) -> None:
    """All marks where the whole suite is collected; in a part of it nothing is compared that this part does not say."""
    found = rows_of(README.read_text("utf-8"))
    items = pytestconfig.stash[ALL]
    marked = {p for p in README.parent.glob("tests/**/test_*.py") if "covers(" in p.read_text("utf-8")}
    if marked <= {item.path for item in items} and not any("::" in argument for argument in pytestconfig.args):
        assert found == table(declared(items)), "run `make table`"
    for covered in declared(items):
        row = next((line for line in found.splitlines() if line.startswith(f"| {covered.model} |")), "")
        assert covered.format.partition(" ")[2] in row and covered.against in row, f"{covered}: run `make table`"


def test_rendering() -> None:
    rows = [
        Covered("Mistral (`mistral`)", "GGUF Q4_K", "cpu", "llama.cpp"),
        Covered("Mistral (`mistral`)", "GGUF F16", "cpu", "llama.cpp"),
        Covered("Mistral (`mistral`)", "MLX nvfp4", "jax", "mlx_lm"),
    ]
    assert table(rows).splitlines() == [
        "| model | traced, run by JAX | cpu | held against |",
        "|---|---|---|---|",
        "| Mistral (`mistral`) | MLX nvfp4 | GGUF F16, Q4_K | llama.cpp, mlx_lm |",
    ]
    assert formats(["safetensors"]) == "safetensors"


class Session:
    """As much of a pytest.Session as the writer looks at."""

    def __init__(self, testsfailed: int, passed: set[Covered]) -> None:
        self.config, self.testsfailed = self, testsfailed
        self.stash: Any = {ALL: [Marked()], DECLARED: set[Covered](), PASSED: passed}
        self.exitstatus = 0

    def getoption(self, name: str) -> bool:
        return name == WRITE


class Marked:
    """A test that covers ONE."""

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [covers("Mistral (", "GGUF F16", "cpu", "llama.cpp").mark] if name == "covers" else []


ONE = Covered("Mistral (`mistral`)", "GGUF F16", "cpu", "llama.cpp")


def test_the_table_is_written_from_a_run_that_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}old\n{END}\nafter\n")
    monkeypatch.setattr("coverage_table.README", readme)
    for failed, passed in ((1, {ONE}), (0, set[Covered]())):
        session = Session(failed, passed)
        pytest_sessionfinish(session)  # type: ignore[arg-type]
        assert session.exitstatus == pytest.ExitCode.TESTS_FAILED and "not written" in session.stash[NOT_WRITTEN]
    assert "old" in readme.read_text()
    pytest_sessionfinish(Session(0, {ONE}))  # type: ignore[arg-type]
    assert readme.read_text() == f"before\n{BEGIN}{table([ONE])}{END}\nafter\n"


def test_what_workers_say_is_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each collects all tests and runs some; the session collects none."""
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}old\n{END}")
    monkeypatch.setattr("coverage_table.README", readme)
    session = Session(0, set())
    session.stash[ALL] = []
    for passed in (set[Covered](), {ONE}):
        worker = Session(0, passed)
        worker.workeroutput = {"input": 1}  # type: ignore[attr-defined]
        pytest_sessionfinish(worker)  # type: ignore[arg-type]
        sent = json.loads(json.dumps(worker.workeroutput))  # type: ignore[attr-defined]
        pytest_testnodedown(SimpleNamespace(config=session, workeroutput=sent))
        if not passed:
            pytest_sessionfinish(session)  # type: ignore[arg-type]
            assert "GGUF F16" in session.stash.pop(NOT_WRITTEN)
    pytest_testnodedown(SimpleNamespace(config=session))  # one that crashed says nothing
    pytest_sessionfinish(session)  # type: ignore[arg-type]
    assert readme.read_text() == f"{BEGIN}{table([ONE])}{END}"


def test_every_hook_is_pytest_s() -> None:
    """Without the one that hears of workers, `make table` would write an empty table."""
    hooks = {name for name in vars(coverage_table) if name.startswith("pytest_")}
    assert hooks and hooks <= vars(conftest).keys()


def test_marks_name_what_is_known() -> None:
    with pytest.raises(AssertionError, match="begins 0 lines"):
        covers("Lama", "GGUF F16", "cpu", "llama.cpp")
    with pytest.raises(AssertionError, match="tpu"):
        covers("Mistral", "GGUF F16", "tpu", "llama.cpp")
