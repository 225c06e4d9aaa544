"""The doctor's look at the system: kernel, RAM, device files, groups, containers."""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from .amdgpu import AmdGpu
from .checks import Check, fail, ok, skip, warn
from .host_memory import Host
from .sizes import size
from .sysfs import entries, read_text

Access = Callable[[Path, int], bool]
AMD_DOCS = "rocm.docs.amd.com/en/latest/how-to/system-optimization/strixhalo.html"


def system_checks(root: Path, host: Host, gpus: Sequence[AmdGpu], access: Access = os.access) -> list[Check]:
    """Kernel, RAM, and whether this process may use AMD's device files."""
    return [kernel_check(host, gpus), ram_check(host), *device_file_checks(root, gpus, access)]


def kernel_check(host: Host, gpus: Sequence[AmdGpu]) -> Check:
    """gfx1151 needs fixes of KFD that are in 6.18.4, and in Ubuntu's 6.17.0-19 and 6.14.0-1018 (OEM)."""
    name, text = "kernel", f"Linux {host.kernel or 'of unknown version'}"
    if not any(gpu.arch == "gfx1151" for gpu in gpus):
        return ok(name, text)
    if host.kernel_version is None:
        return warn(name, text, "could not read /proc/sys/kernel/osrelease; gfx1151 needs Linux 6.18.4 or later")
    if has_gfx1151_fixes(host.kernel):
        return ok(name, f"{text}, which has the fixes that gfx1151 needs")
    return warn(
        name,
        f"{text} lacks fixes of KFD for gfx1151: queues may fail to start, memory may be refused",
        f"use Linux 6.18.4, Ubuntu 24.04's HWE kernel 6.17.0-19 or OEM kernel 6.14.0-1018, or later ({AMD_DOCS})",
    )


def has_gfx1151_fixes(release: str) -> bool:
    """Whether a kernel release, as `uname -r` says it, has what AMD asks for on gfx1151 (Fedora 43 has, says AMD)."""
    if (fedora := re.search(r"\.fc(\d{1,4})\.", release)) and int(fedora[1]) >= 43:
        return True
    found = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:-(\d{1,6}))?(.*)", release)
    if not found:
        return False
    version = (int(found[1]), int(found[2]), int(found[3] or 0))
    package = int(found[4] or 0)
    if version[:2] == (6, 17) and version[2] == 0:
        return "generic" in found[5] and package >= 19
    if version[:2] == (6, 14) and version[2] == 0:
        return "oem" in found[5] and package >= 1018
    return version >= (6, 18, 4)


def ram_check(host: Host) -> Check:
    """RAM, what is available of it, and a cgroup's limit."""
    if host.total.value is None or host.available.value is None:
        why = host.total.problem or host.available.problem
        return warn("RAM", f"/proc/meminfo: {why}", "budgets cannot be checked; give --memory-budget")
    limit = "" if host.cgroup_free is None else f"; this process' cgroup leaves {size(host.cgroup_free)}"
    return ok("RAM", f"{size(host.available.value)} available of {size(host.total.value)}{limit}")


def device_file_checks(root: Path, gpus: Sequence[AmdGpu], access: Access) -> list[Check]:
    """/dev/kfd and /dev/dri/renderD*: there, and open to this process."""
    files = [root / "dev/kfd", *(p for p in entries(root / "dev/dri") if p.name.startswith("renderD"))]
    there = [file for file in files if file.exists()]
    if not gpus and not files[0].exists():  # render nodes of other makers' GPUs are not ours to judge
        return [skip("device files", "no AMD GPU here")]
    inside = container(root)
    checks = []
    if not files[0].exists():
        fix = (
            "start the container with --device /dev/kfd --device /dev/dri"
            if inside
            else "load the driver (modprobe amdgpu), and see `dmesg | grep -i kfd`"
        )
        checks.append(fail("/dev/kfd", f"not there{', in a container' if inside else ''}: HIP finds no GPU", fix))
    if len(files) == 1:
        fix = "start the container with --device /dev/dri" if inside else "load the driver: modprobe amdgpu"
        checks.append(fail("/dev/dri", f"has no renderD*{', in a container' if inside else ''}", fix))
    for file in there:
        name = f"/{file.relative_to(root)}"
        if access(file, os.R_OK | os.W_OK):
            checks.append(ok(name, "open to this process"))
        else:
            checks.append(
                fail(name, f"not open to this process; it belongs to the group {_group(file)}", _join(file, inside))
            )
    return checks


def container(root: Path) -> str:
    """The kind of container that this is, "" for none."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    text, _ = read_text(root / "run/systemd/container")
    return text or ""


def _group(file: Path) -> str:
    number = file.stat().st_gid
    try:
        return f"{grp.getgrgid(number).gr_name} ({number})"
    except KeyError:
        return f"{number}, which has no name here"


def _join(file: Path, inside: str) -> str:
    number = file.stat().st_gid
    if inside:
        return f"start the container with --group-add {number} (podman: --group-add keep-groups)"
    return "sudo usermod -aG render,video $USER, then log in again"
