"""Which pool of memory a device allocates from, and how much of it may be used. docs/memory.md has the reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .amdgpu import AmdGpu
from .host_memory import Host
from .sizes import GIB, MIB, size
from .sysfs import Number

GTT_SINCE = (6, 10, 0)  # from here on HIP's memory on APUs is GTT
LARGER_SINCE = (6, 16, 0)  # from here on only where GTT is larger than the carve-out
VRAM_RESERVE = 256 * MIB  # firmware, page tables, a desktop's framebuffers
KFD_RESERVE = 3 << 29  # AMDGPU_RESERVE_MEM_LIMIT of amdkfd


@dataclass(frozen=True)
class Pool:
    """usable: bytes that may still be taken, None when it could not be found out (`warnings` says why)."""

    device: str
    name: Literal["VRAM", "GTT", "RAM"]
    limit: int | None
    used: int | None
    usable: int | None
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def os_reserve(total_ram: int) -> int:
    """What is left to the operating system where a device's memory is RAM: 1/32 of it, at least 2 GiB."""
    return max(2 * GIB, total_ram // 32)


def recommended_limit(total_ram: int) -> int:
    """The TTM limit to advise: all but 1/8 of RAM, at least 4 GiB of it. Owners run 100 to 110 of 125 GiB."""
    return total_ram - max(4 * GIB, total_ram // 8)


def ram_pool(host: Host) -> Pool:
    """The CPU's: what the system calls available, within this process' cgroup limits."""
    warnings = []
    free = host.available.value
    if free is None:
        warnings.append(f"MemAvailable: {host.available.problem}")
    reasons = ["a program for the CPU lives in RAM; mapped weights can be dropped, and count all the same"]
    if host.cgroup_free is not None:
        reasons.append(f"this process' cgroup leaves {size(host.cgroup_free)}")
        free = host.cgroup_free if free is None else min(free, host.cgroup_free)
    total = host.total.positive
    used = total - host.available.value if total is not None and host.available.value is not None else None
    return Pool("CPU", "RAM", total, used, free, tuple(reasons), tuple(warnings))


def card_pool(device: str, total: Number, used: Number) -> Pool:
    """A card with memory of its own."""
    warnings = [f"{n}: {v.problem}" for n, v in (("memory in use", used),) if v.value is None]
    limit = total.positive
    if limit is None:
        warnings.append(f"memory size: {total.problem or 'zero'}")
        return Pool(device, "VRAM", None, used.value, None, ("the size of its memory is not known",), tuple(warnings))
    free = _left(limit, used, warnings)
    return Pool(device, "VRAM", limit, used.value, max(0, free - VRAM_RESERVE), ("memory of its own",), tuple(warnings))


def amd_pool(gpu: AmdGpu, host: Host) -> Pool:
    """Where HIP allocates on this GPU, and how much it may still take."""
    if not gpu.integrated:
        return card_pool(gpu.name, gpu.vram_total, gpu.vram_used)
    from_gtt, why = _allocates_from_gtt(gpu, host)
    if not from_gtt:
        pool = card_pool(gpu.name, gpu.vram_total, gpu.vram_used)
        return Pool(pool.device, "VRAM", pool.limit, pool.used, pool.usable, (why,), pool.warnings)
    return _gtt_pool(gpu, host, why)


def _gtt_pool(gpu: AmdGpu, host: Host, why: str) -> Pool:
    warnings: list[str] = []
    limits = _gtt_limits(gpu, host)
    if not limits:
        why_not = f"GTT size: {gpu.gtt_total.problem or 'zero'}; TTM's limit: {host.ttm.limit.problem or 'zero'}"
        return Pool(gpu.name, "GTT", None, gpu.gtt_used.value, None, (why,), (why_not,))
    limit, bound = min((value, name) for name, value in limits.items())
    reasons = [why, f"limit {size(limit)}: {bound}"]
    free = _left(limit, gpu.gtt_used, warnings)
    total, available = host.total.positive, host.available.value
    if total is None or available is None:
        warnings.append(f"RAM: {host.total.problem or host.available.problem or 'MemTotal is zero'}")
        return Pool(gpu.name, "GTT", limit, gpu.gtt_used.value, None, tuple(reasons), tuple(warnings))
    kept = host.ttm.pool_held.value or 0
    ram = max(0, available + kept - os_reserve(total))
    if ram < free:
        held = f" and {size(kept)} in TTM's pool" if kept else ""
        reasons.append(f"{size(available)} of RAM available{held}, less {size(os_reserve(total))} for the system")
    if limit > total - os_reserve(total):
        warnings.append(f"the limit of {size(limit)} does not leave the system {size(os_reserve(total))} of its RAM")
    return Pool(gpu.name, "GTT", limit, gpu.gtt_used.value, min(free, ram), tuple(reasons), tuple(warnings))


def _gtt_limits(gpu: AmdGpu, host: Host) -> dict[str, int]:
    """All that bounds GTT, none of which can be trusted alone: they are set apart from each other, and from RAM."""
    limits = {
        "mem_info_gtt_total": gpu.gtt_total.positive,
        "TTM's pages_limit": host.ttm.limit.positive,
        "what KFD offers": gpu.kfd_bytes.positive,
    }
    total = host.total.positive
    if total is not None and not host.system_limit_off:
        limits["KFD's bound on RAM"] = max(0, total - total // 64 - KFD_RESERVE)
    known = {name: value for name, value in limits.items() if value is not None}
    return known if set(known) - {"KFD's bound on RAM"} else {}


def _allocates_from_gtt(gpu: AmdGpu, host: Host) -> tuple[bool, str]:
    """KFD says it with the size that it offers: TTM's limit, or the carve-out. Without KFD the kernel's version."""
    vram = gpu.vram_total.positive
    gtt = host.ttm.limit.positive or gpu.gtt_total.positive
    offered = gpu.kfd_bytes.positive
    if vram is None:
        return True, f"the carve-out's size: {gpu.vram_total.problem or 'zero'}; taken as none: HIP allocates from GTT"
    if offered is not None and gtt is not None and vram != gtt:
        to_gtt = abs(offered - gtt) < abs(offered - vram)
        return to_gtt, (
            f"KFD offers {size(offered)}, which is TTM's limit and not the carve-out of {size(vram)}: GTT"
            if to_gtt
            else f"KFD offers {size(offered)}, which is the carve-out and not TTM's limit of {size(gtt)}: VRAM"
        )
    version = host.kernel_version or LARGER_SINCE
    if version < GTT_SINCE:
        return False, f"Linux {host.kernel} is older than 6.10: HIP allocates from the carve-out alone"
    if version < LARGER_SINCE:
        return True, f"Linux {host.kernel}, 6.10 to 6.15: HIP allocates from GTT, however large the carve-out"
    total = gpu.gtt_total.positive or gtt
    if total is None:
        return True, "the size of GTT is not known; taken as larger than the carve-out"
    if vram < total:
        return True, f"GTT ({size(total)}) is larger than the carve-out ({size(vram)}): GTT"
    return False, f"the carve-out ({size(vram)}) is not smaller than GTT ({size(total)}): VRAM"


def _left(limit: int, used: Number, warnings: list[str]) -> int:
    """Limit less what is used: nothing where more is said to be used than there is."""
    if used.value is None:
        if not warnings:
            warnings.append(f"memory in use: {used.problem}; taken as none")
        return limit
    if used.value > limit:
        warnings.append(f"{size(used.value)} in use of {size(limit)}: the driver's numbers contradict each other")
        return 0
    return limit - used.value
