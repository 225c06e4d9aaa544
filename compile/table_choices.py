"""Which table answers for the rules when a bundle is compiled."""

from __future__ import annotations

from typing import Any

from ..bundle import Bundle
from ..choice_table import ChoiceTable, read_table, table_path
from ..custom_kernels.choices import RULES_ONLY, Choices, Question
from .target_kernels import CHIPS, kernels_hash, tuned_chip
from .targets import Target


def table_choices(bundle: Bundle, target: Target, activations: str) -> tuple[Choices, dict[str, Any]]:
    """The answers of the bundle's table, and what build.json says of them: `source` (the table's file, or "rules"),
    `origin` ("measured" or "predicted"), and `unused`, why a table that is there is not used.

    StrixhloError where it cannot be read.
    """
    if not kernels_hash(target):
        return RULES_ONLY, {"source": "none", "origin": "the compiler's own"}
    path = table_path(bundle.path, tuned_chip(target))
    rules = {"source": "rules", "origin": CHIPS[target.kind].origin if target.kind in CHIPS else "measured"}
    if not path.is_file():
        return RULES_ONLY, rules
    table = read_table(path)
    where = f"{path.parent.name}/{path.name}"
    if reason := _unfit(table, target, activations):
        return RULES_ONLY, rules | {"unused": f"{where}: {reason}"}
    entries = {Question(e.choice, e.kernel, e.rows, e.shape): e.answer for e in table.entries}
    about = {"origin": table.origin, "device": table.device, "entries": len(entries), "digest": table.digest}
    return Choices(entries), {"source": where, **about}


def _unfit(table: ChoiceTable, target: Target, activations: str) -> str:
    if table.chip != tuned_chip(target):
        return f"is of {table.chip}"
    if table.activations != activations:
        return f"is for activations {table.activations}"
    if table.kernels != kernels_hash(target):
        return "was measured with other kernels than these; run `strixhlo tune` again"
    return ""


def table_lines(record: dict[str, Any]) -> list[str]:
    """The record for people to read."""
    if record["source"] == "rules":
        measured = record["origin"] == "measured"
        lines = ["  choices: by rule, " + ("measured" if measured else "predicted, not measured: see `strixhlo tune`")]
    elif record["source"] == "none":
        return []
    else:
        text = f"  choices: {record['source']}, {record['origin']} on {record['device']}, {record['entries']} answers"
        lines = [text]
    return [*lines, *([f"  not used: {record['unused']}"] if "unused" in record else [])]
