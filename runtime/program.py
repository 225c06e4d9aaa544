"""A compiled program on a device: weights mapped, entry points called with device buffers."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import iree.runtime as rt
import numpy as np

from ..bundle import BUILD, VMFB, Build, Bundle, TensorSpec, read_record, sha256_file
from ..cpu_features import cpuinfo_flags
from ..errors import StrixhloError

SCOPE = "model"
DTYPES: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "i8": np.dtype(np.int8),
    "i32": np.dtype(np.int32),
}
ELEMENTS = {
    "f32": rt.HalElementType.FLOAT_32,
    "f16": rt.HalElementType.FLOAT_16,
    "i8": rt.HalElementType.SINT_8,
    "i32": rt.HalElementType.SINT_32,
}
_USAGE = rt.BufferUsage.DEFAULT
_MEMORY = rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE


def read_build(bundle: Bundle, target: str) -> Build:
    """The target's build.json, checked against its vmfb and this machine; StrixhloError says what does not fit."""
    folder = bundle.target_dir(target)
    if not folder.is_dir():
        raise StrixhloError(
            f"{bundle.path}: not compiled for {target}; run `strixhlo compile {bundle.path} --target {target}`"
        )
    build = read_record(folder / BUILD, Build, "build")
    again = f"run `strixhlo compile {bundle.path} --target {target}` again"
    if build.target != target:
        raise StrixhloError(f"{folder}: built for {build.target}, not for {target}; {again}")
    if not (folder / VMFB).is_file():
        raise StrixhloError(f"{folder}: the build is not whole, {VMFB} is missing; {again}")
    if sha256_file(folder / VMFB) != build.vmfb_sha256:
        raise StrixhloError(f"{folder / VMFB}: is not the file that {BUILD} describes; {again}")
    missing = sorted(set(build.cpu_features) - cpuinfo_flags())
    if missing:
        raise StrixhloError(
            f"{folder / VMFB}: needs the CPU features {', '.join(missing)}, which this machine lacks;"
            f" compile with --target cpu here, or for a lower level such as cpu:x86-64-v3"
        )
    return build


class Program:
    """One loaded program. IREE's objects must go before the device they use, so close it, or use it in a `with`."""

    def __init__(self, bundle: Bundle, target: str, threads: int | None = None) -> None:
        self.bundle = bundle
        self.build = read_build(bundle, target)
        if threads is not None:
            rt.flags.parse_flags(f"--task_topology_group_count={threads}")
        self._device: Any = rt.get_driver("local-task").create_default_device()
        instance = rt.VmInstance()
        self._weights = _map(bundle.weights)
        module = rt.VmModule.mmap(instance, str(bundle.target_dir(target) / VMFB))
        provider = _parameter_index(bundle, self._weights).create_provider(scope=SCOPE)
        modules = [
            rt.create_hal_module(instance, self._device),
            rt.create_io_parameters_module(instance, provider),
            module,
        ]
        self._context: Any = rt.VmContext(instance, modules)
        self._functions: dict[str, Any] = {n: module.lookup_function(n) for n in bundle.manifest.entry_points}

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the program, then of its device."""
        self._functions.clear()
        self._context = None
        self._device = None

    def empty(self, spec: TensorSpec) -> Any:
        """A device buffer of that shape and dtype, its contents undefined."""
        nbytes = int(np.prod(spec.shape, dtype=np.int64)) * DTYPES[spec.dtype].itemsize
        buffer = self._device.allocator.allocate_buffer(_MEMORY, _USAGE, nbytes)
        return rt.HalBufferView(buffer, list(spec.shape), ELEMENTS[spec.dtype])

    def call(self, entry: str, host: Sequence[np.ndarray], device: Sequence[Any]) -> tuple[np.ndarray, list[Any]]:
        """Call an entry point with host arrays, then device buffers, which are consumed.

        Returns a copy of the first result on the host, and the other results as device buffers.
        """
        point = self.bundle.manifest.entry_points[entry]
        arguments = rt.VmVariantList(len(point.inputs))
        for spec, array in zip(point.inputs, host, strict=False):
            if array.shape != spec.shape or array.dtype != DTYPES[spec.dtype]:
                raise ValueError(f"{entry}: {spec.name} is {array.dtype}{array.shape}, not {spec.dtype}{spec.shape}")
            view = self._device.allocator.allocate_buffer_copy(
                _MEMORY, _USAGE, self._device, np.ascontiguousarray(array), ELEMENTS[spec.dtype]
            )
            arguments.push_ref(view)
        for view in device:
            arguments.push_ref(view)
        results = rt.VmVariantList(len(point.outputs))
        self._context.invoke(self._functions[entry], arguments, results)
        views = [results.get_as_object(i, rt.HalBufferView) for i in range(len(point.outputs))]
        first = point.outputs[0]
        return views[0].map().asarray(first.shape, DTYPES[first.dtype]).copy(), views[1:]


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)


def _parameter_index(bundle: Bundle, weights: mmap.mmap) -> Any:
    """Every parameter of the manifest (whose ranges `open_bundle` has checked) as a range of the mapped file."""
    handle = rt.FileHandle.wrap_memory(weights, readable=True, writable=False)
    index = rt.ParameterIndex()
    parameters: Mapping[str, Any] = bundle.manifest.parameters
    index.reserve(len(parameters))
    for name, parameter in parameters.items():
        index.add_from_file_handle(name, handle, parameter.length, parameter.offset)
    return index
