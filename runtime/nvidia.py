"""NVIDIA GPUs through NVML, the driver's own library, loaded with ctypes: nothing else has to be installed."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .sysfs import Number

NVML = "libnvidia-ml.so.1"
CUDA = "libcuda.so.1"


class _Memory(ctypes.Structure):
    """nvmlMemory_t of nvml.h, bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True)
class NvidiaGpu:
    """One GPU; sizes in bytes. uuid: GPU-..., "" when it is not known."""

    name: str
    total: Number
    used: Number
    uuid: str = ""


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
    identifier = ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetUUID(handle, identifier, ctypes.c_uint(len(identifier)))
    uuid = identifier.value.decode(errors="replace")
    memory = _Memory()
    if code := nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        problem = Number(None, f"NVML error {code}")
        return NvidiaGpu(name.value.decode(errors="replace"), problem, problem, uuid)
    # What others reserve is neither used nor free: count all that is not free.
    return NvidiaGpu(
        name.value.decode(errors="replace"), Number(memory.total), Number(memory.total - memory.free), uuid
    )


def first_cuda_gpu(
    gpus: Sequence[NvidiaGpu], environment: Mapping[str, str] = os.environ
) -> tuple[NvidiaGpu | None, str]:
    """CUDA's device 0 among NVML's GPUs, as CUDA_VISIBLE_DEVICES says it, or None and why.

    Numbers count in NVML's order, which is CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID, and without it ("fastest first")
    among GPUs of one kind. A UUID may be shortened as long as one GPU alone begins so. Anything else, -1 and "" too,
    hides it and all that come after (CUDA C++ programming guide, "CUDA environment variables").
    """
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return (gpus[0], "") if gpus else (None, "NVML sees no GPU")
    first, where = text.partition(",")[0].strip(), f"CUDA_VISIBLE_DEVICES={text[:80]!r}"
    if first.startswith("MIG-"):
        return None, f"{where} names a part of a GPU (MIG), whose memory is not looked up here"
    if first.startswith("GPU-"):
        found = [gpu for gpu in gpus if gpu.uuid.startswith(first)]
        return (found[0], "") if len(found) == 1 else (None, f"{where}: {len(found)} GPUs have a UUID like that")
    if re.fullmatch(r"[0-9]{1,4}", first) and int(first) < len(gpus):
        return gpus[int(first)], ""
    return None, f"{where} lets CUDA see none of {len(gpus)} GPUs"
