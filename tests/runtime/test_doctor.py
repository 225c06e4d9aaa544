"""doctor: its lines on recorded machines, its self-test on the CPU and on a simulated gfx1151, its record without
personal data."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_machines import RECORDS, line, tree

from strixhlo.compile.iree_compile import iree_compile
from strixhlo.compile.targets import parse_target
from strixhlo.errors import StrixhloError
from strixhlo.runtime import doctor, selftest
from strixhlo.runtime.amdgpu import amd_gpus
from strixhlo.runtime.checks import Check
from strixhlo.runtime.child import ask
from strixhlo.runtime.doctor import machine_checks, self_test_checks
from strixhlo.runtime.doctor_memory import visible_vram_checks
from strixhlo.runtime.doctor_system import device_file_checks, has_gfx1151_fixes
from strixhlo.runtime.machine_record import FORMAT, read_machine, record_machine
from strixhlo.selftest_programs import MATMUL, build_programs


@pytest.mark.parametrize("name", sorted(p.stem for p in (RECORDS).glob("*.json")))
def test_every_machine_gets_lines_and_every_complaint_a_fix(name: str, tmp_path: Path) -> None:
    checks = machine_checks(tree(name, tmp_path / "root"), {})
    assert line(checks, "kernel") and line(checks, "RAM")
    for check in checks:
        assert check.status in ("ok", "warn", "fail", "skip") and check.text
        assert bool(check.fix) == (check.status in ("warn", "fail")), check


@pytest.mark.parametrize(
    ("name", "check", "status", "words"),
    [
        ("carve-out-0.5", "TTM limit", "warn", "62.5 GiB.*amd-ttm --set 109.*ttm.pages_limit=28573696"),
        ("gtt-raised-by-pages-limit", "TTM limit", "ok", "96.0 GiB"),
        ("gtt-raised-above-ram", "TTM limit", "warn", "93.8 GiB, of 61.0 GiB of RAM.*--set 53"),
        ("carve-out-96", "TTM limit", "ok", "15.5 GiB"),
        ("carve-out-96-linux-6.14", "carve-out", "warn", "96.0 GiB.*lie idle.*BIOS"),
        ("carve-out-96-linux-6.14", "kernel", "warn", "6.14.0-1014-oem lacks.*6.18.4"),
        ("gttsize-without-pages-limit", "amdgpu.gttsize", "warn", "128.0 GiB, deprecated, and not TTM's limit of 62.5"),
        ("page-pool-kept", "TTM page pool", "warn", "60.0 GiB kept.*no leak.*drop_caches"),
        ("carve-out-0.5", "TTM page pool", "skip", "not known"),
        ("carve-out-96", "visible VRAM", "ok", "96.0 GiB of 96.0 GiB"),
        ("missing-files", "visible VRAM", "skip", "missing"),
        ("two-gpus", "IOMMU", "warn", "several GPUs.*iommu=pt"),
        ("carve-out-0.5", "IOMMU", "ok", "translates"),
        ("absurd", "memory of", "warn", "absurd.*--memory-budget"),
        ("missing-files", "memory of", "warn", "missing"),
    ],
)
def test_what_is_said_of_machines(name: str, check: str, status: str, words: str, tmp_path: Path) -> None:
    found = line(machine_checks(tree(name, tmp_path / "root"), {}), check)
    assert found.status == status and re.search(words, f"{found.text} {found.fix}", re.DOTALL), found


def test_page_pool_of_debugfs(root: Path) -> None:
    path = root / "sys/kernel/debug/ttm/page_pool"
    path.parent.mkdir(parents=True)
    path.write_text("\t  ---0--- ---1---\nwc\t:    100   20\n\ntotal\t: 1048576 of 16373514\n")
    assert "4.0 GiB kept" in line(machine_checks(root, {}), "TTM page pool").text


@pytest.mark.parametrize(
    ("visible", "used", "status", "words"),
    [
        (32 << 30, 1 << 30, "ok", r"32\.0 GiB of 32\.0 GiB, 1\.0 GiB in use"),
        (256 << 20, 9 << 20, "warn", r"256\.0 MiB of 32\.0 GiB, 9\.0 MiB in use: no resizable BAR.*Above 4G Decoding"),
        (33 << 30, 0, "warn", "contradict"),
        (16 << 30, 17 << 30, "warn", "contradict"),
        ("nothing", 0, "skip", "'nothing' is no number"),
    ],
)
def test_vram_that_the_cpu_sees(root: Path, visible: object, used: object, status: str, words: str) -> None:
    device = (root / "sys/class/drm/card0/device").resolve()
    device = device if device.is_dir() else next(root.glob("sys/class/drm/card*/device")).resolve()
    sizes = {"vram_total": 32 << 30, "vram_used": 0, "vis_vram_total": visible, "vis_vram_used": used}
    for name, value in sizes.items():
        (device / f"mem_info_{name}").write_text(f"{value}\n")
    (gpu,) = amd_gpus(root)
    (check,) = visible_vram_checks(gpu)
    assert check.status == status and re.search(words, f"{check.text} {check.fix}"), check


def test_numbers_of_any_length_in_a_record(tmp_path: Path) -> None:
    record = json.loads((RECORDS / "carve-out-0.5.json").read_text())
    for digits in (20, 400, 5000):
        nines = "9" * digits
        long = {
            "proc/cmdline": f"amdgpu.gttsize={nines} ttm.pages_limit={nines}",
            "proc/sys/kernel/osrelease": f"{nines}.{nines}.{nines}-{nines}.fc{nines}.x86_64",
            "sys/module/ttm/parameters/pages_limit": nines,
            "opt/rocm/.info/version": f"{nines}.{nines}.{nines}-{nines}",
            "proc/self/cgroup": "0::/\n4:memory:/",
            "sys/fs/cgroup/memory.max": nines,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": nines,
            "sys/kernel/debug/ttm/page_pool": f"total : {nines} of {nines}",
        }
        for name in [n for n in record["files"] if n.startswith(("sys/devices", "sys/class/kfd", "proc/meminfo"))]:
            long[name] = re.sub(r"\d+$", nines, record["files"][name], flags=re.MULTILINE)
        file = tmp_path / "long.json"
        file.write_text(json.dumps({**record, "files": record["files"] | long}))
        (tmp_path / str(digits)).mkdir()
        read_machine(file, tmp_path / str(digits))
        assert all(c.text for c in machine_checks(tmp_path / str(digits), {"HIP_VISIBLE_DEVICES": nines}))


@pytest.mark.parametrize(
    ("release", "fixed"),
    [
        ("6.18.4", True), ("6.18.3-arch1", False), ("7.0.0-28-generic", True), ("6.17.0-19-generic", True),
        ("6.17.0-14-generic", False), ("6.14.0-1018-oem", True), ("6.14.0-1014-oem", False),
        ("6.17.12-300.fc43.x86_64", True), ("6.16.9-200.fc42.x86_64", False), ("", False), ("strange", False),
    ],
)  # fmt: skip
def test_kernels_with_the_fixes(release: str, fixed: bool) -> None:
    assert has_gfx1151_fixes(release) is fixed


def test_device_files(root: Path) -> None:
    gpus = amd_gpus(root)
    assert [c.status for c in device_file_checks(root, gpus, lambda _p, _m: True)] == ["ok", "ok"]
    closed = device_file_checks(root, gpus, lambda _p, _m: False)
    assert [c.status for c in closed] == ["fail", "fail"] and "usermod -aG render,video" in closed[0].fix
    (root / "run").mkdir()
    (root / "run/.containerenv").touch()
    assert "--group-add" in device_file_checks(root, gpus, lambda _p, _m: False)[0].fix
    (root / "dev/kfd").unlink()
    shutil.rmtree(root / "dev/dri")
    gone = device_file_checks(root, gpus, os.access)
    assert [c.status for c in gone] == ["fail", "fail"]
    assert "in a container" in gone[0].text and gone[0].fix.endswith("--device /dev/kfd --device /dev/dri")
    assert device_file_checks(root / "nowhere", [], os.access)[0].status == "skip"


def test_a_gpu_without_its_driver(root: Path) -> None:
    device = root / "sys/bus/pci/devices/0000:03:00.0"
    device.mkdir(parents=True)
    for name, text in {"class": "0x030000", "vendor": "0x1002", "device": "0x7551"}.items():
        (device / name).write_text(text)
    failed = [c for c in machine_checks(root, {}) if c.name == "GPU" and c.status == "fail"]
    assert len(failed) == 1 and "0x7551 at 0000:03:00.0 is not driven by amdgpu" in failed[0].text


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    build_programs("cpu", folder)
    return folder


def test_self_test_on_the_cpu(programs: Path) -> None:
    found, crashed = ask("selftest", "cpu", str(programs))
    assert crashed == "" and set(found["programs"]) == {"matmul", "kernel"}
    checks = self_test_checks("cpu", found, crashed)
    assert [c.name for c in checks] == ["copies cpu", "copy speed cpu", "IREE matmul cpu", "custom kernel cpu"]
    assert {c.status for c in checks} == {"ok"}
    assert found["bandwidth"] > 1e9


def test_self_test_sees_a_wrong_result(tmp_path: Path) -> None:
    doubled = MATMUL.replace("return %y", "%z = stablehlo.add %y, %y : tensor<64x48xf32>\n  return %z")
    iree_compile(f"module {{{doubled}}}", parse_target("cpu").iree_flags, tmp_path / "matmul.vmfb")
    found, crashed = ask("selftest", "cpu", str(tmp_path), "4096")
    wrong = line(self_test_checks("cpu", found, crashed), "IREE matmul")
    assert found["programs"]["matmul"] == pytest.approx(1.0) and wrong.status == "fail" and "wrong" in wrong.text


def test_self_test_on_a_simulated_gfx1151(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies, a matmul and a kernel of a rocm program, through IREE's own HIP driver."""
    monkeypatch.syspath_prepend(str(RECORDS.parent.parent))
    from gfx1151_sim.build import library

    simulated = {**os.environ, "LD_LIBRARY_PATH": str(library().parent)}
    assert ask("devices", "rocm", environment=simulated) == (["simulated gfx1151"], "")
    build_programs("rocm", tmp_path)
    found, crashed = ask("selftest", "rocm", str(tmp_path), str(1 << 20), environment=simulated)
    checks = self_test_checks("rocm", found, crashed)
    assert [c.name for c in checks] == ["copies rocm", "copy speed rocm", "IREE matmul rocm", "custom kernel rocm"]
    assert {c.status for c in checks} == {"ok"}


def test_self_test_results_that_fail() -> None:
    copies = [{"bytes": 4096, "intact": True}, {"bytes": 1048588, "intact": False}]
    corrupted = self_test_checks("rocm", {"copies": copies, "programs": {}}, "")
    assert corrupted[0].status == "fail" and "1048588 bytes came out corrupted" in corrupted[0].text
    (early,) = self_test_checks("rocm", None, "ended by SIGSEGV")
    assert early.status == "fail" and "SIGSEGV" in early.text
    slow = self_test_checks("rocm", {"copies": [], "programs": {}, "bandwidth": 90e9}, "", strix_halo=True)
    assert slow[0].status == "warn" and "42% of the 212" in slow[0].text
    assert (
        self_test_checks("rocm", {"copies": [], "programs": {}, "bandwidth": 205e9}, "", strix_halo=True)[0].status
        == "ok"
    )


def test_self_test_of_a_device_that_is_not_there(tmp_path: Path) -> None:
    found = selftest.run("rocm", tmp_path)
    assert found["copies"] == [] and "no device for target rocm" in found["error"]


def test_without_a_compiler_only_copies_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "KINDS", ("cpu",))
    checks = doctor.self_tests(None)
    assert [c.status for c in checks] == ["skip", "ok", "ok"] and "no compiler" in checks[0].text


def test_record_and_replay(root: Path, tmp_path: Path) -> None:
    checks = machine_checks(root, {})
    file = tmp_path / "record.json"
    file.write_text(json.dumps(record_machine(checks, root)))
    again = tmp_path / "again"
    record = read_machine(file, again)
    assert record["assumed"] is False and [c["name"] for c in record["checks"]] == [c.name for c in checks]
    assert machine_checks(again, {}) == checks


def test_record_has_no_personal_data(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "proc/cmdline").write_text(
        "BOOT_IMAGE=/vmlinuz root=UUID=d55f0c3f-88f5-4c65-a93a-285c1a30361c ttm.pages_limit=28835840 user=alice"
        " ip=192.168.1.20 iommu=pt"
    )
    node = root / "sys/class/kfd/kfd/topology/nodes/1/properties"
    node.write_text(node.read_text() + "unique_id 1311768467463790320\n")
    (root / "proc/self").mkdir()
    (root / "proc/self/cgroup").write_text("0::/user.slice/user-1000.slice/alice.service\n")
    (root / "proc/sys/kernel/osrelease").write_text("6.18.4-alice")
    monkeypatch.setattr(socket, "gethostname", lambda: "alices-desktop")
    monkeypatch.setattr(socket, "getfqdn", lambda: "alices-desktop.example.org")
    monkeypatch.setenv("USER", "alice")
    checks = [
        Check(
            "library",
            "fail",
            "/home/alice/rocm/lib of alices-desktop cannot be loaded",
            "ask Alice, at 9c:6b:00:12:34:56",
        ),
    ]
    text = json.dumps(record_machine(checks, root))
    for secret in (
        "alice",
        "desktop",
        "example.org",
        "UUID",
        "d55f0c3f",
        "1311768467463790320",
        "9c:6b",
        "192.168",
        "vmlinuz",
    ):
        assert secret.lower() not in text.lower(), secret
    record = json.loads(text)
    assert record["files"]["proc/cmdline"] == "ttm.pages_limit=28835840 iommu=pt"
    assert record["checks"][0]["text"] == "/home/<removed>/rocm/lib of <removed> cannot be loaded"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        json.dumps({"format": "other"}),
        json.dumps({"format": FORMAT, "files": {"../x": "1"}}),
        json.dumps({"format": FORMAT, "files": {"/etc/x": "1"}}),
        json.dumps({"format": FORMAT, "files": {"a": 5}}),
        json.dumps({"format": FORMAT, "files": {}, "links": {"a/b": "../../../x"}}),
        json.dumps({"format": FORMAT, "files": {}, "links": {"a/b": "/etc"}}),
        json.dumps({"format": FORMAT, "files": {"l/x": "1"}, "links": {"l": "m", "m": "../out"}}),
    ],
)
def test_records_that_are_none(content: str, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(content)
    folder = tmp_path / "inside" / "root"
    folder.mkdir(parents=True)
    with pytest.raises(StrixhloError, match=r"record\.json"):
        read_machine(file, folder)
    assert not (tmp_path / "x").exists() and not (tmp_path / "inside" / "x").exists()


def strixhlo(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "strixhlo.cli", "doctor", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_command(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    checks = json.loads(strixhlo("--no-self-test", "--json", "--record", str(record)).stdout)
    assert {"GPU", "kernel", "RAM", "HIP", "CUDA", "Vulkan"} <= {c["name"].split(" ")[0] for c in checks}
    text = strixhlo("--replay", str(RECORDS / "page-pool-kept.json")).stdout
    assert "60.0 GiB kept" in text and "drop_caches" in text
    assert json.loads(strixhlo("--replay", str(record), "--json").stdout)[0] == checks[0]
    assert "cannot be read" in strixhlo("--replay", str(tmp_path / "nowhere"), code=2).stderr
    failing = json.loads(record.read_text())
    tree("carve-out-0.5", tmp_path / "halo")
    failing["files"] = {
        k: v for k, v in json.loads((RECORDS / "carve-out-0.5.json").read_text())["files"].items() if k != "dev/kfd"
    }
    failing["links"] = json.loads((RECORDS / "carve-out-0.5.json").read_text())["links"]
    record.write_text(json.dumps(failing))
    assert "/dev/kfd" in strixhlo("--replay", str(record), code=1).stdout


@pytest.mark.parametrize(
    ("links", "files"),
    [
        ({"d/e/f/up": "../../..", "l": "d/e/f/up/../../out"}, {"l": "by a stranger"}),  # a link through another link
        ({"d/e/f/up": "../../..", "l": "d/e/f/up/../../out"}, {}),
        ({"d": "e"}, {"d": "both a link and a file"}),
        ({"l": "l"}, {"l/x": "a loop"}),
        ({}, {"a": "1", "a/b": "a file in a file"}),
        ({}, {"a\0b": "1"}),
        ({}, {"\ud800": "1"}),
        ({}, [1, 2]),
        ([], {}),
        ({"a": ""}, {}),
    ],
)
def test_a_record_cannot_write_elsewhere(tmp_path: Path, links: object, files: object) -> None:
    folder, out = tmp_path / "a" / "b" / "root", tmp_path / "out"
    folder.mkdir(parents=True)
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"format": FORMAT, "links": links, "files": files}))
    with pytest.raises(StrixhloError, match=r"record\.json"):
        read_machine(file, folder)
    assert not out.exists() and not (folder.parent.parent / "out").exists() and not (folder.parent / "out").exists()


def test_render_nodes_of_other_makers_are_no_failure(tmp_path: Path) -> None:
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/dri/renderD128").touch()
    (found,) = device_file_checks(tmp_path, (), lambda _path, _mode: True)
    assert found.status == "skip"
