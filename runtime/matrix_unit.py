"""Whether this process may use the CPU's matrix unit (AMX), which Linux allows on request only.

arch_prctl(ARCH_REQ_XCOMP_PERM): Documentation/arch/x86/xstate.rst of the Linux kernel, 5.16 and later. The permission
is for all threads of the process. Kernels make no system calls, so they are told: the first word of the program's
parameter `MACHINE_PARAMETER`.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from collections.abc import Callable
from typing import Any

import iree.runtime as rt
import numpy as np

from ..bundle import MACHINE_PARAMETER, MACHINE_WORDS
from ..cpu_features import cpuinfo_flags
from .device import SCOPE, Device, Weights

FLAGS = frozenset({"amx_tile", "amx_int8", "amx_bf16"})
SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18


def request_tiles() -> bool:
    """Ask Linux for the permission; False where it refuses."""
    return ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0


def may_use_tiles(flags: frozenset[str] | None = None, request: Callable[[], bool] = request_tiles) -> bool:
    """Whether the CPU has the unit (flags: of /proc/cpuinfo) and the system lets this process use it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return (cpuinfo_flags() if flags is None else flags) >= FLAGS and request()


def machine_parameters(device: Device) -> dict[str, mmap.mmap]:
    """The parameters that programs on a device have beside their weights."""
    return {MACHINE_PARAMETER: machine_words(may_use_tiles())} if device.on_host else {}


def modules_without_weights(instance: Any, device: Device) -> list[Any]:
    """IREE's modules that a program without weights needs."""
    provider = Weights([], device.maps_files, machine_parameters(device)).provider(SCOPE)
    return [rt.create_hal_module(instance, device.hal), rt.create_io_parameters_module(instance, provider)]


def machine_words(tiles: bool) -> mmap.mmap:
    """What the parameter holds, at the start of a page: the first word is 1 where tiles may be used."""
    words = np.zeros(MACHINE_WORDS, np.int32)
    words[0] = tiles
    memory = mmap.mmap(-1, words.nbytes)
    memory[:] = words.tobytes()
    return memory
