"""What `strixhlo bench` prints: llama-bench's Markdown table, CSV, or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..runtime.bench import PREDICTED, Result


@dataclass(frozen=True)
class Setting:
    """What all rows share. copy: bytes a second of the device's copy, and `copy_source`: how that is known."""

    model: str
    size: int  # bytes of weights
    target: str
    threads: int | None
    copy: float | None
    copy_source: str
    notes: tuple[str, ...] = ()


COLUMNS = ("model", "size", "target", "threads", "batch", "test", "t/s", "GB/s", "of copy")
MORE = ("dispatches/token", "host waits/token", "J/token")


def markdown(setting: Setting, results: Sequence[Result]) -> str:
    """A table, then a line for each thing that must be said about its numbers."""
    head = (*COLUMNS, *MORE)
    rows = [_cells(setting, result) for result in results]
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" if i < 3 else "---:" for i in range(len(head))) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes(setting, results))])


def _cells(setting: Setting, result: Result) -> list[str]:
    bandwidth = result.bandwidth
    if result.mean is None:
        rate = "-"
    elif result.predicted:
        rate = f"<= {result.mean:.1f} ({PREDICTED})"
    else:
        rate = f"{result.mean:.2f} ± {result.deviation:.2f}"
    share = f"{bandwidth / setting.copy:.0%}" if bandwidth and setting.copy and not result.predicted else "-"
    joules = [e.joules for e in result.energy if e.joules is not None]
    return [
        setting.model,
        f"{setting.size / (1 << 20):.1f} MiB",
        setting.target,
        "-" if setting.threads is None else str(setting.threads),
        str(result.test.batch),
        result.test.name,
        rate,
        "-" if bandwidth is None or result.predicted else f"{bandwidth / 1e9:.1f}",
        share,
        *("-" if n is None else f"{n:.2f}".removesuffix(".00") for n in (result.dispatches, result.host_waits)),
        f"{joules[0]:.4f}" if joules else "-",
    ]


def notes(setting: Setting, results: Sequence[Result]) -> list[str]:
    """How to read the columns."""
    said = [
        "GB/s: the bytes that a decode step must read (active weights, and the keys and values that its tokens see,"
        " each once) over its time; with a batch, of the whole step",
        f"of copy: of {_giga(setting.copy)} GB/s, {setting.copy_source}",
        "dispatches and host waits: of the compiled program; fetching a token from a GPU waits once more",
    ]
    energies = [e for r in results for e in r.energy]
    sources = sorted({e.source for e in energies if e.joules is not None})
    problems = sorted({f"{e.source}: {e.problem}" for e in energies if e.joules is None})
    if sources:
        first = next(e.source for e in energies if e.joules is not None)
        said.append(f"J/token: {first}" + (f"; --output json also has {', '.join(sources)}" if sources[1:] else ""))
    else:
        said.append("J/token: " + ("; ".join(problems) or "this system does not tell"))
    return [*said, *setting.notes]


def _giga(bandwidth: float | None) -> str:
    return "-" if bandwidth is None else f"{bandwidth / 1e9:.1f}"


def as_json(setting: Setting, results: Sequence[Result]) -> str:
    """Everything, with the rate of each repetition."""
    record = {
        "model": setting.model,
        "weights_bytes": setting.size,
        "target": setting.target,
        "threads": setting.threads,
        "copy_bandwidth": setting.copy,
        "copy_source": setting.copy_source,
        "notes": notes(setting, results),
        "rows": [result.record(setting.copy) for result in results],
    }
    return json.dumps(record, indent=1)


def as_csv(setting: Setting, results: Sequence[Result]) -> str:
    """One line a test; energy is the first source that could be read."""
    out = io.StringIO()
    rows = [_flat(setting, result) for result in results]
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")


def _flat(setting: Setting, result: Result) -> Mapping[str, Any]:
    row = result.record(setting.copy)
    energy = [e.joules for e in result.energy if e.joules is not None]
    del row["rates"], row["energy"]
    own = {"model": setting.model, "weights_bytes": setting.size, "target": setting.target, "threads": setting.threads}
    return own | row | {"copy_bandwidth": setting.copy, "joules_per_token": energy[0] if energy else None}
