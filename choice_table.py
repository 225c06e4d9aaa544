"""The table of what was measured on a device: for each question that a lowering rule asks, the best answer.

`strixhlo tune` writes it to BUNDLE/tuning/<chip>.json, and `strixhlo compile` uses it. It names no path and no weights,
so that it can be sent to others.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from .bundle import Size, read_record, write_record
from .errors import StrixhloError

FOLDER = "tuning"


def _printable(text: str) -> str:
    if not text.isprintable():  # it is shown on terminals
        raise ValueError(f"{text[:40]!a} has characters that cannot be printed")
    return text


Text = Annotated[str, Field(max_length=200), AfterValidator(_printable)]
Name = Annotated[str, Field(pattern="^[a-z_]{1,40}$")]
Answer = Annotated[dict[Name, int | Text], Field(min_length=1, max_length=8)]
Microseconds = Annotated[float, Field(gt=0, lt=1e9)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Entry(_Record):
    """A question (see custom_kernels.choices), its answer, what the rule would have answered, and how long a launch
    took with each; None in a table that nobody measured."""

    choice: Text
    kernel: Text
    rows: Annotated[int, Field(ge=0, lt=1 << 31)]
    shape: Annotated[tuple[Size, ...], Field(max_length=16)]
    answer: Answer
    rule: Answer
    microseconds: Microseconds | None = None
    rule_microseconds: Microseconds | None = None


class ChoiceTable(_Record):
    """origin: whether a device measured it, or it is reasoned. chip: what compiled programs name (gfx1151, sm_89, or
    the CPU's model); device, driver: what measured it, as they call themselves. kernels: hash of their sources."""

    schema_version: int
    origin: Literal["measured", "predicted"]
    chip: Text
    device: Text
    driver: Text
    activations: Text
    kernels: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    versions: dict[Text, Text]
    entries: Annotated[tuple[Entry, ...], Field(max_length=100_000)]

    @property
    def digest(self) -> str:
        """Of all that it says."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def table_path(bundle: Path, chip: str) -> Path:
    """Where a bundle keeps the table of a chip."""
    return bundle / FOLDER / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', chip)}.json"


def read_table(path: Path) -> ChoiceTable:
    """StrixhloError where it cannot be used."""
    return read_record(path, ChoiceTable, "table")


def write_table(path: Path, table: ChoiceTable) -> None:
    """Atomically, its folder made where it is not there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, table)
    except OSError as error:
        raise StrixhloError(
            f"{path}: cannot be written ({error.strerror}); choose a place that you can write to"
        ) from None
