"""When kernels are told that they may use the matrix unit: CPUs and kernels of all kinds, faked."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from strixhlo.cpu_features import cpuinfo_flags
from strixhlo.runtime.matrix_unit import FLAGS, machine_words, may_use_tiles, request_tiles

asked: list[str] = []


def answer(allowed: bool) -> bool:
    asked.append("permission")
    return allowed


@pytest.mark.parametrize(
    ("flags", "allowed", "may", "asks"),
    [
        (FLAGS | {"avx512f"}, True, True, 1),
        (FLAGS, False, False, 1),  # an older kernel, or one that refuses
        (FLAGS - {"amx_bf16"}, True, False, 0),
        (frozenset({"avx512f", "avx512_vnni"}), True, False, 0),
    ],
)
def test_the_cpu_has_it_and_the_kernel_allows_it(flags: frozenset[str], allowed: bool, may: bool, asks: int) -> None:
    asked.clear()
    assert may_use_tiles(flags, lambda: answer(allowed)) is may
    assert len(asked) == asks


def test_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert not may_use_tiles(FLAGS, lambda: True)


def test_here() -> None:
    """The system call itself: refused where the CPU has no tiles."""
    assert request_tiles() == (cpuinfo_flags() >= FLAGS)


def test_what_kernels_read() -> None:
    for tiles in (False, True):
        words = np.frombuffer(machine_words(tiles), np.int32)
        assert words.tolist() == [int(tiles)] + [0] * 15
