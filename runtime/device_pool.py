"""The pool that a target's device on this machine allocates from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from .amdgpu import amd_gpus, visible_gpus
from .host_memory import read_host
from .nvidia import NVML, first_cuda_gpu, nvidia_gpus
from .pools import Pool, amd_pool, card_pool, ram_pool
from .sysfs import ROOT


def device_pool(kind: str, root: Path = ROOT, environment: Mapping[str, str] = os.environ, nvml: str = NVML) -> Pool:
    """kind: cpu, rocm, cuda or vulkan. The device is the one that IREE's driver takes when none is named: the first."""
    host = read_host(root)
    if kind == "cpu":
        return ram_pool(host)
    if kind == "cuda":
        return _cuda_pool(environment, nvml)
    gpus, odd = visible_gpus(amd_gpus(root), environment)
    if kind == "rocm":
        if not gpus:
            return _unknown("GPU", "no AMD GPU found in sysfs", tuple(odd))
        pool = amd_pool(gpus[0], host)
        return replace(pool, warnings=(*pool.warnings, *odd))
    if gpus:
        return amd_pool(gpus[0], host)
    if nvidia_gpus(nvml)[0]:
        return _cuda_pool(environment, nvml)
    ram = ram_pool(host)
    return replace(
        ram, device="Vulkan", reasons=("no GPU is known here: taken as a Vulkan device on the CPU", *ram.reasons)
    )


def _cuda_pool(environment: Mapping[str, str], nvml: str) -> Pool:
    gpus, problem = nvidia_gpus(nvml)
    gpu, hidden = first_cuda_gpu(gpus, environment)
    if gpu is None:
        return _unknown("GPU", problem or hidden)
    return card_pool(gpu.name, gpu.total, gpu.used)


def _unknown(device: str, problem: str, odd: tuple[str, ...] = ()) -> Pool:
    return Pool(device, "VRAM", None, None, None, ("its memory could not be found out",), (problem, *odd))
