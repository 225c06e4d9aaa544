"""Launches of GPU kernels on the host: their own x86-64 build, threads in two orders, which must agree bit for bit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache

import ml_dtypes
import numpy as np
from gfx1151_sim.kernel_machine import kernels_of, relatives

from strixhlo.custom_kernels.gpu.elements import elements_of
from strixhlo.custom_kernels.gpu.kernels import NVIDIA_KERNELS, build_host, kernel_line
from strixhlo.custom_kernels.ops.launch import CounterSlot, Launch

RunLaunches = Callable[[tuple[Launch, ...], Mapping[str, np.ndarray]], dict[str, np.ndarray]]
Machine = Callable[[Launch, list[np.ndarray]], None]
GUARD = 256  # bytes after each buffer that must not change
ITEM = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8, "i32": np.int32}


def numbers(launch: Launch) -> list[int]:
    """The scalars; the counters are the launch's alone."""
    return [0 if isinstance(s, CounterSlot) else s for s in launch.scalars]


@cache
def host() -> Machine:
    """Runs one launch on buffers (inputs, then outputs that update no input), in place."""

    @cache
    def library_of(symbol: str) -> ctypes.CDLL:
        together = [] if elements_of(symbol)[0] in NVIDIA_KERNELS else kernels_of(relatives(symbol))
        return ctypes.CDLL(str(build_host(together if symbol in together else [symbol])))

    def run_once(launch: Launch, buffers: list[np.ndarray], backwards: int) -> None:
        values = [b.ctypes.data for b in buffers] + [s & 0xFFFFFFFF for s in numbers(launch)]
        arguments = (ctypes.c_uint64 * len(values))(*values)
        library = library_of(launch.symbol)
        kernel = ctypes.cast(library[launch.symbol], ctypes.c_void_p)
        code = library.strixhlo_launch(kernel, launch.workgroups, launch.threads, arguments, len(values), backwards)
        assert code == 0, f"{launch.symbol}: the threads of a wave or workgroup did not meet (code {code})"

    def run(launch: Launch, buffers: list[np.ndarray]) -> None:
        again = [b.copy() for b in buffers]
        run_once(launch, buffers, 0)
        run_once(launch, again, 1)
        for a, b in zip(buffers, again, strict=True):
            assert a.tobytes() == b.tobytes(), f"{launch.symbol}: the order of threads changes the result"

    return run


def runner(machine: Machine) -> RunLaunches:
    """Runs the launches of an op on named arrays; outputs start as garbage, and nothing around them may change."""

    def run(launches: tuple[Launch, ...], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = dict(arrays)
        for launch in launches:
            assert kernel_line(launch.symbol)
            buffers, shapes, names = [], [], []
            for name in launch.inputs:
                buffers.append(np.array(values[name], order="C"))
            fresh = [o for o in launch.outputs if not o.updates]
            for output in fresh:
                item = np.dtype(ITEM[output.dtype]).itemsize
                buffers.append(np.full(int(np.prod(output.shape)) * item + GUARD, 0xFF, np.uint8))
                shapes.append(output)
                names.append(output.name)
            before = [b.copy() for b in buffers[: len(launch.inputs)]]
            machine(launch, buffers)
            updated = {o.updates: o.name for o in launch.outputs if o.updates}
            for name, old, new in zip(launch.inputs, before, buffers, strict=False):
                if name in updated:
                    values[updated[name]] = new
                else:
                    assert old.tobytes() == new.tobytes(), f"{launch.symbol} changed its input {name}"
            for output, raw in zip(fresh, buffers[len(launch.inputs) :], strict=True):
                assert (raw[-GUARD:] == 0xFF).all(), f"{launch.symbol} wrote past {output.name}"
                values[output.name] = raw[:-GUARD].view(ITEM[output.dtype]).reshape(output.shape)
        return values

    return run
