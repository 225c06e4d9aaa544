"""Machines by name, for budgets without the machine: what their kernel would say while nothing else runs on them.

The sizes are those that owners have published (docs/memory.md); 2 GiB of RAM count as taken by the system.
"""

from __future__ import annotations

from dataclasses import dataclass

from .amdgpu import AmdGpu
from .host_memory import Host, Ttm
from .pools import Pool, amd_pool
from .sizes import GIB
from .sysfs import MISSING, Number

IDLE_SYSTEM = 2 * GIB


@dataclass(frozen=True)
class Machine:
    """Sizes in GiB. ram: what the system sees beside the carve-out; gtt: TTM's limit, None: half of ram."""

    what: str
    arch: str
    ram: float
    vram: float
    gtt: float | None = None


MACHINES = {
    "strix-halo-128-default": Machine("128 GB, carve-out 0.5 GB, GTT as the kernel sets it", "gfx1151", 124.9, 0.5),
    "strix-halo-128-gtt110": Machine("128 GB, carve-out 0.5 GB, GTT raised to 110 GiB", "gfx1151", 124.9, 0.5, 110),
    "strix-halo-128-vram96": Machine("128 GB, carve-out 96 GB", "gfx1151", 31.0, 96),
    "strix-halo-128-vram64": Machine("128 GB, carve-out 64 GB", "gfx1151", 62.0, 64),
    "strix-halo-64-default": Machine("64 GB, carve-out 0.5 GB, GTT as the kernel sets it", "gfx1151", 62.0, 0.5),
    "strix-halo-64-gtt54": Machine("64 GB, carve-out 0.5 GB, GTT raised to 54 GiB", "gfx1151", 62.0, 0.5, 54),
    "strix-halo-64-vram48": Machine("64 GB, carve-out 48 GB", "gfx1151", 15.0, 48),
    "r9700": Machine("Radeon AI PRO R9700, a card of 32 GB", "gfx1201", 60.0, 32),
}


def machine_pool(name: str) -> Pool:
    """The pool that HIP allocates from on that machine, under a kernel of 6.16 or later."""
    machine = MACHINES[name]
    ram = int(machine.ram * GIB)
    gtt = Number(ram // 2 if machine.gtt is None else int(machine.gtt * GIB))
    vram, nothing = Number(int(machine.vram * GIB)), Number(0)
    gpu = AmdGpu(
        address=name,
        pci_id="",
        arch=machine.arch,
        render_node="",
        vram_total=vram,
        vram_used=nothing,
        visible_vram_total=vram,
        visible_vram_used=nothing,
        gtt_total=gtt,
        gtt_used=nothing,
        kfd_bytes=MISSING,
    )
    host = Host(
        total=Number(ram),
        available=Number(ram - IDLE_SYSTEM),
        cgroup_free=None,
        kernel="6.18.4",
        parameters={},
        system_limit_off=False,
        ttm=Ttm("ttm", gtt, gtt, nothing, ""),
    )
    return amd_pool(gpu, host)
