"""The simulated device of this process: options, accounts, and IREE's driver on top of it."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from .build import library

DEFAULTS = {
    "poison": 0xFF,
    "wave_order": 0,
    "group_order": 0,
    "turn": 0,
    "most": 1 << 32,
    "races": 1,
    "uninitialized": 0,
}


@dataclass(frozen=True)
class Launch:
    """What one launch did. Bytes: `requested` by active lanes; `distinct`: whole 64-byte lines, each once a launch."""

    kernel: str
    grid: tuple[int, int, int]  # workgroups
    block: tuple[int, int, int]  # threads of a workgroup
    lds_bytes: int  # of a workgroup
    load_requested: int
    store_requested: int
    load_distinct: int
    store_distinct: int
    lds_moved: int
    uninitialized_bytes: int  # loaded from memory that nothing had written
    uninitialized: str  # where first
    fault: str
    instructions: dict[str, int]  # by class

    @property
    def total_instructions(self) -> int:
        """Instructions executed, summed over waves."""
        return sum(self.instructions.values())


@dataclass
class Account:
    """Launches in order, and the sizes of copies and fills that the driver asked for."""

    launches: list[Launch] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    fills: list[int] = field(default_factory=list)

    def total(self, name: str) -> int:
        """The sum of one attribute over the launches."""
        return sum(getattr(launch, name) for launch in self.launches)

    def instructions(self) -> dict[str, int]:
        """Instructions by class, over all launches."""
        totals: dict[str, int] = {}
        for launch in self.launches:
            for name, count in launch.instructions.items():
                totals[name] = totals.get(name, 0) + count
        return totals


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL:
    """The library, built and loaded."""
    lib = ctypes.CDLL(str(library()))
    lib.simulator_records.restype = ctypes.c_char_p
    lib.simulator_option.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    lib.hipGetErrorString.restype = ctypes.c_char_p
    return lib


def start() -> None:
    """Makes IREE's HIP driver of this process use the simulator. Before any other use of that driver."""
    load()
    os.environ["IREE_HIP_DYLIB_PATH"] = f"file:{library()}"


def set_options(**options: int) -> None:
    """Options of options.h for the launches that follow. ValueError for one that does not exist."""
    for name, value in options.items():
        if not load().simulator_option(name.encode(), value):
            raise ValueError(f"the simulator has no option {name}")


@contextmanager
def using(**options: int) -> Iterator[None]:
    """Options for the launches inside the block only."""
    set_options(**options)
    try:
        yield
    finally:
        set_options(**{name: DEFAULTS[name] for name in options})


@contextmanager
def recording() -> Iterator[Account]:
    """Yields an account that is filled, when the block is left, with what happened inside it."""
    load().simulator_reset()
    account = Account()
    try:
        yield account
    finally:
        for record in json.loads(f"[{load().simulator_records().decode()}]"):
            _add(account, record)


def _add(account: Account, record: dict[str, Any]) -> None:
    if "copy" in record:
        account.copies.append(record["copy"])
    elif "fill" in record:
        account.fills.append(record["fill"])
    else:
        shape = {name: tuple(record[name]) for name in ("grid", "block")}
        account.launches.append(Launch(**{**record, **shape}))


def opcodes() -> list[tuple[str, int, str, int]]:
    """(encoding, number, name, times executed in this process) of every opcode that is implemented."""
    encoding, name = ctypes.c_char_p(), ctypes.c_char_p()
    number, executed = ctypes.c_uint32(), ctypes.c_uint64()
    found, k = [], 0
    while load().simulator_opcode(
        k, ctypes.byref(encoding), ctypes.byref(number), ctypes.byref(name), ctypes.byref(executed)
    ):
        if name.value and encoding.value:
            found.append((encoding.value.decode(), number.value, name.value.decode(), executed.value))
        k += 1
    return found


def report(account: Account) -> str:
    """A table: one line for each kernel and grid, then the sum."""
    groups: dict[tuple[str, tuple[int, int, int]], Account] = {}
    for launch in account.launches:
        groups.setdefault((launch.kernel, launch.grid), Account()).launches.append(launch)
    columns = ("total_instructions", "load_distinct", "load_requested", "store_distinct", "lds_moved")
    head = f"{'kernel':48} {'launches':>8} {'grid':>12} " + " ".join(f"{name:>18}" for name in columns)
    lines = [head]
    for (kernel, grid), part in [*groups.items(), (("total", (0, 0, 0)), account)]:
        shape = "x".join(map(str, grid)) if kernel != "total" else ""
        sums = " ".join(f"{part.total(name):>18}" for name in columns)
        lines.append(f"{kernel[:48]:48} {len(part.launches):>8} {shape:>12} {sums}")
    wmma = account.instructions().get("wmma", 0)
    lines.append(f"{wmma} WMMA instructions, {sum(account.copies)} bytes copied, {sum(account.fills)} bytes filled")
    return "\n".join(lines)
