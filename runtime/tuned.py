"""The table that timings make, and the report of it that an owner can send: it names no paths and no weights."""

from __future__ import annotations

from collections.abc import Iterator

from ..bundle import DTYPE_BYTES, SCHEMA_VERSION
from ..choice_table import ChoiceTable, Entry
from ..tuning_plan import Measured, Plan, Timing, Trial

# Relative L2 between two orders of summation, by the result's type. Matrix units sum 14,336 columns with an error of
# 3e-5 where products cancel, as random ones do; a kernel that is wrong is off by 1e-2 and more.
TOLERANCE = {"f32": 1e-4, "f16": 4e-3, "bf16": 2e-2}
GAIN = 0.97  # of the rule's time, median and least: what is closer may be noise


def best(trial: Trial, timings: tuple[Timing, ...]) -> Timing:
    """The fastest candidate whose results are those of the rule's choice; that one, where nothing is clearly faster."""
    rule = timings[0]
    faster = [
        t
        for t in timings
        if agrees(trial, t) and t.microseconds < GAIN * rule.microseconds and t.least < GAIN * rule.least
    ]
    return min(faster, key=lambda t: t.microseconds, default=rule)


def agrees(trial: Trial, timing: Timing) -> bool:
    """Whether the results are those of the rule's choice, but for the order of summation."""
    allowed = max(TOLERANCE.get(dtype, 0.0) for _, dtype in trial.results)
    return timing.difference is not None and timing.difference <= allowed


def choice_table(plan: Plan, measured: Measured) -> ChoiceTable:
    """All answers, those of the rule included."""
    entries = []
    for i, trial in enumerate(plan.trials):
        timings = measured.timings[i]
        chosen = best(trial, timings)
        entries.append(
            Entry(
                choice=trial.choice,
                kernel=trial.kernel,
                rows=trial.rows,
                shape=trial.shape,
                answer=chosen.answer,
                rule=timings[0].answer,
                microseconds=round(chosen.microseconds, 3),
                rule_microseconds=round(timings[0].microseconds, 3),
            )
        )
    return ChoiceTable(
        schema_version=SCHEMA_VERSION,
        origin="measured",
        chip=plan.chip,
        device=measured.device,
        driver=measured.driver,
        activations=plan.activations,
        kernels=plan.kernels,
        versions=plan.versions,
        entries=tuple(entries),
    )


def report(plan: Plan, measured: Measured) -> str:
    """Markdown: what was chosen, how fast it is, and how fast the rule's choice was."""
    table = choice_table(plan, measured)
    versions = ", ".join(f"{name} {version}" for name, version in table.versions.items())
    lines = [
        f"# Kernels tuned on {table.device}",
        "",
        f"- chip {table.chip}, driver {table.driver}, activations {table.activations}",
        f"- {versions}, kernels {table.kernels[:12]}",
        "- us: one launch, the median, weights rotating through 256 MB; GB/s: of weights",
        "",
        "| choice | kernel | rows | shape | rule | us | chosen | us | GB/s | gain |",
        "|---|---|---:|---|---|---:|---|---:|---:|---:|",
        *_rows(plan, table),
    ]
    wrong = [(t, timing) for i, t in enumerate(plan.trials) for timing in measured.timings[i] if not agrees(t, timing)]
    if wrong:
        lines += ["", "These gave other results than the rule's choice, and were not taken:", ""]
        lines += [
            f"- {t.kernel} {_shape(t.shape)} {_answer(timing.answer)}: {timing.difference}" for t, timing in wrong
        ]
    return "\n".join(lines) + "\n"


def _rows(plan: Plan, table: ChoiceTable) -> Iterator[str]:
    for trial, e in zip(plan.trials, table.entries, strict=True):
        nbytes = sum(_bytes(o.shape, o.dtype) for o in trial.operands if o.rotates)
        us, rule = e.microseconds or 0.0, e.rule_microseconds or 0.0
        cells = [e.choice, e.kernel, str(e.rows or "any"), _shape(e.shape), _answer(e.rule), f"{rule:.1f}"]
        cells += [_answer(e.answer), f"{us:.1f}", f"{nbytes / us / 1e3:.0f}", f"{rule / us:.2f}x"]
        yield "| " + " | ".join(cells) + " |"


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    count = DTYPE_BYTES[dtype]
    for n in shape:
        count *= n
    return count


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _answer(answer: dict[str, int | str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in answer.items())
