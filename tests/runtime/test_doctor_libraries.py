"""doctor and the libraries that programs for GPUs load: HIP, NVML, copies between GPUs, on fakes that misbehave."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import iree.runtime
import pytest
from recorded_machines import RECORDS, line, tree

from strixhlo.runtime.amdgpu import amd_gpus
from strixhlo.runtime.checks import Check
from strixhlo.runtime.child import ask
from strixhlo.runtime.device_pool import device_pool
from strixhlo.runtime.doctor import peer_checks
from strixhlo.runtime.doctor_libraries import cuda_checks, environment_checks, hip_checks, rocm_check
from strixhlo.runtime.hip_probe import SYMBOLS
from strixhlo.runtime.host_memory import read_host
from strixhlo.runtime.nvidia import nvidia_gpus
from strixhlo.runtime.peer_copy import PeerCopy, peer_copies
from strixhlo.runtime.sizes import GIB


@pytest.mark.parametrize(
    ("version", "kernel", "status", "words"),
    [
        ("6.3.2-67", "6.18.4", "fail", "does not know gfx1151"),
        ("6.4.1-83", "6.18.4", "warn", "not supported"),
        ("7.1.1-38", "6.18.4", "warn", "not supported on gfx1151 by AMD with this kernel"),
        ("7.2.0-43", "6.17.0-14-generic", "fail", "wants a newer kernel"),
        ("7.2.1-81", "6.17.0-14-generic", "warn", "wants a newer kernel"),
        ("7.2.1-81", "6.18.4", "ok", "supported"),
        ("7.9.0", "6.18.4", "warn", "not supported"),
        ("7.12.0", "7.0.0", "ok", "supported"),
        ("gibberish", "6.18.4", "warn", "not known"),
    ],
)
def test_rocm_versions(root: Path, version: str, kernel: str, status: str, words: str) -> None:
    for name, text in {"opt/rocm/.info/version": version, "proc/sys/kernel/osrelease": kernel}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    check = rocm_check(root, read_host(root), amd_gpus(root), None)
    assert check.status == status and words in check.text


def test_environment_that_misleads_hip(tmp_path: Path) -> None:
    gpus = amd_gpus(tree("two-gpus", tmp_path / "root"))
    (order,) = environment_checks(gpus, {})
    assert "first device is gfx1201" in order.text and "HIP_VISIBLE_DEVICES=1" in order.fix
    assert environment_checks(gpus, {"HIP_VISIBLE_DEVICES": "1"}) == []
    override = environment_checks(gpus[1:], {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"})
    assert len(override) == 1 and "unset it" in override[0].fix


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libamdhip64.so (also as a version that lacks functions) and libnvidia-ml.so.1."""
    folder = tmp_path_factory.mktemp("fake")
    source = (RECORDS.parent / "fake_gpu.c").read_text()
    missing = [name for name in SYMBOLS if not re.search(rf"\b{name}\(", source)]
    for name, stubs in (("whole", missing), ("partial", missing[5:])):
        (folder / name).mkdir()
        (folder / name / "stubs.h").write_text("\n".join(f"STUB({s})" for s in stubs))
        library = folder / name / "libamdhip64.so"
        compiler = ["cc"] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]
        flags = ["-shared", "-fPIC", f"-I{folder / name}", str(RECORDS.parent / "fake_gpu.c"), "-o", str(library)]
        subprocess.run([*compiler, *flags], check=True, capture_output=True)
    (folder / "libnvidia-ml.so.1").symlink_to(folder / "whole" / "libamdhip64.so")
    return folder


def environment(library: Path, **variables: str) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(library), **variables}


def hip(root: Path, environment: Mapping[str, str]) -> list[Check]:
    return hip_checks(root, read_host(root), amd_gpus(root), environment)


def test_hip_that_works(root: Path, fake: Path) -> None:
    checks = hip(root, environment(fake / "whole"))
    assert {c.status for c in checks} == {"ok"}
    assert line(checks, "ROCm").text == "ROCm 7.2.0, supported on gfx1151 with this kernel"
    assert "120.0 GiB free of 62.5 GiB" in line(checks, "HIP devices").text  # as some say it: not used in budgets


def test_hip_that_does_not(root: Path, fake: Path, tmp_path: Path) -> None:
    (gone,) = hip(root, environment(tmp_path))
    assert gone.status == "fail" and "cannot be loaded" in gone.text and "ROCm 7.2.1" in gone.fix
    versioned = root / "opt/rocm/lib/libamdhip64.so.7"
    versioned.parent.mkdir(parents=True)
    versioned.touch()
    assert "/opt/rocm/lib/libamdhip64.so.7 is there, but IREE looks for" in hip(root, environment(tmp_path))[0].fix
    lacking = line(hip(root, environment(fake / "partial")), "HIP functions")
    assert lacking.status == "fail" and "lacks 5 functions" in lacking.text
    none = line(hip(root, environment(fake / "whole", FAKE_DEVICES="0")), "HIP devices")
    assert none.status == "fail" and "error 100" in none.text and "gfx1151" in none.text
    (crash,) = hip(root, environment(fake / "whole", FAKE_CRASH="1"))
    assert crash.status == "fail" and "SIGABRT" in crash.text


def test_the_list_of_hip_functions_is_ires_own() -> None:
    """Those, and no others, are named in IREE's runtime: an upgrade that needs more fails here."""
    (library,) = Path(iree.runtime.__file__).parents[1].glob("_runtime_libs/_runtime.*.so")
    named = set(re.findall(rb"\0(hip[A-Z][A-Za-z0-9]+)(?=\0)", library.read_bytes()))
    functions = {n.decode() for n in named if not re.match(rb"hip(Error|Success)", n)}
    assert functions == set(SYMBOLS)


def test_copies_between_gpus(fake: Path) -> None:
    library = str(fake / "whole" / "libamdhip64.so")
    found, why = ask("peer_copy", "hip", library, environment=environment(fake, FAKE_DEVICES="2"))
    assert why == "" and [c.status for c in peer_checks(found, why)] == ["ok", "ok"]
    found, why = ask("peer_copy", "hip", library, environment=environment(fake, FAKE_DEVICES="2", FAKE_CORRUPT="1"))
    corrupted = peer_checks(found, why)
    assert [c.status for c in corrupted] == ["fail", "fail"]
    assert "which the driver calls possible, reports success and comes out corrupted" in corrupted[0].text
    found, why = ask("peer_copy", "hip", library, environment=environment(fake, FAKE_DEVICES="3", FAKE_REFUSE="1"))
    assert len(found) == 6 and all("hipMemcpyPeer: error 1" in c.text for c in peer_checks(found, why))
    found, why = ask("peer_copy", "hip", library, environment=environment(fake, FAKE_CRASH="1"))
    assert peer_checks(found, why)[0].status == "fail" and "SIGABRT" in why


def test_one_gpu_has_no_peers() -> None:
    class One:
        def count(self) -> int:
            return 1

    assert peer_copies(One()) == []  # type: ignore[arg-type]
    assert peer_checks([vars(PeerCopy(0, 1, False, True))], "")[0].text == "intact (staged by the driver)"


def test_nvml(fake: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = str(fake / "libnvidia-ml.so.1")
    gpus, problem = nvidia_gpus(library)
    assert problem == "" and [g.name for g in gpus] == ["NVIDIA A", "NVIDIA B"]
    pool = device_pool("cuda", tmp_path, {}, library)
    assert pool.limit == 80 * GIB and pool.used == 30 * GIB and pool.usable == 50 * GIB - (256 << 20)
    assert device_pool("cuda", tmp_path, {"CUDA_VISIBLE_DEVICES": "1"}, library).limit == 24 * GIB
    for text, limit in (("1,0", 24), ("GPU-aaaa2222-0000", 24), (" GPU-aaaa1", 80)):
        assert device_pool("cuda", tmp_path, {"CUDA_VISIBLE_DEVICES": text}, library).limit == limit * GIB
    for text, why in (
        ("", "lets CUDA see none of 2 GPUs"),
        ("-1", "lets CUDA see none of 2 GPUs"),
        ("5", "lets CUDA see none of 2 GPUs"),
        ("9" * 5000, "lets CUDA see none of 2 GPUs"),
        ("GPU-aaaa", "2 GPUs have a UUID like that"),
        ("GPU-bbbb", "0 GPUs have a UUID like that"),
        ("MIG-aaaa1111", "names a part of a GPU (MIG)"),
    ):
        pool = device_pool("cuda", tmp_path, {"CUDA_VISIBLE_DEVICES": text}, library)
        assert pool.usable is None and why in pool.warnings[0]
        (tmp_path / "sys/module/nvidia").mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/module/nvidia/version").write_text("580.65.06")
        checks = cuda_checks(tmp_path, {"CUDA_VISIBLE_DEVICES": text}, library, library)
        assert [c.status for c in checks] == ["ok", "ok", "warn"] and why in checks[-1].text
    assert [c.status for c in cuda_checks(tmp_path, {}, library, library)] == ["ok", "ok"]
    assert device_pool("vulkan", tmp_path, {}, library).device == "NVIDIA A"
    monkeypatch.setenv("FAKE_CRASH", "1")
    assert nvidia_gpus(library) == ([], "NVML does not start (error 9)")
    assert nvidia_gpus("libnothing.so.1") == ([], "libnothing.so.1 is not there")
