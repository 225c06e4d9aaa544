"""A machine on file: the kernel's files that memory budgets read, for `strixhlo doctor --record` and for tests.

Only files on a list are taken, and what could name a person or a machine is left out: of the kernel's command line only
parameters about GPUs and memory, of KFD's properties no unique_id, of the cgroup only its limit.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import StrixhloError
from ..text_file import text_of
from .checks import Check
from .host_memory import cgroup_free
from .sysfs import ROOT, read_text

FORMAT = "strixhlo machine record 1"
FILES = (
    "proc/meminfo",
    "proc/sys/kernel/osrelease",
    "sys/module/*ttm/parameters/pages_limit",
    "sys/module/*ttm/parameters/page_pool_size",
    "sys/module/amdgpu/version",
    "sys/module/amdgpu/parameters/no_system_mem_limit",
    "sys/kernel/debug/ttm/page_pool",
    "sys/class/kfd/kfd/topology/nodes/*/properties",
    "sys/class/kfd/kfd/topology/nodes/*/mem_banks/*/properties",
    "sys/class/hwmon/hwmon*/name",
    "sys/class/hwmon/hwmon*/power1_*",
    "sys/class/hwmon/hwmon*/energy1_input",
    "sys/class/powercap/intel-rapl:*/name",
    "sys/class/powercap/intel-rapl:*/*energy*_uj",
    "opt/rocm/.info/version",
)
NAMES = ("dev/kfd", "dev/dri/renderD*", "sys/class/iommu/*")
DEVICE_FILES = ("vendor", "device", "mem_info_*")
PARAMETERS = re.compile(r"(amdgpu|ttm|amdttm|iommu|amd_iommu|amdkfd)([._].*)?$")
DROPPED_PROPERTIES = ("unique_id",)


def record_machine(checks: Sequence[Check] = (), root: Path = ROOT) -> dict[str, Any]:
    """The files and links below `root` that are on the list, and the doctor's lines."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    problems: dict[str, str] = {}

    def take(path: Path, name: str) -> None:
        text, problem = read_text(path)
        if text is None:
            problems[name] = problem
        else:
            files[name] = text

    for pattern in FILES:
        for path in sorted(root.glob(pattern)):
            take(path, str(path.relative_to(root)))
    for link in sorted(root.glob("sys/class/drm/*/device")):
        if not re.fullmatch(r"card\d+|renderD\d+", link.parent.name):
            continue
        folder = f"sys/devices/{link.resolve().name}"
        links[str(link.relative_to(root))] = f"../../../devices/{link.resolve().name}"
        for pattern in DEVICE_FILES:
            for path in sorted(link.glob(pattern)):
                take(path, f"{folder}/{path.name}")
    for name in [n for n in files if n.endswith("properties")]:
        lines = [line for line in files[name].splitlines() if line.split(" ")[0] not in DROPPED_PROPERTIES]
        files[name] = "\n".join(lines)
    # Of these only the names count: they are recorded as empty files.
    for pattern in NAMES:
        files |= {str(path.relative_to(root)): "" for path in sorted(root.glob(pattern))}
    command_line, _ = read_text(root / "proc/cmdline")
    kept = [w for w in (command_line or "").split() if PARAMETERS.match(w.partition("=")[0])]
    files["proc/cmdline"] = " ".join(kept)
    if (left := cgroup_free(root)) is not None:
        files["proc/self/cgroup"] = "0::/"
        files["sys/fs/cgroup/memory.max"] = str(left)
    record = {
        "format": FORMAT,
        "assumed": False,
        "versions": {name: version(name) for name in ("strixhlo", "iree-base-runtime")},
        "files": files,
        "links": links,
        "unreadable": problems,
        "checks": [asdict(check) for check in checks],
    }
    return _without_names(record, _personal(os.environ))


def _personal(environment: Any) -> list[str]:
    """What this machine and its user are called."""
    names = {
        socket.gethostname(),
        socket.getfqdn(),
        *(environment.get(n, "") for n in ("USER", "LOGNAME", "SUDO_USER")),
    }
    generic = {"localhost", "root", "user", "ubuntu", "fedora", "debian", "arch", "linux", "amd", "gpu"}
    return sorted((n for n in names if len(n) > 2 and n.lower() not in generic), key=len, reverse=True)


_PATTERNS = (
    (re.compile(r"/home/[^\s/:,;'\")]+"), "/home/<removed>"),
    (re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b"), "<removed>"),  # MAC addresses
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<removed>"),  # UUIDs
)


def _without_names(value: Any, names: Iterable[str]) -> Any:
    """The record with every name, home folder, MAC address and UUID in its texts taken out."""
    if isinstance(value, dict):
        return {_without_names(k, names): _without_names(v, names) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_names(v, names) for v in value]
    if not isinstance(value, str):
        return value
    for pattern, replacement in _PATTERNS:
        value = pattern.sub(replacement, value)
    for name in names:
        value = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "<removed>", value, flags=re.IGNORECASE)
    return value


def read_machine(path: Path, folder: Path) -> dict[str, Any]:
    """Lay out a record's files and links below `folder`, so that it can be read as a root; returns the record.

    A record comes from a stranger: StrixhloError for a path or link that would leave the folder.
    """
    try:
        record = json.loads(text_of(path))
    except (OSError, ValueError, RecursionError) as error:
        raise StrixhloError(f"{path}: cannot be read ({error})") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise StrixhloError(f"{path}: is not a record of `strixhlo doctor --record`")
    files, links = record.get("files", {}), record.get("links", {})
    if not isinstance(files, dict) or not isinstance(links, dict) or files.keys() & links.keys():
        raise StrixhloError(f"{path}: is not a whole record: files and links must be objects that share no name")
    for name, text in {**files, **links}.items():
        if not isinstance(text, str) or not _inside(name) or (name in links and not _inside(name, text)):
            raise StrixhloError(f"{path}: {name!r} leads out of the record")
    name = ""
    try:
        for name, target in links.items():
            _lay_out(folder, name).symlink_to(target)
        for name in links:
            _require_below(folder, folder / name)  # also when it leads through other links
        for name, text in files.items():
            _lay_out(folder, name).write_text(text + "\n", "utf-8")
    except _LeadsOut:
        raise StrixhloError(f"{path}: {name!r} leads out of the record") from None
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links, a name that no file can have, ...
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise StrixhloError(f"{path}: {name!r:.80} cannot be laid out ({reason})") from None
    return record


class _LeadsOut(Exception):
    """A path of a record is not below the folder."""


def _require_below(folder: Path, path: Path) -> None:
    if not path.resolve().is_relative_to(folder.resolve()):
        raise _LeadsOut


def _lay_out(folder: Path, name: str) -> Path:
    """The path of a new file or link of the record, its folder made, both below `folder` once links are followed."""
    path = folder / name
    _require_below(folder, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _require_below(folder, path)
    return path


def _inside(name: str, target: str = "") -> bool:
    """Whether a relative path, and the target of a link there, stays below the root."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        return False
    if PurePosixPath(target).is_absolute():
        return False
    depth = len(path.parts) - 1
    for part in PurePosixPath(target).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return True
