"""The most memory that a program has held."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .sizes import size
from .sysfs import ROOT, number, read_table


@dataclass(frozen=True)
class Peak:
    """Bytes. device: in a GPU's buffers (weights, KV cache, temporaries, results), by IREE's own count, which is of all
    devices that the process has opened; None on the CPU and under Vulkan, where IREE does not count what a call takes.
    resident: of this process in RAM, on the CPU all of it, mapped weights that were touched included. None where it is
    not known."""

    device: int | None
    resident: int | None

    def __str__(self) -> str:
        device = "" if self.device is None else f"{size(self.device)} in device buffers, "
        return device + ("not known" if self.resident is None else f"{size(self.resident)} resident")


# Kinds of devices whose memory pools, of which the temporaries and results of a call are, IREE's statistics include.
COUNTED = ("rocm", "cuda")


def peak_memory(kind: str, hal: Any, root: Path = ROOT) -> Peak:
    """`hal` is IREE's device, of that kind. The kernel's count begins with the process, IREE's with the device."""
    allocator = hal.allocator
    counted = kind in COUNTED and allocator.has_statistics
    device = allocator.statistics["device_bytes_peak"] if counted else None
    return Peak(device, resident_memory(root)[1])


def resident_memory(root: Path = ROOT) -> tuple[int | None, int | None]:
    """Bytes of this process in RAM: now (VmRSS), and at most so far (VmHWM)."""
    status, _ = read_table(root / "proc/self/status", ":")
    now, most = (number(status.get(key, "").removesuffix("kB").strip(), 1024).value for key in ("VmRSS", "VmHWM"))
    return now, most


@dataclass(frozen=True)
class SidePeak:
    """Of a process that does nothing else. resident: at most in RAM, the interpreter, libraries and the pages of mapped
    weights that were touched included; grown: above what it had before the engine and the model were loaded; device:
    see Peak, of our own programs only."""

    resident: int | None
    grown: int | None
    device: int | None

    def __str__(self) -> str:
        if self.resident is None or self.grown is None:
            return "not known"
        device = f", device buffers {size(self.device)}" if self.device else ""
        return f"{size(self.resident)} (+{size(self.grown)}{device})"
