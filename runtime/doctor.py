"""What `strixhlo doctor` finds out: the machine line by line, then a small test of each device that is there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import StrixhloError
from .amdgpu import AmdGpu, amd_gpus
from .checks import Check, fail, ok, skip, warn
from .child import ask
from .doctor_libraries import cuda_checks, hip_checks, vulkan_checks
from .doctor_memory import memory_checks
from .doctor_system import Access, system_checks
from .host_memory import read_host
from .sysfs import ROOT, entries, read_text

# Writes matmul.vmfb and kernel.vmfb for a kind of device to a folder. runtime cannot compile: the command hands it in.
Build = Callable[[str, Path], None]
STRIX_HALO_COPY = 212e9  # bytes a second, read and written, measured on gfx1151; 256e9 is the memory's own limit
TOLERANCE = 1e-4  # relative: float32 sums in another order
KINDS = ("rocm", "cuda", "vulkan", "cpu")


def machine_checks(
    root: Path = ROOT, environment: Mapping[str, str] = os.environ, access: Access = os.access
) -> list[Check]:
    """Everything that can be said without running anything on a device."""
    host, gpus = read_host(root), amd_gpus(root)
    return [
        *gpu_checks(root, gpus),
        *system_checks(root, host, gpus, access),
        *memory_checks(root, host, gpus),
    ] + (
        [*hip_checks(root, host, gpus, environment), *cuda_checks(root, environment), *vulkan_checks(root, environment)]
        if root == ROOT
        else [skip("libraries", "those of a recorded machine are not here")]
    )


def gpu_checks(root: Path, gpus: list[AmdGpu]) -> list[Check]:
    """Each AMD GPU on the PCI bus: its driver, and its arch."""
    checks = [
        ok("GPU", f"{gpu.name} ({gpu.pci_id}){', in the processor' if gpu.integrated else ''}")
        if gpu.arch
        else warn(
            "GPU", f"{gpu.name}: the kernel does not say which chip it is", "is KFD loaded? see `dmesg | grep -i kfd`"
        )
        for gpu in gpus
    ]
    driven = {gpu.address for gpu in gpus}
    for device in entries(root / "sys/bus/pci/devices"):
        display = (read_text(device / "class")[0] or "").startswith("0x03")
        if display and read_text(device / "vendor")[0] == "0x1002" and device.name not in driven:
            driver = (device / "driver").resolve().name if (device / "driver").exists() else "none"
            text = f"{read_text(device / 'device')[0]} at {device.name} is not driven by amdgpu (driver: {driver})"
            checks.append(fail("GPU", text, "load the driver (modprobe amdgpu), and see `dmesg | grep amdgpu`"))
    return checks or [skip("GPU", "no AMD GPU here; the CPU target works without")]


def self_tests(build: Build | None, environment: Mapping[str, str] = os.environ) -> list[Check]:
    """Run copies, a matmul, and a kernel on each device that IREE finds, in processes of their own.

    build: None where there is no compiler; then only copies are tested.
    """
    chips = {gpu.arch for gpu in amd_gpus()}
    checks: list[Check] = []
    for kind in KINDS:
        devices, why = ask("devices", kind, environment=environment)
        if not devices:
            checks.append(skip(f"self-test {kind}", f"not run: no device ({why or 'IREE finds none'})"))
            continue
        with tempfile.TemporaryDirectory(prefix="strixhlo-doctor-") as name:
            folder = Path(name)
            checks += _build_checks(build, kind, folder)
            found, crashed = ask("selftest", kind, name, environment=environment, timeout=300)
        checks += self_test_checks(kind, found, crashed, strix_halo=kind == "rocm" and "gfx1151" in chips)
        if kind in ("rocm", "cuda") and len(devices) > 1:
            checks += peer_checks(*ask("peer_copy", "hip" if kind == "rocm" else kind, environment=environment))
    return checks


def _build_checks(build: Build | None, kind: str, folder: Path) -> list[Check]:
    name = f"programs for {kind}"
    if build is None:
        return [skip(name, "no compiler is installed here: the matmul and the kernel are not tested")]
    try:
        build(kind, folder)
    except StrixhloError as error:
        return [
            fail(name, str(error), "see what the compiler says; `pip install iree-base-compiler==3.13.0` if it is gone")
        ]
    return []


def self_test_checks(kind: str, found: Mapping[str, Any] | None, crashed: str, strix_halo: bool = False) -> list[Check]:
    """The result of `selftest` as lines."""
    if found is None:
        return [fail(f"self-test {kind}", f"ended early: {crashed}", "update the driver; report this with --record")]
    checks = []
    if broken := [c["bytes"] for c in found["copies"] if not c["intact"]]:
        text = f"copies of {', '.join(map(str, broken))} bytes came out corrupted"
        checks.append(fail(f"copies {kind}", text, "do not trust this device; update driver and firmware"))
    elif found["copies"]:
        checks.append(ok(f"copies {kind}", f"{len(found['copies'])} sizes intact: host to device, within it, and back"))
    if "bandwidth" in found:
        checks.append(_bandwidth_check(kind, found["bandwidth"], strix_halo))
    for name, error in found["programs"].items():
        what = "IREE matmul" if name == "matmul" else "custom kernel"
        if error <= TOLERANCE:
            checks.append(ok(f"{what} {kind}", f"right (largest error {error:.1e} of the largest value)"))
        else:
            checks.append(fail(f"{what} {kind}", f"wrong: error {error:.1e}", "report this with --record"))
    if "error" in found:
        checks.append(fail(f"self-test {kind}", found["error"], "update the driver; report this with --record"))
    return checks


def _bandwidth_check(kind: str, measured: float, strix_halo: bool) -> Check:
    text = f"{measured / 1e9:.0f} GB/s read and written"
    if not strix_halo:
        return ok(f"copy speed {kind}", text)
    text += f", {measured / STRIX_HALO_COPY:.0%} of the {STRIX_HALO_COPY / 1e9:.0f} that this chip has been measured at"
    if measured >= 0.8 * STRIX_HALO_COPY:
        return ok(f"copy speed {kind}", text)
    fix = "check the power profile (performance), the memory's speed in the BIOS (8000 MT/s), and what else runs"
    return warn(f"copy speed {kind}", text, fix)


def peer_checks(found: list[dict[str, Any]] | None, crashed: str) -> list[Check]:
    """Copies between GPUs as lines, one a direction."""
    fix = "use one GPU at a time (HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES); try iommu=pt, and update the driver"
    if found is None:
        return [fail("copies between GPUs", f"ended early: {crashed}", fix)]
    checks = []
    for copy in found:
        name = f"copy GPU {copy['source']} to {copy['target']}"
        says = "which the driver calls possible" if copy["possible"] else "staged by the driver"
        if copy["error"]:
            checks.append(fail(name, f"{says}: {copy['error']}", fix))
        elif not copy["intact"]:
            checks.append(fail(name, f"{says}, reports success and comes out corrupted", fix))
        else:
            checks.append(ok(name, f"intact ({says})"))
    return checks
