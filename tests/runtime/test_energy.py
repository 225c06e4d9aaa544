"""Energy from trees of sysfs as Linux lays them out, written by hand and put through the machine record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from strixhlo.runtime.energy import Source, energy_sources, measured_energy
from strixhlo.runtime.machine_record import read_machine, record_machine

RAPL = "sys/class/powercap/intel-rapl:0"
FILES = {
    f"{RAPL}/name": "package-0",
    f"{RAPL}/energy_uj": "262143000000",
    f"{RAPL}/max_energy_range_uj": "262143328850",
    "sys/class/powercap/intel-rapl:0:0/name": "core",
    "sys/class/powercap/intel-rapl:0:0/energy_uj": "5",
    "sys/class/hwmon/hwmon3/name": "k10temp",
    "sys/class/hwmon/hwmon3/power1_input": "77",
    "sys/class/hwmon/hwmon5/name": "amdgpu",
    "sys/class/hwmon/hwmon5/power1_average": "42008000",
    "sys/class/hwmon/hwmon5/power1_input": "43000000",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine as `doctor --record` keeps it, laid out again."""
    machine, again = tmp_path / "machine", tmp_path / "again"
    for name, text in FILES.items():
        (machine / name).parent.mkdir(parents=True, exist_ok=True)
        (machine / name).write_text(text + "\n")
    again.mkdir()
    (tmp_path / "record.json").write_text(json.dumps(record_machine(root=machine)))
    read_machine(tmp_path / "record.json", again)
    return again


def ticking() -> Iterator[float]:
    """A clock that goes on by two seconds a look."""
    now = 0.0
    while True:
        yield now
        now += 2.0


def test_packages_and_amdgpu_are_found_once(root: Path, tmp_path: Path) -> None:
    found = energy_sources(root)
    assert [s.name for s in found] == ["amdgpu power1_average", "package-0 (RAPL)"]
    assert [s.counter for s in found] == [False, True] and found[1].range == 262143328850
    assert energy_sources(tmp_path / "nothing") == ()
    (root / "sys/class/hwmon/hwmon5/energy1_input").write_text("1")
    assert energy_sources(root)[0].name == "amdgpu energy1_input"
    for file in ("energy1_input", "power1_average"):
        (root / "sys/class/hwmon/hwmon5" / file).unlink()
    assert energy_sources(root)[0].name == "amdgpu power1_input"


def test_a_counter_that_starts_again(root: Path) -> None:
    counter = energy_sources(root)[1]
    with measured_energy([counter]) as spent:
        counter.path.write_text("1671150")
    (energy,) = spent()
    assert energy.joules == pytest.approx(2.0)


def test_power_times_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strixhlo.runtime.energy.SAMPLE_SECONDS", 60)  # no sample between the first and the last
    clock = ticking()
    with measured_energy(energy_sources(root)[:1], lambda: next(clock)) as spent:
        (root / "sys/class/hwmon/hwmon5/power1_average").write_text("38008000")
    (energy,) = spent()
    assert energy.joules == pytest.approx(2.0 * 40.008)


@pytest.mark.parametrize(("text", "problem"), [(None, "missing"), ("-3", "absurd"), ("a lot", "no number")])
def test_what_cannot_be_read_is_no_energy(text: str | None, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "energy_uj"
    if text is not None:
        file.write_text(text)
    with measured_energy([Source("x", file, counter=True)]) as spent:
        pass
    (energy,) = spent()
    assert energy.joules is None and problem in energy.problem
