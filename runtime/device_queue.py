"""Work queued on a device: calls of entry points that return before the device is done, and small copies between them.

For programs whose entries are given storage for results and temporaries (compile/given_storage.py). Everything goes to
the device in the order in which it was queued, one after the other, so that one buffer serves every call: an input is
written behind the call that read it before, a result is fetched in front of the call that writes it next.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import iree.runtime as rt
import numpy as np

from ..bundle import TensorSpec
from ..errors import StrixhloError, one_line
from .device import DTYPES, Device

MODEL, SIZE = "iree.abi.model", "iree.abi.transients.size.constant"
_STORAGE = re.compile(r"!hal\.buffer {iree\.abi\.output = (\d+)")
# Host buffers of an input or result: more than steps that are in flight; logits are read before the next step.
SLOTS, FEW_SLOTS, LARGE = 4, 2, 1 << 16
ASKED_EVERY = 1e-6  # seconds; the kernel's timer makes it longer
_HOST = int(rt.MemoryType.HOST_LOCAL) | int(rt.MemoryType.HOST_CACHED) | int(rt.MemoryType.DEVICE_VISIBLE)
_HOST_USAGE = int(rt.BufferUsage.TRANSFER) | int(rt.BufferUsage.MAPPING_SCOPED)


def is_queued(function: Any) -> bool:
    """An entry point of that kind."""
    return function.reflection.get(MODEL) == "coarse-fences" and SIZE in function.reflection


@dataclass
class _Slot:
    """A buffer that the device copies to or from, as the host sees it, and when the device's last copy is done."""

    buffer: Any
    array: np.ndarray
    done: int = 0


class Fetched:
    """A result on its way to the host."""

    def __init__(self, queue: DeviceQueue, slot: _Slot) -> None:
        self._queue, self._slot, self._done = queue, slot, slot.done

    def read(self) -> np.ndarray:
        """A copy of it. Before its slot is taken again: at most FEW_SLOTS may be on their way, SLOTS of small ones."""
        self._queue.wait(self._done)
        return np.array(self._slot.array)


class DeviceQueue:
    """Of one device and program. Close it before the device."""

    def __init__(
        self, device: Device, functions: Mapping[str, Any], results: Mapping[str, Sequence[TensorSpec]]
    ) -> None:
        """functions: the entry points; results: what each returns, but for the KV pools."""
        self._device = device
        self._semaphore = device.hal.create_semaphore(0)
        self._last = 0
        self._nudge, self._nudges = device.hal.create_semaphore(0), 0
        self._slots: defaultdict[tuple[str, ...], list[_Slot]] = defaultdict(list)
        self._inputs: dict[tuple[str, str], Any] = {}
        sizes: defaultdict[str, int] = defaultdict(int)
        self._given: dict[str, list[str]] = {}
        for name, function in functions.items():
            order = [int(n) for n in _STORAGE.findall(function.reflection["iree.abi.declaration"])]
            outputs = [results[name][i] for i in order]
            # Tokens stay for the entry's next call; all else is fetched before any other.
            self._given[name] = [f"{name} {o.name}" if o.name == "tokens" else o.name for o in outputs]
            for place, output in zip(self._given[name], outputs, strict=True):
                sizes[place] = max(sizes[place], device.nbytes(output))
        most = max(int(f.reflection[SIZE]) for f in functions.values())
        self._storage = {name: device.buffer(nbytes) for name, nbytes in sizes.items()}
        self._temporaries = device.buffer(max(most, 1))

    def push_storage(self, entry: str, arguments: Any) -> None:
        """Add what an entry is given behind the model's inputs, the fences apart."""
        for name in self._given[entry]:
            arguments.push_ref(self._storage[name])
        arguments.push_ref(self._temporaries)

    def fences(self) -> tuple[Any, ...]:
        """What the next work waits for and signals."""
        self._last += 1
        return tuple(rt.HalFence.create_at(self._semaphore, value) for value in (self._last - 1, self._last))

    def withdraw(self) -> None:
        """The work for which `fences` was asked last has not been queued: nobody will signal that."""
        self._last -= 1

    def send(self, entry: str, spec: TensorSpec, array: np.ndarray) -> Any:
        """The device's buffer of an input, which will hold the array when work that is queued from now on runs."""
        if array.shape != spec.shape or array.dtype != DTYPES[spec.dtype]:
            raise ValueError(f"{spec.name} is {array.dtype}{array.shape}, not {spec.dtype}{spec.shape}")
        key = entry, spec.name
        if key not in self._inputs:
            self._inputs[key] = self._device.empty(spec)
        view = self._inputs[key]
        slot = self._slot(key, spec)
        slot.array[...] = array
        self._copy(slot, slot.buffer, view.get_buffer())
        return view

    def fetch(self, entry: str, spec: TensorSpec, view: Any) -> Fetched:
        """Queue a copy of a result to the host."""
        slot = self._slot((entry, spec.name, "out"), spec)  # inputs and results have some names in common
        self._copy(slot, view.get_buffer(), slot.buffer)
        return Fetched(self, slot)

    def wait(self, value: int | None = None) -> None:
        """Until that much is done, or everything. By asking: IREE's CUDA driver takes a waiting thread's entry in a
        semaphore's list for one of its own. And it issues no call whose predecessor another thread of its is still
        issuing, nor looks again when that thread is done, but when any call is queued or any semaphore signalled."""
        value = self._last if value is None else value
        try:
            while self._semaphore.query() < value:
                self._nudges += 1
                self._nudge.signal(self._nudges)
                time.sleep(ASKED_EVERY)
        except (RuntimeError, ValueError, LookupError, MemoryError) as error:  # IREE maps its status codes to these
            raise StrixhloError(f"a call failed on the device: {one_line(error)}") from None

    def close(self) -> None:
        """Wait for the device, and let go of all buffers."""
        with suppress(StrixhloError):  # whose call it was has heard of it
            self.wait()
        for held in (self._slots, self._inputs, self._storage):
            held.clear()
        self._temporaries = self._semaphore = self._nudge = None

    def _copy(self, slot: _Slot, source: Any, target: Any) -> None:
        wait, signal = self.fences()
        try:
            self._device.hal.queue_copy(source, target, wait_semaphores=wait, signal_semaphores=signal)
        except BaseException:
            self.withdraw()
            raise
        slot.done = self._last

    def _slot(self, key: tuple[str, ...], spec: TensorSpec) -> _Slot:
        """One that the device has done with: of a full ring the oldest."""
        ring, nbytes = self._slots[key], self._device.nbytes(spec)
        if len(ring) < (SLOTS if nbytes <= LARGE else FEW_SLOTS):
            buffer = self._device.hal.allocator.allocate_buffer(_HOST, _HOST_USAGE, nbytes)
            ring.append(_Slot(buffer, self._device.mapped(buffer, spec)))
        else:
            ring.append(ring.pop(0))
            self.wait(ring[-1].done)
        return ring[-1]
