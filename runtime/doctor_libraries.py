"""The doctor's look at what programs for GPUs load: HIP, CUDA's driver, the Vulkan loader and its drivers."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from .amdgpu import AmdGpu, visible_gpus
from .checks import Check, fail, ok, skip, warn
from .child import ask
from .doctor_system import has_gfx1151_fixes
from .hip_probe import LIBRARY
from .host_memory import Host
from .nvidia import CUDA, NVML, first_cuda_gpu, nvidia_gpus
from .sizes import size
from .sysfs import entries, read_text

KNOWS_GFX1151 = (6, 4, 0)  # the first ROCm whose runtime lists gfx1151
RECOMMENDED = "ROCm 7.2.1 or later"
DOCS = "docs/memory.md"


def hip_checks(root: Path, host: Host, gpus: Sequence[AmdGpu], environment: Mapping[str, str]) -> list[Check]:
    """The library that IREE's HIP driver loads, its version, its devices, and variables that change what it sees."""
    if not gpus and read_text(root / "opt/rocm/.info/version")[0] is None:
        return [skip("HIP", "no AMD GPU and no ROCm here")]
    found, crashed = ask("hip_probe", environment=environment)
    if found is None:
        return [fail("HIP", f"asking {LIBRARY} for its devices: {crashed}", f"reinstall ROCm ({RECOMMENDED})")]
    if "error" in found:
        return [fail("HIP", f"{LIBRARY} cannot be loaded: {found['error']}", _library_fix(root))]
    checks = [rocm_check(root, host, gpus, found.get("version"))]
    if found["missing"]:
        names = ", ".join(found["missing"][:4])
        text = f"{LIBRARY} lacks {len(found['missing'])} functions that IREE's driver needs: {names}"
        checks.append(fail("HIP functions", text, f"install {RECOMMENDED}"))
    checks.append(_devices_check(found, gpus))
    return [*checks, *environment_checks(gpus, environment)]


def _library_fix(root: Path) -> str:
    versioned = [
        p for d in ("opt/rocm/lib", "usr/lib/x86_64-linux-gnu", "usr/lib64") for p in (root / d).glob(f"{LIBRARY}.*")
    ]
    if versioned:
        there = f"/{versioned[0].relative_to(root)}"
        return f"{there} is there, but IREE looks for {LIBRARY} alone: install ROCm's development package, or link it"
    return f"install {RECOMMENDED}, and put its lib folder on LD_LIBRARY_PATH (or run ldconfig)"


def _devices_check(found: Mapping[str, object], gpus: Sequence[AmdGpu]) -> Check:
    devices = found["devices"]
    if not isinstance(devices, list) or not devices:
        code = f" (error {found['code']})" if "code" in found else ""
        chips = ", ".join(g.arch or g.pci_id for g in gpus) or "none"
        fix = f"check /dev/kfd above; a ROCm that does not know the chip sees none either: install {RECOMMENDED}"
        return fail("HIP devices", f"HIP sees no device{code}, the kernel has: {chips}", fix)
    text = "; ".join(f"{d['name']}: {size(d['free'])} free of {size(d['total'])}" for d in devices)
    return ok("HIP devices", f"{text}, as HIP says (budgets do not use these numbers: see {DOCS})")


def rocm_check(root: Path, host: Host, gpus: Sequence[AmdGpu], hip_version: int | None) -> Check:
    """ROCm's version against the chip and the kernel."""
    text, _ = read_text(root / "opt/rocm/.info/version")
    found = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", text or "")
    if found:
        version = (int(found[1]), int(found[2]), int(found[3]))
    elif hip_version:
        version = (hip_version // 10_000_000, hip_version // 100_000 % 100, 0)
    else:
        return warn("ROCm", "its version is not known", f"gfx1151 needs {RECOMMENDED}")
    name = "ROCm"
    shown = f"ROCm {'.'.join(map(str, version))}"
    if not any(gpu.arch == "gfx1151" for gpu in gpus):
        return ok(name, shown)
    if version < KNOWS_GFX1151:
        return fail(name, f"{shown} does not know gfx1151", f"install {RECOMMENDED}")
    fixed = has_gfx1151_fixes(host.kernel)
    if version < (7, 2, 0) or version[:2] in ((7, 9), (7, 10)):
        return warn(
            name,
            f"{shown} is not supported on gfx1151 by AMD{' with this kernel' if fixed else ''}",
            f"install {RECOMMENDED}",
        )
    if not fixed:
        status = fail if version == (7, 2, 0) else warn
        return status(name, f"{shown} wants a newer kernel on gfx1151", "see the line on the kernel")
    return ok(name, f"{shown}, supported on gfx1151 with this kernel")


def environment_checks(gpus: Sequence[AmdGpu], environment: Mapping[str, str]) -> list[Check]:
    """Variables that change which GPU HIP takes, and as what."""
    checks = []
    if override := environment.get("HSA_OVERRIDE_GFX_VERSION"):
        text = f"HSA_OVERRIDE_GFX_VERSION={override} makes HIP take the GPU for another one"
        checks.append(
            warn("environment", text, "unset it: gfx1151 needs no override, and programs for gfx1151 fail with it")
        )
    visible, odd = visible_gpus(gpus, environment)
    checks += [warn("environment", text, "give the numbers of devices, from 0") for text in odd]
    first = visible[0].arch if visible else ""
    if first != "gfx1151" and any(g.arch == "gfx1151" for g in gpus):
        number = next(i for i, g in enumerate(gpus) if g.arch == "gfx1151")
        text = f"HIP's first device is {first or 'none'}, and programs run on the first"
        checks.append(warn("device order", text, f"HIP_VISIBLE_DEVICES={number} makes the gfx1151 the first"))
    return checks


def cuda_checks(root: Path, environment: Mapping[str, str], nvml: str = NVML, cuda: str = CUDA) -> list[Check]:
    """NVIDIA's driver, its library, and the GPUs with their memory."""
    driver, _ = read_text(root / "sys/module/nvidia/version")
    if driver is None and not (root / "proc/driver/nvidia/version").exists():
        return [skip("CUDA", "no NVIDIA driver here")]
    name = f"NVIDIA driver {driver}" if driver else "NVIDIA driver"
    try:
        ctypes.CDLL(cuda)
    except OSError as error:
        return [fail("CUDA", f"{name}, but {cuda} cannot be loaded: {error}", "install the driver's compute libraries")]
    gpus, problem = nvidia_gpus(nvml)
    if not gpus:
        return [fail("CUDA", f"{name}: {problem}", "see `nvidia-smi`; a container needs --gpus all")]
    checks = [
        ok(
            f"CUDA {i}",
            f"{g.name}: {size((g.total.value or 0) - (g.used.value or 0))} free of {size(g.total.value or 0)}",
        )
        for i, g in enumerate(gpus)
    ]
    first, hidden = first_cuda_gpu(gpus, environment)
    if first is None:
        checks.append(warn("CUDA devices", hidden, "unset it, or give the numbers of GPUs from 0, or their UUIDs"))
    return checks


def vulkan_checks(root: Path, environment: Mapping[str, str]) -> list[Check]:
    """The loader, and the drivers that it is told of."""
    try:
        ctypes.CDLL("libvulkan.so.1")
    except OSError:
        return [
            warn(
                "Vulkan",
                "no loader (libvulkan.so.1): --target vulkan does not run",
                "install libvulkan1 (vulkan-loader)",
            )
        ]
    chosen = environment.get("VK_DRIVER_FILES") or environment.get("VK_ICD_FILENAMES")
    if chosen:
        drivers = [Path(p).name for p in chosen.split(":")]
    else:
        folders = (root / d for d in ("usr/share/vulkan/icd.d", "etc/vulkan/icd.d", "usr/local/share/vulkan/icd.d"))
        drivers = [file.name for folder in folders for file in entries(folder) if file.suffix == ".json"]
    if not drivers:
        return [warn("Vulkan", "a loader, but no driver", "install Mesa's Vulkan drivers (mesa-vulkan-drivers)")]
    return [ok("Vulkan", f"loader and drivers: {', '.join(drivers)}")]
