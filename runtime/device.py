"""The device that runs a program: IREE's driver for a target, and how bytes get there and back."""

from __future__ import annotations

import mmap
import os
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import iree.runtime as rt
import ml_dtypes
import numpy as np

from ..bundle import Parameter, TensorSpec
from ..errors import StrixhloError, one_line

# The kind of a target -> IREE's HAL driver, and what it needs on the machine.
DRIVERS = {
    "cpu": ("local-task", ""),
    "rocm": ("hip", "ROCm 7 or later with libamdhip64.so, /dev/kfd and /dev/dri readable"),
    "cuda": ("cuda", "an NVIDIA driver with libcuda.so.1"),
    "vulkan": ("vulkan", "a Vulkan loader (libvulkan.so.1) and driver"),
}
DTYPES: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i8": np.dtype(np.int8),
    "i32": np.dtype(np.int32),
}
ELEMENTS = {
    "f32": rt.HalElementType.FLOAT_32,
    "f16": rt.HalElementType.FLOAT_16,
    "bf16": rt.HalElementType.BFLOAT_16,
    "i8": rt.HalElementType.SINT_8,
    "i32": rt.HalElementType.SINT_32,
}
SCOPE = "model"  # of parameters
# Bytes of stack of each thread of IREE on the host. The fused kernels take up to 120 KB (custom_kernels/cpu), and
# glibc puts a thread's own variables there too; IREE's default is 128 KiB.
WORKER_STACK = 256 << 10
_USAGE = rt.BufferUsage.DEFAULT
# Kind of device -> who may have work in flight on it. Programs open the same one of a kind, IREE's first.
_TURNS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


class Device:
    """One device of IREE's. `hal` is IREE's own object; it must outlive everything made on it. `turn` is held during a
    call: one is in flight on a device, also when several programs share it, so that their temporaries do not add up."""

    def __init__(self, kind: str, threads: int | None) -> None:
        driver, needs = DRIVERS[kind]
        self.on_host = kind == "cpu"
        # IREE's Vulkan driver reads no file descriptors, and takes whole pages of host memory only.
        self.maps_files = kind in ("cpu", "vulkan")
        self._imports = kind in ("rocm", "cuda")
        self.turn = _TURNS[kind]
        if self.on_host:
            rt.flags.parse_flags(f"--task_worker_stack_size={WORKER_STACK}")
            if threads is not None:
                rt.flags.parse_flags(f"--task_topology_group_count={threads}")
        try:
            self.hal: Any = rt.get_driver(driver).create_default_device()
        except (RuntimeError, ValueError) as error:
            reason = one_line(error, 200)
            raise StrixhloError(f"no device for target {kind}: {reason}; it needs {needs}") from None
        self.name = str(next((d["name"] for d in rt.get_driver(driver).query_available_devices()), kind))
        self._memory = rt.MemoryType.DEVICE_LOCAL
        if self.on_host:
            self._memory |= rt.MemoryType.HOST_VISIBLE

    def close(self) -> None:
        """Let go of the device."""
        self.hal = None

    def empty(self, spec: TensorSpec) -> Any:
        """A buffer of that shape and dtype, its contents undefined."""
        return rt.HalBufferView(self.buffer(self.nbytes(spec)), list(spec.shape), ELEMENTS[spec.dtype])

    def buffer(self, nbytes: int) -> Any:
        """Memory of the device, its contents undefined."""
        return self.hal.allocator.allocate_buffer(self._memory, _USAGE, nbytes)

    @staticmethod
    def nbytes(spec: TensorSpec) -> int:
        """Of a tensor."""
        return int(np.prod(spec.shape, dtype=np.int64)) * DTYPES[spec.dtype].itemsize

    @staticmethod
    def mapped(buffer: Any, spec: TensorSpec) -> np.ndarray:
        """A buffer in the host's memory as an array; it must not outlive the device."""
        array: np.ndarray = buffer.map().asarray(list(spec.shape), DTYPES[spec.dtype])
        return array

    def upload(self, spec: TensorSpec, array: np.ndarray) -> Any:
        """A buffer that holds a copy of a host array."""
        if array.shape != spec.shape or array.dtype != DTYPES[spec.dtype]:
            raise ValueError(f"{spec.name} is {array.dtype}{array.shape}, not {spec.dtype}{spec.shape}")
        contents = np.ascontiguousarray(array)
        return self.hal.allocator.allocate_buffer_copy(self._memory, _USAGE, self.hal, contents, ELEMENTS[spec.dtype])

    def download(self, spec: TensorSpec, view: Any) -> np.ndarray:
        """A copy of a buffer on the host."""
        if self.on_host:
            return np.array(view.map().asarray(spec.shape, DTYPES[spec.dtype]))
        if self._imports:
            return np.array(rt.DeviceArray(self.hal, view).to_host())
        source = view.get_buffer()
        staging = self.hal.allocator.allocate_buffer(
            rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE,
            rt.BufferUsage.TRANSFER_TARGET | rt.BufferUsage.MAPPING_SCOPED,
            source.byte_length(),
        )
        semaphore = self.hal.create_semaphore(0)
        done = rt.HalFence.create_at(semaphore, 1)
        self.hal.queue_copy(source, staging, rt.HalFence.create_at(semaphore, 0), done)
        done.wait()
        return np.array(staging.map().asarray(list(spec.shape), DTYPES[spec.dtype]))

    def read_rows(self, spec: TensorSpec, view: Any, rows: np.ndarray) -> np.ndarray:
        """A copy of rows of a buffer [layers, rows, width] on the host; from a GPU all of it comes, for want of less in
        IREE's Python interface."""
        whole = view.map().asarray(list(spec.shape), DTYPES[spec.dtype]) if self.on_host else self.download(spec, view)
        return np.ascontiguousarray(whole[:, rows])

    def write_rows(self, spec: TensorSpec, views: list[Any], i: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Set rows of the buffer views[i]; on a GPU a new one takes its place, when the old one is gone."""
        if self.on_host:
            views[i].map().asarray(list(spec.shape), DTYPES[spec.dtype])[:, rows] = values
            return
        whole = self.download(spec, views[i])
        whole[:, rows] = values
        views[i] = None
        views[i] = self.upload(spec, whole)


class Weights:
    """Files of weights as IREE parameters. On the CPU they are mapped and used in place (IREE copies what does not
    start at a multiple of 64 bytes); a GPU gets them through the file descriptors in bounded pieces, so that no second
    copy ever lies in host memory."""

    def __init__(
        self,
        files: Sequence[tuple[Path, Mapping[str, Parameter]]],
        in_place: bool,
        further: Mapping[str, mmap.mmap] = MappingProxyType({}),
    ) -> None:
        """files: each with the parameters in it. further: parameters in memory, which stays."""
        self._in_place = in_place
        self._descriptors: list[int] = []
        self._mappings: list[mmap.mmap] = []
        index = rt.ParameterIndex()
        index.reserve(sum(len(parameters) for _, parameters in files) + len(further))
        for path, parameters in files:
            handle = self._open(path)
            for name, parameter in parameters.items():
                index.add_from_file_handle(name, handle, parameter.length, parameter.offset)
        for name, memory in further.items():
            self._mappings.append(memory)
            index.add_from_file_handle(name, rt.FileHandle.wrap_memory(memory), len(memory), 0)
        self._index = index

    def _open(self, path: Path) -> Any:
        """IREE's handle of a file."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._descriptors.append(descriptor)
        if not self._in_place:
            return rt.FileHandle.wrap_fd(descriptor, readable=True, writable=False)
        self._mappings.append(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED))
        return rt.FileHandle.wrap_memory(self._mappings[-1], readable=True, writable=False)

    def provider(self, scope: str) -> Any:
        """What IREE's parameter module takes."""
        return self._index.create_provider(scope=scope)

    def loaded(self) -> None:
        """The program has its weights: what a GPU has copied need not stay in the page cache."""
        if not self._in_place:
            for descriptor in self._descriptors:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the files; a mapping goes when IREE lets go of it."""
        while self._descriptors:
            os.close(self._descriptors.pop())
