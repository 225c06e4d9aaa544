"""The CPU kernels as shared objects, one for each kind of x86-64 that this machine can run."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from strixhlo.custom_kernels.toolchain import build_cpu_shared

# Name -> (-march, features, what /proc/cpuinfo must list to run it).
VARIANTS: dict[str, tuple[str, tuple[str, ...], set[str]]] = {
    "x86-64": ("x86-64", (), set()),
    "x86-64-v3": ("x86-64-v3", (), {"avx2", "fma", "f16c"}),
    "x86-64-v4": ("x86-64-v4", (), {"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
    "x86-64-v4+vnni": (
        "x86-64-v4",
        ("avx512vnni", "avx512bf16", "avx512vbmi"),
        {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512vbmi"},
    ),
}


def cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split())
    return set()


@pytest.fixture(scope="session")
def builds() -> dict[str, Future[Path]]:
    """All variants that run here, being built two at a time."""
    pool = ThreadPoolExecutor(2)
    flags = cpu_flags()
    runnable = {name: (cpu, features) for name, (cpu, features, needed) in VARIANTS.items() if needed <= flags}
    return {name: pool.submit(build_cpu_shared, cpu, features) for name, (cpu, features) in runnable.items()}


@pytest.fixture(scope="session", params=list(VARIANTS))
def kernels(request: pytest.FixtureRequest, builds: dict[str, Future[Path]]) -> ctypes.CDLL:
    if request.param not in builds:
        pytest.skip(f"this CPU cannot run {request.param}")
    return ctypes.CDLL(str(builds[request.param].result()))


@pytest.fixture(scope="session")
def fenced() -> Callable[[np.ndarray], np.ndarray]:
    """Copies an array to the end of a memory page that no readable page follows: one byte read too far is fatal."""
    libc = ctypes.CDLL(None, use_errno=True)

    def copy(array: np.ndarray) -> np.ndarray:
        page = mmap.PAGESIZE
        pages = -(-array.nbytes // page)
        memory = mmap.mmap(-1, (pages + 1) * page)
        whole = np.frombuffer(memory, np.uint8)
        fence = ctypes.c_void_p(whole.ctypes.data + pages * page)
        if libc.mprotect(fence, ctypes.c_size_t(page), PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
        result = whole[pages * page - array.nbytes : pages * page].view(array.dtype).reshape(array.shape)
        result[...] = array
        return result

    return copy


PROT_NONE = 0
GUARD = 64  # elements before and after


@pytest.fixture(scope="session")
def guarded() -> Callable[..., tuple[np.ndarray, Callable[[], None]]]:
    """An output full of NaN between two guard zones, and the check that the zones were left alone."""

    def make(shape: tuple[int, ...], dtype: type = np.float32) -> tuple[np.ndarray, Callable[[], None]]:
        size = int(np.prod(shape))
        whole = np.full(size + 2 * GUARD, np.nan if dtype in (np.float32, np.float16) else 77, dtype)
        whole[:GUARD] = whole[-GUARD:] = 12.0

        def check() -> None:
            assert (whole[:GUARD] == 12.0).all(), "wrote before the output"
            assert (whole[-GUARD:] == 12.0).all(), "wrote past the output"

        return whole[GUARD:-GUARD].reshape(shape), check

    return make
