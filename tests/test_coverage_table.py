"""README's table of what works says what the parity tests' marks say, neither more nor less."""

from __future__ import annotations

import pytest
from coverage_table import ALL, README, Covered, covers, declared, formats, rows_of, table


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


def test_marks_name_what_is_known() -> None:
    with pytest.raises(AssertionError, match="begins 0 lines"):
        covers("Lama", "GGUF F16", "cpu", "llama.cpp")
    with pytest.raises(AssertionError, match="tpu"):
        covers("Mistral", "GGUF F16", "tpu", "llama.cpp")
