"""A test process gives back what it no longer needs: without this one grows to 8 GB and more in a run of all tests.

Most of it are programs that JAX keeps of every shape that it ever computed, op by op in the kernels' references. They
are dropped when a process has grown by `MOST` since that was last done; what is asked for again is compiled again.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path

import pytest

MOST = 3 << 29  # bytes: 1.5 GiB

_kept = 0  # bytes that the process held when it had last given back


def held() -> int:
    """Bytes of this process's own memory: resident and not of files."""
    resident, files = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(files)) * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Drop what JAX keeps, and let the allocator return what is free."""
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.hookimpl(trylast=True)  # when the fixtures that ended with this test are gone
def pytest_runtest_teardown() -> None:
    """After each test."""
    global _kept
    if held() > _kept + MOST:
        give_back()
        _kept = held()
