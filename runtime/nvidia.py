"""NVIDIA GPUs through NVML, the driver's own library, loaded with ctypes: nothing else has to be installed."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass

from .sysfs import Number

NVML = "libnvidia-ml.so.1"
CUDA = "libcuda.so.1"


class _Memory(ctypes.Structure):
    """nvmlMemory_t of nvml.h, bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True)
class NvidiaGpu:
    """One GPU; sizes in bytes."""

    name: str
    total: Number
    used: Number


def nvidia_gpus(library: str = NVML) -> tuple[list[NvidiaGpu], str]:
    """All GPUs in NVML's order, and why there are none."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return [], f"{library} is not there"
    if code := nvml.nvmlInit_v2():
        return [], f"NVML does not start (error {code})"
    try:
        count = ctypes.c_uint()
        if code := nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return [], f"NVML does not count devices (error {code})"
        gpus = [_gpu(nvml, index) for index in range(count.value)]
        return gpus, "" if gpus else "NVML sees no GPU"
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: ctypes.CDLL, index: int) -> NvidiaGpu:
    handle = ctypes.c_void_p()
    if code := nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)):
        problem = Number(None, f"NVML error {code}")
        return NvidiaGpu(f"GPU {index}", problem, problem)
    name = ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(len(name)))
    memory = _Memory()
    if code := nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        problem = Number(None, f"NVML error {code}")
        return NvidiaGpu(name.value.decode(errors="replace"), problem, problem)
    # What others reserve is neither used nor free: count all that is not free.
    return NvidiaGpu(name.value.decode(errors="replace"), Number(memory.total), Number(memory.total - memory.free))


def default_cuda_device(environment: Mapping[str, str] = os.environ) -> int:
    """The NVML index of CUDA's device 0, as far as CUDA_VISIBLE_DEVICES says it with a number; else 0.

    CUDA's own order ("fastest first") is NVML's among GPUs of one kind, and always with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    first = environment.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0
