"""Energy that the system counts: RAPL's packages, and the power that amdgpu's hwmon reports.

Documentation/power/powercap/powercap.rst of Linux: energy_uj counts microjoules up to max_energy_range_uj, then starts
again at 0. Documentation/gpu/amdgpu/thermal: power1_average and power1_input are microwatts; energy1_input, where there
is one, microjoules (Documentation/hwmon/sysfs-interface).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .sysfs import ROOT, entries, read_number, read_text

SAMPLE_SECONDS = 0.05


@dataclass(frozen=True)
class Source:
    """One number in sysfs: a counter of microjoules that starts again after `range` (0: never), or microwatts."""

    name: str  # "package-0 (RAPL)", "amdgpu power1_average"
    path: Path
    counter: bool
    range: int = 0


@dataclass(frozen=True)
class Energy:
    """What one source counted; joules is None where it could not be read, and `problem` says why."""

    source: str
    joules: float | None
    problem: str = ""


def energy_sources(root: Path = ROOT) -> tuple[Source, ...]:
    """All that this system tells: amdgpu first, which on an APU counts the whole chip. Empty where it tells nothing."""
    return (*_hwmon(root / "sys/class/hwmon"), *_rapl(root / "sys/class/powercap"))


def _hwmon(folder: Path) -> Iterator[Source]:
    for device in entries(folder):
        if read_text(device / "name")[0] != "amdgpu":
            continue
        for file in ("energy1_input", "power1_average", "power1_input"):
            if (device / file).exists():
                yield Source(f"amdgpu {file}", device / file, counter=file.startswith("energy"))
                break


def _rapl(folder: Path) -> Iterator[Source]:
    """Packages only (intel-rapl:0, on AMD's processors too): their parts are counted in them."""
    for zone in entries(folder):
        if zone.name.count(":") == 1 and (zone / "energy_uj").exists():
            largest = read_number(zone / "max_energy_range_uj").value or 0
            name = read_text(zone / "name")[0] or zone.name
            yield Source(f"{name} (RAPL)", zone / "energy_uj", counter=True, range=largest)


@contextmanager
def measured_energy(
    sources: Sequence[Source], clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[], list[Energy]]]:
    """Yields what gives, after the block, the energy spent in it by each source. Power is sampled 20 times a second."""
    meters = [_Meter(source, clock) for source in sources]
    done = threading.Event()
    for meter in meters:
        meter.sample()

    def watch() -> None:
        while not done.wait(SAMPLE_SECONDS):
            for meter in meters:
                meter.sample()

    thread = threading.Thread(target=watch, name="energy", daemon=True)
    if meters:
        thread.start()
    try:
        yield lambda: [meter.energy() for meter in meters]
    finally:
        done.set()
        if meters:
            thread.join()
            for meter in meters:
                meter.sample()


class _Meter:
    """Sums one source up from sample to sample, which is often enough that a counter starts again once at most."""

    def __init__(self, source: Source, clock: Callable[[], float]) -> None:
        self._source, self._clock = source, clock
        self._last: tuple[float, int] | None = None
        self._microjoules = 0.0
        self._problem = ""

    def sample(self) -> None:
        found, now = read_number(self._source.path), self._clock()
        if found.value is None:
            self._problem = found.problem
            return
        if self._last is not None:
            then, before = self._last
            if self._source.counter:
                step = found.value - before
                self._microjoules += step if step >= 0 else step + self._source.range
            else:
                self._microjoules += (before + found.value) / 2 * (now - then)
        self._last = (now, found.value)

    def energy(self) -> Energy:
        if self._problem or self._last is None:
            return Energy(self._source.name, None, self._problem)
        return Energy(self._source.name, self._microjoules / 1e6)
