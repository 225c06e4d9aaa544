"""Runs the candidates of a plan on a device: how long each takes, and whether its results are the others'.

Weights rotate: every launch of a call reads another copy, and calls go on through copies that together are larger than
any cache. Candidates of a question take turns, so that a clock that changes is the same for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import iree.runtime as rt
import numpy as np

from ..bundle import SCHEMA_VERSION, read_record, sha256_file, write_record
from ..errors import StrixhloError, one_line
from ..tuning_plan import MEASURED, PLAN, Measured, Operand, Plan, Timing, Trial
from .device import Device
from .matrix_unit import modules_without_weights

ROTATING = 256 << 20  # bytes of weights, beyond any cache
MOST_COPIES = 256
DTYPES: dict[str, tuple[Any, Any]] = {  # of arrays, and what IREE calls it
    "f32": (np.float32, rt.HalElementType.FLOAT_32),
    "f16": (np.float16, rt.HalElementType.FLOAT_16),
    "bf16": (np.uint16, rt.HalElementType.BFLOAT_16),
    "i8": (np.int8, rt.HalElementType.SINT_8),
    "i32": (np.int32, rt.HalElementType.SINT_32),
}


def measure(
    plan: Plan, folder: Path, device: Device, about: tuple[str, str], rounds: int, say: Callable[[str], None]
) -> Measured:
    """Measure what is not in the folder's measured.json yet, and add it there trial by trial. about: names of the
    device and its driver."""
    _check_modules(plan, folder)
    done = _begun(plan, folder, about)
    for i, trial in enumerate(plan.trials):
        if i in done.timings:
            continue
        shape = "x".join(map(str, trial.shape))
        say(f"{i + 1} of {len(plan.trials)}: {trial.choice} {trial.kernel} {shape}, {len(trial.candidates)} candidates")
        timings = _Trial(device, folder, trial).run(rounds)
        done = done.model_copy(update={"timings": {**done.timings, i: timings}})
        try:
            write_record(folder / MEASURED, done)
        except OSError as error:
            raise StrixhloError(
                f"{folder / MEASURED}: cannot be written ({error.strerror}); make room there, or use a copy of it"
            ) from None
    return done


def _check_modules(plan: Plan, folder: Path) -> None:
    """StrixhloError where a trial's module is not what the plan was written for."""
    for name in {t.module for t in plan.trials}:
        path = folder / name
        if not path.is_file():
            raise StrixhloError(f"{path}: is missing; prepare the candidates again")
        if sha256_file(path) != plan.modules.get(name):
            raise StrixhloError(f"{path}: is not what {PLAN} was written for; prepare the candidates again")


def _begun(plan: Plan, folder: Path, about: tuple[str, str]) -> Measured:
    """What an interrupted run has left, if it is of this plan and device."""
    fresh = Measured(schema_version=SCHEMA_VERSION, key=plan.key, device=about[0], driver=about[1], timings={})
    if not (folder / MEASURED).is_file():
        return fresh
    try:
        found = read_record(folder / MEASURED, Measured, "measurement")
    except StrixhloError:  # cut short, or of another version: it is measured again
        return fresh
    if (found.key, found.device, found.driver) != (plan.key, *about):
        return fresh
    answers = {i: [c.answer for c in t.candidates] for i, t in enumerate(plan.trials)}
    kept = {i: t for i, t in found.timings.items() if [timing.answer for timing in t] == answers.get(i)}
    return found.model_copy(update={"timings": kept})


class _Trial:
    """One question's functions, loaded, with their operands on the device. Nothing of it outlives `run`."""

    def __init__(self, device: Device, folder: Path, trial: Trial) -> None:
        self.device, self.trial = device, trial
        try:
            instance = rt.VmInstance()
            module = rt.VmModule.copy_buffer(instance, (folder / trial.module).read_bytes())
            self.context = rt.VmContext(instance, [*modules_without_weights(instance, device), module])
            self.functions = [module.lookup_function(c.function) for c in trial.candidates]
            if None in self.functions:
                raise LookupError(f"has not all functions of {trial.choice} {trial.kernel}")
            generator = np.random.default_rng(0)
            self.fixed = [self._upload(_random(o, generator)) for o in trial.operands if not o.rotates]
            weights = [_random(o, generator) for o in trial.operands if o.rotates]
            nbytes = sum(array.nbytes for array, _ in weights)
            copies = max(min(-(-ROTATING // max(nbytes, 1)), MOST_COPIES), 1)
            self.copies = [[self._upload(w) for w in weights] for _ in range(copies)]
        except (OSError, RuntimeError, ValueError, LookupError, MemoryError, ArithmeticError) as error:
            raise StrixhloError(f"{folder / trial.module}: {one_line(error)}; prepare the candidates again") from None

    def run(self, rounds: int) -> tuple[Timing, ...]:
        """The timings of all candidates."""
        expected = self._results(self._call(0, 0)[1])
        differences = [_difference(self._results(self._call(c, 0)[1]), expected) for c in range(len(self.functions))]
        times: list[list[float]] = [[] for _ in self.functions]
        turn, each = 0, 1e6 / self.trial.repeats
        for _ in range(rounds):
            for c in range(len(self.functions)):
                turn += 1
                times[c].append(self._call(c, turn * self.trial.repeats)[0])
        return tuple(
            Timing(answer=c.answer, microseconds=median(t) * each, least=min(t) * each, difference=d)
            for c, t, d in zip(self.trial.candidates, times, differences, strict=True)
        )

    def _call(self, candidate: int, first: int) -> tuple[float, Any]:
        """Seconds of one call that begins at that copy of the weights, and its results."""
        arguments = rt.VmVariantList(len(self.fixed) + self.trial.repeats)
        for view in self.fixed:
            arguments.push_ref(view)
        for n in range(self.trial.repeats):
            for view in self.copies[(first + n) % len(self.copies)]:
                arguments.push_ref(view)
        results = rt.VmVariantList(self.trial.repeats)
        began = time.perf_counter()
        try:
            self.context.invoke(self.functions[candidate], arguments, results)
        except (RuntimeError, ValueError, MemoryError) as error:
            answer = self.trial.candidates[candidate].answer
            raise StrixhloError(f"{self.trial.kernel} with {answer} failed on the device: {one_line(error)}") from None
        return time.perf_counter() - began, results

    def _results(self, results: Any) -> list[np.ndarray]:
        """Copies of the first launch's results."""
        found = []
        for i, (shape, _) in enumerate(self.trial.results):
            try:
                array = rt.DeviceArray(self.device.hal, results.get_as_object(i, rt.HalBufferView)).to_host()
            except (RuntimeError, ValueError, LookupError) as error:
                where = f"{self.trial.module}: result {i} of {self.trial.kernel}"
                raise StrixhloError(f"{where}: {one_line(error)}; prepare the candidates again") from None
            if array.shape != shape:
                raise StrixhloError(
                    f"{self.trial.module}: {self.trial.kernel} gave {array.shape} where {PLAN} says {shape};"
                    " prepare the candidates again"
                )
            found.append(np.array(array))
        return found

    def _upload(self, made: tuple[np.ndarray, Any]) -> Any:
        memory = rt.MemoryType.DEVICE_LOCAL | (rt.MemoryType.HOST_VISIBLE if self.device.on_host else 0)
        return self.device.hal.allocator.allocate_buffer_copy(memory, rt.BufferUsage.DEFAULT, self.device.hal, *made)


def _random(operand: Operand, generator: np.random.Generator) -> tuple[np.ndarray, Any]:
    """An array, and IREE's element type."""
    dtype, element = DTYPES[operand.dtype]
    if operand.dtype in ("i8", "i32"):
        array = generator.integers(int(operand.low), int(operand.high), operand.shape, np.int64, endpoint=True)
        return array.astype(dtype), element
    if operand.fill == "uniform":
        values = generator.uniform(operand.low, operand.high, operand.shape).astype(np.float32)
    else:
        values = generator.standard_normal(operand.shape, np.float32)
    if operand.dtype == "bf16":
        values = (values.view(np.uint32) >> 16).astype(np.uint16)  # rounded towards zero
    return np.ascontiguousarray(values.astype(dtype)), element


def _difference(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float | None:
    """The largest relative L2 of the results; None where they are not numbers."""
    worst = 0.0
    for got, want in zip(found, expected, strict=True):
        wanted = want.astype(np.float64)
        length = float(np.linalg.norm(wanted))
        apart = float(np.linalg.norm(got.astype(np.float64) - wanted))
        if not np.isfinite([length, apart]).all():
            return None
        worst = max(worst, apart / length if length else apart)
    return worst
