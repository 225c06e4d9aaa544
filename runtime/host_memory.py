"""The operating system's side of memory: RAM, cgroup limits, the kernel, and what TTM lets GPUs take of RAM."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .sysfs import MISSING, ROOT, Number, number, read_number, read_table, read_text

PAGE = 4096  # x86-64; TTM's limits are in pages
UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a number near 2^63


@dataclass(frozen=True)
class Ttm:
    """The kernel's manager of GPU memory in RAM. Sizes in bytes.

    module: ttm, or amdttm (AMD's own driver package), "" when neither is loaded. pool_held: pages that it keeps after
    their owner has freed them; how: where that number is from.
    """

    module: str
    limit: Number  # pages_limit: what all GPUs together may take
    pool_limit: Number  # page_pool_size: what it may keep
    pool_held: Number
    pool_source: str


@dataclass(frozen=True)
class Host:
    """Sizes in bytes. cgroup_free: what this process' cgroups leave, None without a limit."""

    total: Number
    available: Number
    cgroup_free: int | None
    kernel: str
    parameters: dict[str, str]  # of the kernel's command line
    system_limit_off: bool  # amdgpu.no_system_mem_limit
    ttm: Ttm

    @property
    def kernel_version(self) -> tuple[int, int, int] | None:
        """(6, 18, 4) of "6.18.4-200.fc43.x86_64"; None when it is not known."""
        found = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", self.kernel)
        return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def read_host(root: Path = ROOT) -> Host:
    """Read it all below `root`."""
    meminfo, problem = read_table(root / "proc/meminfo", ":")
    command_line, _ = read_text(root / "proc/cmdline")
    parameters = _parameters(command_line or "")
    no_limit, _ = read_text(root / "sys/module/amdgpu/parameters/no_system_mem_limit")
    return Host(
        total=_kib(meminfo, "MemTotal", problem),
        available=_kib(meminfo, "MemAvailable", problem),
        cgroup_free=cgroup_free(root),
        kernel=read_text(root / "proc/sys/kernel/osrelease")[0] or "",
        parameters=parameters,
        system_limit_off=(no_limit or parameters.get("amdgpu.no_system_mem_limit", "")) in ("Y", "y", "1"),
        ttm=read_ttm(root, meminfo),
    )


def read_ttm(root: Path, meminfo: dict[str, str]) -> Ttm:
    """TTM's limits, and the pages in its pool: of /proc/meminfo (newer kernels), else of debugfs (root only)."""
    module = next((m for m in ("amdttm", "ttm") if (root / "sys/module" / m / "parameters").is_dir()), "")
    parameters = root / "sys/module" / (module or "ttm") / "parameters"
    held, source = MISSING, ""
    if "GPUReclaim" in meminfo:
        held, source = _kib(meminfo, "GPUReclaim", ""), "GPUReclaim in /proc/meminfo"
    else:
        text, problem = read_text(root / "sys/kernel/debug/ttm/page_pool")
        found = re.search(r"^total\s*:\s*(\d+)\s+of\s+\d+", text or "", re.MULTILINE)
        if found:
            held, source = number(found[1], PAGE), "/sys/kernel/debug/ttm/page_pool"
        else:
            held = Number(None, problem or "not understood")
    return Ttm(
        module=module,
        limit=read_number(parameters / "pages_limit", PAGE),
        pool_limit=read_number(parameters / "page_pool_size", PAGE),
        pool_held=held,
        pool_source=source,
    )


def cgroup_free(root: Path = ROOT) -> int | None:
    """Bytes that the cgroups of this process still allow, page cache that can be dropped included; None: no limit."""
    memberships, _ = read_text(root / "proc/self/cgroup")
    free: list[int] = []
    for line in (memberships or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = mount / path.strip("/")
        for group in (folder, *folder.parents):
            if (left := _group_free(group, *names)) is not None:
                free.append(left)
            if group == mount:
                break
    return min(free, default=None)


def _group_free(group: Path, limit_name: str, used_name: str, cache_name: str) -> int | None:
    text, _ = read_text(group / limit_name)
    if text is None or not re.fullmatch(r"[0-9]{1,19}", text) or int(text) >= UNLIMITED:
        return None
    used = read_number(group / used_name).value or 0
    stat, _ = read_table(group / "memory.stat")
    cache = number(stat.get(cache_name, "0")).value or 0
    return max(0, int(text) - max(0, used - cache))


def _kib(meminfo: dict[str, str], name: str, problem: str) -> Number:
    text = meminfo.get(name)
    if text is None:
        return Number(None, problem or f"{name} missing")
    return number(text.removesuffix("kB").strip(), 1024)


def _parameters(command_line: str) -> dict[str, str]:
    """ "ttm.pages_limit=1 quiet" -> {"ttm.pages_limit": "1", "quiet": ""}."""
    pairs = (word.partition("=") for word in command_line.split())
    return {name: value for name, _, value in pairs}
