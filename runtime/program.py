"""A compiled program on a device: weights mapped, entry points called with device buffers."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import iree.runtime as rt
import numpy as np

from ..bundle import BUILD, VMFB, Build, Bundle, read_record, sha256_file
from ..cpu_features import cpuinfo_flags
from ..errors import StrixhloError
from .device import Device, Weights

SCOPE = "model"


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
        self.device = Device(self.build.target.partition(":")[0], threads)
        instance = rt.VmInstance()
        self._weights = Weights(bundle.weights, bundle.manifest.parameters, in_place=self.device.on_host)
        try:
            module = rt.VmModule.mmap(instance, str(bundle.target_dir(target) / VMFB))
            modules = [
                rt.create_hal_module(instance, self.device.hal),
                rt.create_io_parameters_module(instance, self._weights.provider(SCOPE)),
                module,
            ]
            self._context: Any = rt.VmContext(instance, modules)
            self._functions: dict[str, Any] = {n: module.lookup_function(n) for n in bundle.manifest.entry_points}
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise StrixhloError(f"{bundle.target_dir(target) / VMFB}: cannot be loaded: {reason}") from None
        self._weights.loaded()

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
        self._weights.close()
        self.device.close()

    def call(self, entry: str, host: Sequence[np.ndarray], device: Sequence[Any]) -> tuple[np.ndarray, list[Any]]:
        """Call an entry point with host arrays, then device buffers, which are consumed.

        Returns a copy of the first result on the host, and the other results as device buffers.
        """
        point = self.bundle.manifest.entry_points[entry]
        if len(host) + len(device) != len(point.inputs):
            raise ValueError(f"{entry} takes {len(point.inputs)} arguments, not {len(host) + len(device)}")
        arguments = rt.VmVariantList(len(point.inputs))
        for spec, array in zip(point.inputs, host, strict=False):
            arguments.push_ref(self.device.upload(spec, array))
        for view in device:
            arguments.push_ref(view)
        results = rt.VmVariantList(len(point.outputs))
        self._context.invoke(self._functions[entry], arguments, results)
        views = [results.get_as_object(i, rt.HalBufferView) for i in range(len(point.outputs))]
        return self.device.download(point.outputs[0], views[0]), views[1:]
