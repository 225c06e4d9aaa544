"""The doctor's look at GPU memory: the pools, TTM's limits and its page pool, the IOMMU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .amdgpu import AmdGpu
from .checks import Check, ok, skip, warn
from .host_memory import PAGE, Host
from .pools import Pool, amd_pool, os_reserve, recommended_limit
from .sizes import GIB, MIB, size
from .sysfs import entries, number

POOL_HINT = GIB  # a page pool above this is worth a word


def memory_checks(root: Path, host: Host, gpus: Sequence[AmdGpu]) -> list[Check]:
    """For each GPU its pool; then what all GPUs of a machine share."""
    checks = []
    for gpu in gpus:
        pool = amd_pool(gpu, host)
        checks.append(pool_check(gpu, pool))
        checks += [*carve_out_checks(gpu, pool), *visible_vram_checks(gpu)]
    if any(gpu.integrated for gpu in gpus):
        checks += [*limit_checks(host, gpus), page_pool_check(host)]
    return [*checks, iommu_check(root, host, gpus)] if gpus else []


def pool_check(gpu: AmdGpu, pool: Pool) -> Check:
    """Where it allocates, and what is left there."""
    name = f"memory of {gpu.name}"
    why = "; ".join(pool.reasons)
    if pool.usable is None:
        return warn(
            name, f"not known: {'; '.join(pool.warnings)}", "give --memory-budget, and report this with --record"
        )
    text = f"{pool.name}: {size(pool.usable)} left of {size(pool.limit or 0)} ({why})"
    if pool.warnings:
        return warn(
            name, f"{text}; {'; '.join(pool.warnings)}", "give --memory-budget if a program is refused or too large"
        )
    return ok(name, text)


def carve_out_checks(gpu: AmdGpu, pool: Pool) -> list[Check]:
    """A carve-out that HIP does not use is RAM that nobody has."""
    vram = gpu.vram_total.positive or 0
    if not gpu.integrated or pool.name != "GTT" or vram <= 4 * GIB:
        return []
    return [
        warn(
            "carve-out",
            f"{size(vram)} of RAM are set apart for the GPU, but HIP allocates from GTT: they lie idle",
            "set it to its minimum (0.5 GB) in the BIOS and raise TTM's limit; or keep GTT smaller than the carve-out",
        )
    ]


def visible_vram_checks(gpu: AmdGpu) -> list[Check]:
    """How much of its VRAM the processor can reach. Budgets do not use it: programs keep everything where the GPU alone
    reaches it, and copies go through staging buffers, which are slower where little is visible."""
    total, visible, used = gpu.vram_total.positive, gpu.visible_vram_total, gpu.visible_vram_used
    name, chip = "visible VRAM", gpu.arch or gpu.pci_id
    if total is None or visible.value is None:
        return [skip(name, f"{chip}: not known ({visible.problem or gpu.vram_total.problem or 'VRAM size zero'})")]
    text = f"{chip}: the CPU sees {size(visible.value)} of {size(total)}" + (
        "" if used.value is None else f", {size(used.value)} in use"
    )
    if visible.value > total or (used.value or 0) > visible.value:
        return [warn(name, f"{text}: the driver's numbers contradict each other", "update the kernel")]
    if visible.value < total:
        return [
            warn(
                name,
                f"{text}: no resizable BAR, so copies to the GPU go through a small window; what fits does not change",
                "enable Above 4G Decoding and Resizable BAR in the BIOS",
            )
        ]
    return [ok(name, text)]


def limit_checks(host: Host, gpus: Sequence[AmdGpu]) -> list[Check]:
    """What bounds GTT, whether it could be more, and the parameters that set it."""
    limit, total = host.ttm.limit, host.total.positive
    name = "TTM limit"
    checks = []
    advised = recommended_limit(total) if total else 0
    from_gtt = any(g.integrated and amd_pool(g, host).name == "GTT" for g in gpus)
    if limit.value is None:
        checks.append(warn(name, f"pages_limit: {limit.problem}", "is the driver loaded? modprobe amdgpu"))
    elif total and limit.value > total - os_reserve(total):
        text = f"{size(limit.value)}, of {size(total)} of RAM: the system can run out of memory before the GPU does"
        checks.append(warn(name, text, f"lower it: {set_limit(host, advised)}"))
    elif from_gtt and limit.value < advised * 3 // 4:
        text = f"{size(limit.value)}, of {size(total or 0)} of RAM"
        checks.append(warn(name, text, f"for larger models raise it: {set_limit(host, advised)}"))
    else:
        checks.append(ok(name, f"{size(limit.value)} ({limit.value // PAGE} pages)"))
    gttsize = number(host.parameters.get("amdgpu.gttsize", ""), MIB)  # -1, the default, is no number of bytes
    if gttsize.value is not None:
        same = gttsize.value == limit.value
        checks.append(
            warn(
                "amdgpu.gttsize",
                f"{size(gttsize.value)}, deprecated"
                + ("" if same else f", and not TTM's limit of {size(limit.value or 0)}"),
                "take it off the kernel's command line; TTM's pages_limit alone sets the size",
            )
        )
    return checks


def set_limit(host: Host, nbytes: int) -> str:
    """How to set TTM's limit to `nbytes`, in whole GiB."""
    gib = nbytes // GIB
    pages = gib * GIB // PAGE
    module = host.ttm.module or "ttm"
    return (
        f"`amd-ttm --set {gib}` (pipx install amd-debug-tools), or the kernel parameter {module}.pages_limit={pages};"
        " then reboot"
    )


def page_pool_check(host: Host) -> Check:
    """Pages that TTM keeps when their owner has freed them: they look like a leak, and starve ordinary allocations."""
    name, held = "TTM page pool", host.ttm.pool_held
    may_keep = host.ttm.pool_limit.value
    bound = "" if may_keep is None else f", it may keep {size(may_keep)}"
    if held.value is None:
        return skip(name, f"its size is not known ({held.problem}){bound}; run doctor as root to see it")
    if held.value < POOL_HINT:
        return ok(name, f"{size(held.value)} kept{bound}")
    return warn(
        name,
        f"{size(held.value)} kept after unloading{bound}: no leak (the next GPU program takes them), but ordinary"
        " allocations starve",
        "give them back with `echo 2 | sudo tee /proc/sys/vm/drop_caches`; a smaller ttm.page_pool_size keeps fewer",
    )


def iommu_check(root: Path, host: Host, gpus: Sequence[AmdGpu]) -> Check:
    """Translation costs an integrated GPU some bandwidth, and can break copies between GPUs."""
    name = "IOMMU"
    off = host.parameters.get("amd_iommu") == "off" or host.parameters.get("iommu") == "off"
    passing = host.parameters.get("iommu") == "pt" or host.parameters.get("iommu.passthrough") == "1"
    if off or not entries(root / "sys/class/iommu"):
        return ok(name, "off")
    if len(gpus) > 1 and not passing:
        return warn(
            name,
            "translates, and there are several GPUs: copies between them may come out corrupted",
            "add iommu=pt to the kernel's command line; the self-test below checks such copies",
        )
    return ok(
        name, "passes through" if passing else "translates; amd_iommu=off reads up to 6% faster, and ends the NPU"
    )
