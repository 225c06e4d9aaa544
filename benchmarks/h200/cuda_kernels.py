"""PTX kernels launched from torch: what benchmarks of single kernels on an NVIDIA GPU share."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # of CUfunction_attribute


class CudaKernels:
    """The kernels of a PTX file, launched on a stream of their own."""

    def __init__(self, ptx: Path) -> None:
        torch.zeros(1, device="cuda")  # torch makes the context
        self.stream = torch.cuda.Stream()
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        self._ok(self._cuda.cuModuleLoadData(ctypes.byref(self._module), ptx.read_bytes() + b"\0"))
        self._functions: dict[str, ctypes.c_void_p] = {}

    def _ok(self, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(text))
            raise SystemExit(f"CUDA: {(text.value or b'unknown error').decode()}")

    def launch(
        self,
        symbol: str,
        workgroups: int,
        threads: int,
        pointers: Sequence[int],
        scalars: Sequence[int],
        local: int = 0,
    ) -> None:
        """One launch: pointers, then int32 scalars; local: bytes of local memory, the same for all of a symbol's."""
        if symbol not in self._functions:
            function = ctypes.c_void_p()
            self._ok(self._cuda.cuModuleGetFunction(ctypes.byref(function), self._module, symbol.encode()))
            if local:
                self._ok(self._cuda.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, local))
            self._functions[symbol] = function
        values = [*map(ctypes.c_uint64, pointers), *map(ctypes.c_int32, scalars)]
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values))
        sizes = (workgroups, 1, 1, threads, 1, 1)
        stream = ctypes.c_void_p(self.stream.cuda_stream)
        self._ok(self._cuda.cuLaunchKernel(self._functions[symbol], *sizes, local, stream, arguments, None))


def graph_seconds(stream: torch.cuda.Stream, work: Callable[[], object], replays: int = 7) -> float:
    """The median time of a replay of a CUDA graph of `work`, after one that warms up."""
    with torch.cuda.stream(stream):
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
        times = []
        for _ in range(replays + 1):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(stream)
            graph.replay()
            end.record(stream)
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e-3)
    return float(sorted(times[1:])[replays // 2])


def copy_bandwidth() -> float:
    """Bytes a second read and written by a copy that no cache helps."""
    source = torch.empty(1 << 28, dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)

    def copies() -> None:
        for _ in range(4):
            torch.bitwise_not(source, out=target)

    return 4 * 2 * source.nbytes / graph_seconds(torch.cuda.Stream(), copies)
