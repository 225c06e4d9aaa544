"""Kernels of a code object launched without IREE: memory, arguments, results as arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .simulator import load


class HipError(Exception):
    """A HIP call failed; the text is the library's."""


def _call(name: str, *arguments: object) -> None:
    result = getattr(load(), name)(*arguments)
    if result:
        raise HipError(load().hipGetErrorString(result).decode())


class CodeObject:
    """An HSACO file in the simulator."""

    def __init__(self, path: Path) -> None:
        self._image = path.read_bytes()
        self._module = ctypes.c_void_p()
        _call("hipModuleLoadData", ctypes.byref(self._module), self._image)

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[np.ndarray | np.generic | int],
        lds: int = 0,
    ) -> None:
        """One launch: arrays are copied to the device, and back into the same arrays. Integers are passed as int32.

        HipError when the kernel is not there or the simulator finds a fault.
        """
        function = ctypes.c_void_p()
        _call("hipModuleGetFunction", ctypes.byref(function), self._module, kernel.encode())
        buffers = [(a, _upload(a)) for a in arguments if isinstance(a, np.ndarray)]
        addresses = iter(address for _, address in buffers)
        values = [next(addresses) if isinstance(a, np.ndarray) else ctypes.c_int32(int(a)) for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
        sizes = [*grid, 1, 1][:3] + [*block, 1, 1][:3]
        try:
            _call(
                "hipModuleLaunchKernel", function, *map(ctypes.c_uint, sizes), ctypes.c_uint(lds), None, pointers, None
            )
            for array, address in buffers:
                data = ctypes.string_at(address.value or 0, array.nbytes)
                array[...] = np.frombuffer(data, array.dtype).reshape(array.shape)
        finally:
            for _, address in buffers:
                _call("hipFree", address)

    def close(self) -> None:
        """Unload the code."""
        _call("hipModuleUnload", self._module)


def _upload(array: np.ndarray) -> ctypes.c_void_p:
    address = ctypes.c_void_p()
    _call("hipMalloc", ctypes.byref(address), ctypes.c_size_t(array.nbytes))
    data = np.ascontiguousarray(array)
    _call("hipMemcpy", address, ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(array.nbytes), 1)
    return address
