"""Copies between GPUs, held against their checksums: a driver may call a copy possible, report success, and corrupt it.

    python -m strixhlo.runtime.peer_copy hip|cuda [LIBRARY]

Prints a list of `PeerCopy` as JSON. In a process of its own, since such copies crash.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import zlib
from dataclasses import asdict, dataclass
from typing import Protocol

from .hip_probe import LIBRARY
from .nvidia import CUDA

NBYTES = (64 << 20) + 4096  # beyond what a driver might stage in one piece


class Gpus(Protocol):
    """What is needed of a driver. Errors are RuntimeError."""

    def count(self) -> int: ...
    def allocate(self, device: int, nbytes: int) -> int: ...
    def upload(self, device: int, address: int, data: bytes) -> None: ...
    def download(self, device: int, address: int, nbytes: int) -> bytes: ...
    def can_access(self, source: int, target: int) -> bool: ...
    def copy(self, source: int, source_address: int, target: int, target_address: int, nbytes: int) -> None: ...


@dataclass(frozen=True)
class PeerCopy:
    """One direction. possible: the driver says that the target can read the source; intact: what arrived is what was
    sent; error: the driver refused."""

    source: int
    target: int
    possible: bool
    intact: bool
    error: str = ""


def peer_copies(gpus: Gpus, nbytes: int = NBYTES) -> list[PeerCopy]:
    """Copy from each GPU to each other one; the target is filled with something else first."""
    devices = range(gpus.count())
    if len(devices) < 2:
        return []
    sent = {d: os.urandom(nbytes) for d in devices}
    sources = {d: gpus.allocate(d, nbytes) for d in devices}
    targets = {d: gpus.allocate(d, nbytes) for d in devices}
    for device in devices:
        gpus.upload(device, sources[device], sent[device])
    found = []
    for source in devices:
        for target in devices:
            if source == target:
                continue
            possible = gpus.can_access(source, target)
            gpus.upload(target, targets[target], bytes(nbytes))
            try:
                gpus.copy(source, sources[source], target, targets[target], nbytes)
                arrived = gpus.download(target, targets[target], nbytes)
                found.append(PeerCopy(source, target, possible, zlib.crc32(arrived) == zlib.crc32(sent[source])))
            except RuntimeError as error:
                found.append(PeerCopy(source, target, possible, False, str(error)))
    return found


class Hip:
    """HIP's runtime."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._hip = ctypes.CDLL(library)

    def count(self) -> int:
        """Number of devices."""
        count = ctypes.c_int()
        self._call("hipGetDeviceCount", ctypes.byref(count))
        return count.value

    def allocate(self, device: int, nbytes: int) -> int:
        """Address of new memory on a device."""
        address = ctypes.c_void_p()
        self._call("hipSetDevice", device)
        self._call("hipMalloc", ctypes.byref(address), ctypes.c_size_t(nbytes))
        return address.value or 0

    def upload(self, device: int, address: int, data: bytes) -> None:
        """Host to device."""
        self._call("hipSetDevice", device)
        self._call("hipMemcpy", ctypes.c_void_p(address), data, ctypes.c_size_t(len(data)), 1)

    def download(self, device: int, address: int, nbytes: int) -> bytes:
        """Device to host."""
        data = ctypes.create_string_buffer(nbytes)
        self._call("hipSetDevice", device)
        self._call("hipMemcpy", data, ctypes.c_void_p(address), ctypes.c_size_t(nbytes), 2)
        return data.raw

    def can_access(self, source: int, target: int) -> bool:
        """Whether HIP says that `target` can read `source`, which is then switched on."""
        possible = ctypes.c_int()
        self._call("hipDeviceCanAccessPeer", ctypes.byref(possible), target, source)
        if possible.value:
            self._call("hipSetDevice", target)
            self._hip.hipDeviceEnablePeerAccess(source, 0)  # an error when it is on already
            self._hip.hipGetLastError()
        return bool(possible.value)

    def copy(self, source: int, source_address: int, target: int, target_address: int, nbytes: int) -> None:
        """Device to device, finished when it returns."""
        self._call(
            "hipMemcpyPeer",
            ctypes.c_void_p(target_address),
            target,
            ctypes.c_void_p(source_address),
            source,
            ctypes.c_size_t(nbytes),
        )
        self._call("hipDeviceSynchronize")

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._hip, name)(*arguments):
            raise RuntimeError(f"{name}: error {code}")


class Cuda:
    """CUDA's driver, with the primary context of each device."""

    def __init__(self, library: str = CUDA) -> None:
        self._cuda = ctypes.CDLL(library)
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._call("cuInit", 0)

    def count(self) -> int:
        """Number of devices."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def allocate(self, device: int, nbytes: int) -> int:
        """Address of new memory on a device."""
        address = ctypes.c_uint64()
        self._enter(device)
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        return address.value

    def upload(self, device: int, address: int, data: bytes) -> None:
        """Host to device."""
        self._enter(device)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def download(self, device: int, address: int, nbytes: int) -> bytes:
        """Device to host."""
        data = ctypes.create_string_buffer(nbytes)
        self._enter(device)
        self._call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(nbytes))
        return data.raw

    def can_access(self, source: int, target: int) -> bool:
        """Whether CUDA says that `target` can read `source`, which is then switched on."""
        possible = ctypes.c_int()
        self._call("cuDeviceCanAccessPeer", ctypes.byref(possible), target, source)
        if possible.value:
            self._enter(target)
            self._cuda.cuCtxEnablePeerAccess(self._context(source), 0)  # an error when it is on already
        return bool(possible.value)

    def copy(self, source: int, source_address: int, target: int, target_address: int, nbytes: int) -> None:
        """Device to device, finished when it returns."""
        self._enter(target)
        self._call(
            "cuMemcpyPeer",
            ctypes.c_uint64(target_address),
            self._context(target),
            ctypes.c_uint64(source_address),
            self._context(source),
            ctypes.c_size_t(nbytes),
        )
        self._call("cuCtxSynchronize")

    def _context(self, device: int) -> ctypes.c_void_p:
        if device not in self._contexts:
            context = ctypes.c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[device] = context
        return self._contexts[device]

    def _enter(self, device: int) -> None:
        self._call("cuCtxSetCurrent", self._context(device))

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._cuda, name)(*arguments):
            raise RuntimeError(f"{name}: error {code}")


if __name__ == "__main__":
    driver: Gpus = Hip(*sys.argv[2:]) if sys.argv[1] == "hip" else Cuda(*sys.argv[2:])
    print(json.dumps([asdict(copy) for copy in peer_copies(driver)]))
