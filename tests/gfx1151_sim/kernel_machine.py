"""Runs a launch of a strixhlo GPU kernel in the simulator, under every order and poison that must not matter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from strixhlo.custom_kernels.gpu.kernels import KERNELS, build_hsaco
from strixhlo.custom_kernels.ops.launch import Launch

from .device import CodeObject
from .simulator import using

# The first is what the device may do; each other one differs in what a kernel must not depend on.
VARIANTS: tuple[dict[str, int], ...] = (
    {},
    {"wave_order": 1, "group_order": 1, "poison": 0x5A},
    {"turn": 7, "group_order": 2, "poison": 0x00},
)


def gfx1151(variants: tuple[dict[str, int], ...] = VARIANTS) -> Callable[[Launch, list[np.ndarray]], None]:
    """A function (launch, buffers) -> None that runs a launch on buffers in place. AssertionError when two variants
    differ; device.HipError for faults: out of bounds, misaligned, a race."""
    code = CodeObject(build_hsaco("gfx1151", KERNELS))

    def run(launch: Launch, buffers: list[np.ndarray]) -> None:
        results = []
        for options in variants:
            copies = [buffer.copy() for buffer in buffers]
            with using(**options):
                code.launch(launch.symbol, [launch.workgroups], [launch.threads], [*copies, *launch.scalars])
            results.append(copies)
        for options, copies in zip(variants, results, strict=True):
            for first, other in zip(results[0], copies, strict=True):
                assert first.tobytes() == other.tobytes(), f"{launch.symbol}: {options} changes the result"
        for buffer, result in zip(buffers, results[0], strict=True):
            buffer[...] = result

    return run
