"""Which table answers for the rules when a bundle is compiled: the bundle's own, else one that ships for the chip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import custom_kernels
from ..bundle import Bundle
from ..choice_table import ChoiceTable, read_table, table_path
from ..custom_kernels.choices import RULES_ONLY, Choices, Question
from .target_kernels import CHIPS, kernels_hash, tuned_chip
from .targets import Target

SHIPPED = Path(custom_kernels.__file__).parent / "gpu" / "tables"


def table_choices(bundle: Bundle, target: Target, activations: str) -> tuple[Choices, dict[str, Any]]:
    """The answers, and what build.json says of them: `source` (the table's file, "shipped", or "rules" where none
    ships), `origin` ("measured" or "predicted"), and `unused`, why a table that is there is not used. What a table does
    not answer, the rules do. StrixhloError where the bundle's cannot be read.
    """
    if not kernels_hash(target):
        return RULES_ONLY, {"source": "none", "origin": "the compiler's own"}
    chip = tuned_chip(target)
    path, unused = table_path(bundle.path, chip), {}
    if path.is_file():
        table, where = read_table(path), f"{path.parent.name}/{path.name}"
        reason = _unfit(table, target, activations)
        if not reason:
            return _answers(table, where)
        unused = {"unused": f"{where}: {reason}"}
    if target.kind in CHIPS and (shipped := SHIPPED / f"{chip}.json").is_file():
        table = read_table(shipped)
        if table.kernels == kernels_hash(target):
            choices, record = _answers(table, "shipped")
            return choices, record | unused
    origin = CHIPS[target.kind].origin if target.kind in CHIPS else "measured"
    return RULES_ONLY, {"source": "rules", "origin": origin, **unused}


def _answers(table: ChoiceTable, source: str) -> tuple[Choices, dict[str, Any]]:
    entries = {Question(e.choice, e.kernel, e.rows, e.shape): e.answer for e in table.entries}
    about = {"origin": table.origin, "device": table.device, "entries": len(entries), "digest": table.digest}
    return Choices(entries), {"source": source, **about}


def _unfit(table: ChoiceTable, target: Target, activations: str) -> str:
    if table.chip != tuned_chip(target):
        return f"is of {table.chip}"
    if table.activations != activations:
        return f"is for activations {table.activations}"
    if table.kernels != kernels_hash(target):
        return "was measured with other kernels than these; run `strixhlo tune` again"
    return ""


def refused_answers(choices: Choices) -> dict[str, str]:
    """What build.json says, after lowering, of answers that no kernel has; empty where there are none."""
    if not choices.refused:
        return {}
    question, answer = next(iter(choices.refused.items()))
    shape = "x".join(map(str, question.shape))
    said = ", ".join(f"{name:.40} {value!s:.40}" for name, value in answer.items())
    first = f"{question.choice:.40} {question.kernel:.40} {shape}: {said}"
    return {"ignored": f"{len(choices.refused)} answers that no kernel has, such as {first}; run `strixhlo tune` again"}


def table_lines(record: dict[str, Any]) -> list[str]:
    """The record for people to read."""
    if record["source"] == "none":
        return []
    where = {"rules": "by rule", "shipped": "the table that ships"}.get(record["source"], record["source"])
    if record["origin"] == "measured":
        how = f"measured on {record['device']}" if "device" in record else "measured"
    else:
        how = "predicted, not measured: see `strixhlo tune`"
    count = f", {record['entries']} answers" if "entries" in record else ""
    notes = (("not used", "unused"), ("ignored", "ignored"))
    return [f"  choices: {where}{count}, {how}", *(f"  {said}: {record[key]}" for said, key in notes if key in record)]
