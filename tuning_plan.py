"""What `strixhlo tune` measures: programs of candidates, written where the compiler is, run where the device is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from .bundle import DType, Size
from .choice_table import Answer, Microseconds, Text

PLAN, MEASURED = "plan.json", "measured.json"
Module = Annotated[str, Field(pattern=r"^[a-z0-9_]+\.vmfb$")]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Operand(_Record):
    """An argument of a candidate. fill: normally distributed, or uniform between low and high (of integers: up to high
    itself). rotates: a weight, of which every launch of a call reads another copy."""

    shape: tuple[Size, ...]
    dtype: DType
    fill: Literal["normal", "uniform"]
    low: float = 0.0
    high: float = 0.0
    rotates: bool = False


class Candidate(_Record):
    """An answer, and the function that launches the op `Trial.repeats` times with it."""

    answer: Answer
    function: Annotated[str, Field(pattern="^c[0-9]+$")]


class Trial(_Record):
    """A question and its candidates, the rule's answer first. Functions take the operands that do not rotate, then the
    others once for each launch, and return the results of every launch."""

    choice: Text
    kernel: Text
    rows: Annotated[int, Field(ge=0, lt=1 << 31)]
    shape: tuple[Size, ...]
    op: Text
    module: Module
    candidates: Annotated[tuple[Candidate, ...], Field(min_length=2, max_length=1000)]
    operands: tuple[Operand, ...]
    results: Annotated[tuple[tuple[tuple[Size, ...], DType], ...], Field(min_length=1)]
    repeats: Annotated[int, Field(ge=1, le=64)]


class Plan(_Record):
    """key: hash of what the trials depend on: program, kernels' sources, versions. program_sha256: of the bundle's
    program.mlir. modules: what the trials' files hash to."""

    schema_version: int
    key: Text
    program_sha256: Sha256
    target: Annotated[str, Field(pattern="^(cpu|rocm|cuda)(:[a-z0-9_.-]{1,40})?$")]
    chip: Text
    activations: Text
    kernels: Sha256
    versions: dict[Text, Text]
    modules: dict[Module, Sha256]
    trials: tuple[Trial, ...]


class Timing(_Record):
    """Of one candidate: the median of a launch in microseconds, the least, and how far its results are from those of
    the rule's choice (relative L2; None: not comparable, such as NaN)."""

    answer: Answer
    microseconds: Microseconds
    least: Microseconds
    difference: float | None


class Measured(_Record):
    """Timings by the number of the trial, in the order of its candidates; so that an interrupted run goes on."""

    schema_version: int
    key: str
    device: Text
    driver: Text
    timings: dict[int, tuple[Timing, ...]]
