"""The memory that a stretch of this process's work adds at its peak, by the kernel's own high-water mark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc/self")


@dataclass
class Growth:
    """Bytes of RAM (mapped files that were read included) above what was held before; None: the system does not say."""

    peak: int | None = None


@contextmanager
def resident_growth() -> Iterator[Growth]:
    """Yields a Growth that is filled when the block is left."""
    growth = Growth()
    before = _status("VmRSS") if _reset_peak() else None
    try:
        yield growth
    finally:
        peak = _status("VmHWM")
        if before is not None and peak is not None:
            growth.peak = max(0, peak - before)


def _reset_peak() -> bool:
    try:
        (PROC / "clear_refs").write_text("5")
    except OSError:  # a sandbox may forbid it
        return False
    return True


def _status(key: str) -> int | None:
    try:
        for line in (PROC / "status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None
