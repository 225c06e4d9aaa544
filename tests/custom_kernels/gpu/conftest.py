"""Machines that run one GPU kernel: the CPU and the simulated gfx1151 always, a real NVIDIA GPU when it is there.

- host: the kernels' own x86-64 build, threads in two orders, which must agree bit for bit;
- gfx1151: the HSACO in the simulator of tests/gfx1151_sim, waves in several orders;
- cuda: STRIXHLO_TEST_CUDA names a PTX file with all kernels (or is "build"); needs cupy and an NVIDIA GPU.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np
import pytest
from gfx1151_sim.kernel_machine import gfx1151, kernels_of, relatives

from strixhlo.custom_kernels.gpu.kernels import NVIDIA_KERNELS, build_host, build_ptx, kernel_line, threads
from strixhlo.custom_kernels.ops.launch import CounterSlot, Launch

Machine = Callable[[Launch, list[np.ndarray]], None]
MACHINES = [
    "host",
    "gfx1151",
    *(["cuda"] if os.environ.get("STRIXHLO_TEST_CUDA") else []),
]
GUARD = 256  # bytes after each buffer that must not change
ITEM = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8, "i32": np.int32}


def numbers(launch: Launch) -> list[int]:
    """The scalars; the counters are the launch's alone."""
    return [0 if isinstance(s, CounterSlot) else s for s in launch.scalars]


def _host() -> Machine:
    libraries: dict[str, ctypes.CDLL] = {}

    def run_once(launch: Launch, buffers: list[np.ndarray], backwards: int) -> None:
        values = [b.ctypes.data for b in buffers] + [s & 0xFFFFFFFF for s in numbers(launch)]
        arguments = (ctypes.c_uint64 * len(values))(*values)
        name = launch.symbol if launch.symbol in NVIDIA_KERNELS else relatives(launch.symbol)
        if name not in libraries:
            libraries[name] = ctypes.CDLL(str(build_host([name] if name in NVIDIA_KERNELS else kernels_of(name))))
        library = libraries[name]
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


def _cuda() -> Machine:
    import cupy

    ptx = os.environ["STRIXHLO_TEST_CUDA"]
    modules: dict[str, cupy.RawModule] = {}

    def module_of(symbol: str) -> cupy.RawModule:
        name = "" if ptx != "build" else symbol if symbol in NVIDIA_KERNELS else relatives(symbol)
        if name not in modules:
            built = build_ptx("sm_80", [name] if name in NVIDIA_KERNELS else kernels_of(name)) if name else ptx
            modules[name] = cupy.RawModule(path=str(built))
        return modules[name]

    def run(launch: Launch, buffers: list[np.ndarray]) -> None:
        device = [cupy.asarray(b) for b in buffers]
        scalars = [np.int32(s) for s in numbers(launch)]
        function = module_of(launch.symbol).get_function(launch.symbol)
        if launch.local_memory:
            function.max_dynamic_shared_size_bytes = launch.local_memory
        # A workgroup of a gfx1151 launch may have more waves than the kernel has here; it goes on until all is done.
        block = min(launch.threads, threads(launch.symbol))
        function((launch.workgroups,), (block,), (*device, *scalars), shared_mem=launch.local_memory)
        for b, d in zip(buffers, device, strict=True):
            b[...] = d.get()

    return run


@pytest.fixture(scope="session", params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Machine:
    """Runs one launch on buffers (inputs, then outputs that update no input), in place."""
    return {"host": _host, "gfx1151": gfx1151, "cuda": _cuda}[request.param]()


def runner(machine: Machine) -> Callable[..., dict[str, np.ndarray]]:
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


@pytest.fixture
def run_launches(machine: Machine) -> Callable[..., dict[str, np.ndarray]]:
    """`runner` on each machine."""
    return runner(machine)


@pytest.fixture(scope="session", params=[m for m in MACHINES if m != "gfx1151"])
def run_nvidia_launches(request: pytest.FixtureRequest) -> Callable[..., dict[str, np.ndarray]]:
    """`runner` on those that have NVIDIA's kernels."""
    return runner({"host": _host, "cuda": _cuda}[request.param]())
