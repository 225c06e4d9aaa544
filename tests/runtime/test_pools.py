"""Which pool a device allocates from, on trees of machines. All are written from public descriptions (`assumed` in the
file, with their sources) until an owner sends one of `strixhlo doctor --record`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from recorded_machines import RECORDS, tree

from strixhlo.errors import StrixhloError
from strixhlo.runtime.amdgpu import amd_gpus, arch_name, visible_gpus
from strixhlo.runtime.device_pool import device_pool
from strixhlo.runtime.host_memory import cgroup_free, read_host
from strixhlo.runtime.machines import MACHINES, machine_pool
from strixhlo.runtime.pools import Pool, amd_pool
from strixhlo.runtime.sizes import GIB, parse_size, size


def pools(name: str, folder: Path) -> list[Pool]:
    root = tree(name, folder)
    return [amd_pool(gpu, read_host(root)) for gpu in amd_gpus(root)]


# name of the tree -> pool, usable GiB (to 0.1), a word of a warning, or None
EXPECTED = {
    "carve-out-0.5": ("GTT", 62.4, None),
    "carve-out-16": ("GTT", 54.7, None),
    "carve-out-64": ("VRAM", 63.6, None),
    "carve-out-96": ("VRAM", 95.6, None),
    "carve-out-96-linux-6.14": ("GTT", 15.5, None),
    "carve-out-64-linux-6.8": ("VRAM", 63.6, None),
    "gtt-raised-by-pages-limit": ("GTT", 96.0, None),
    "gtt-raised-above-ram": ("GTT", 57.0, "does not leave the system"),
    "gttsize-below-vram": ("VRAM", 95.6, None),
    "gttsize-above-vram": ("GTT", 15.2, None),
    "gttsize-without-pages-limit": ("GTT", 62.4, None),
    "page-pool-kept": ("GTT", 110.0, None),
    "ram-in-use": ("GTT", 38.1, None),
    "used-above-total": ("GTT", 0.0, "contradict"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_pool_of_a_machine(name: str, tmp_path: Path) -> None:
    pool_name, usable, warning = EXPECTED[name]
    (pool,) = pools(name, tmp_path)
    assert pool.name == pool_name
    assert pool.usable is not None and pool.usable / GIB == pytest.approx(usable, abs=0.1)
    assert pool.reasons and all(pool.reasons)
    assert (warning is None and not pool.warnings) or any(warning in w for w in pool.warnings)


@pytest.mark.parametrize(
    ("name", "pool_name", "usable"),
    [
        ("carve-out-96", "VRAM", 95.6),
        ("carve-out-96-linux-6.14", "GTT", 15.5),
        ("carve-out-16", "GTT", 54.7),
        ("gttsize-without-pages-limit", "GTT", 62.4),
        ("gttsize-below-vram", "VRAM", 95.6),
        ("gtt-raised-above-ram", "GTT", 57.0),
    ],
)
def test_without_kfd_the_kernels_version_decides(name: str, pool_name: str, usable: float, tmp_path: Path) -> None:
    root = tree(name, tmp_path)
    shutil.rmtree(root / "sys/class/kfd")
    (gpu,) = amd_gpus(root)
    pool = amd_pool(gpu, read_host(root))
    assert gpu.arch == "gfx1151" and pool.name == pool_name
    assert pool.usable is not None and pool.usable / GIB == pytest.approx(usable, abs=0.1)


@pytest.mark.parametrize("name", ["missing-files", "zero", "absurd", "card-unknown"])
def test_without_numbers_the_amount_is_unknown_and_says_why(name: str, tmp_path: Path) -> None:
    (pool,) = pools(name, tmp_path)
    assert pool.usable is None and pool.limit is None
    assert pool.warnings and any(word in pool.warnings[0] for word in ("missing", "zero", "absurd", "no number"))


def test_every_tree_is_expected_and_marked_as_assumed() -> None:
    others = {"missing-files", "zero", "absurd", "card-unknown", "two-gpus"}
    assert {p.stem for p in RECORDS.glob("*.json")} == set(EXPECTED) | others
    for path in RECORDS.glob("*.json"):
        record = json.loads(path.read_text())
        assert record["assumed"] is True and record["sources"], path.name


def test_two_gpus(tmp_path: Path) -> None:
    card, halo = pools("two-gpus", tmp_path)
    assert (card.name, halo.name) == ("VRAM", "GTT")
    assert card.usable is not None and card.usable / GIB == pytest.approx(30.6, abs=0.1)
    assert halo.usable is not None and halo.usable / GIB == pytest.approx(110.0, abs=0.1)
    first = {"": card, "1": halo, "1,0": halo, "0,1": card}
    for text, pool in first.items():
        environment = {"HIP_VISIBLE_DEVICES": text} if text else {}
        assert device_pool("rocm", tmp_path, environment).device == pool.device
    assert (
        device_pool("rocm", tmp_path, {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}).device == halo.device
    )


def test_visible_devices_that_are_none(tmp_path: Path) -> None:
    gpus = amd_gpus(tree("two-gpus", tmp_path))
    assert visible_gpus(gpus, {"HIP_VISIBLE_DEVICES": "7"}) == ([], ["HIP_VISIBLE_DEVICES=7: '7' is no device here"])
    assert device_pool("rocm", tmp_path, {"HIP_VISIBLE_DEVICES": "-1"}).usable is None
    left, odd = visible_gpus(gpus, {"ROCR_VISIBLE_DEVICES": "GPU-0123456789abcdef"})
    assert left == gpus and "UUID" in odd[0]


def test_no_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree("carve-out-96", tmp_path)
    plain = Path.read_text

    def refuse(path: Path, *arguments: object, **options: object) -> str:
        if path.name in ("mem_info_vram_total", "meminfo", "properties"):
            raise PermissionError(13, "Permission denied")
        return plain(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", refuse)
    (gpu,) = amd_gpus(root)
    assert gpu.vram_total.problem == "no permission" and gpu.arch == "gfx1151"  # by its PCI id
    pool = amd_pool(gpu, read_host(root))
    assert pool.usable is None and "no permission" in pool.warnings[0]


def test_no_gpu_and_no_files_at_all(tmp_path: Path) -> None:
    assert amd_gpus(tmp_path) == []
    pool = device_pool("rocm", tmp_path, {})
    assert pool.usable is None and pool.warnings == ("no AMD GPU found in sysfs",)
    assert device_pool("cpu", tmp_path, {}).usable is None
    assert device_pool("cuda", tmp_path, {}, nvml="libnothing.so").usable is None


def test_arch_names() -> None:
    assert [arch_name(v) for v in (110501, 120001, 90010, 90012, 100302, 0, -1)] == [
        "gfx1151", "gfx1201", "gfx90a", "gfx90c", "gfx1032", "", "",
    ]  # fmt: skip


def cgroup(root: Path, lines: str, files: dict[str, str]) -> int | None:
    for name, text in {"proc/self/cgroup": lines, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return cgroup_free(root)


def test_cgroup_2_takes_the_tightest_and_counts_cache_as_free(tmp_path: Path) -> None:
    free = cgroup(
        tmp_path,
        "0::/a/b\n",
        {
            "sys/fs/cgroup/a/b/memory.max": "max",
            "sys/fs/cgroup/a/memory.max": str(8 * GIB),
            "sys/fs/cgroup/a/memory.current": str(5 * GIB),
            "sys/fs/cgroup/a/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
        },
    )
    assert free == 5 * GIB


def test_cgroup_1(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory/x/memory.limit_in_bytes": str(4 * GIB),
        "sys/fs/cgroup/memory/x/memory.usage_in_bytes": str(6 * GIB),
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    }
    assert cgroup(tmp_path, "4:cpu,memory:/x\n0::/\n", files) == 0
    assert device_pool("cpu", tmp_path, {}).usable == 0


def test_named_machines() -> None:
    usable = {name: machine_pool(name).usable for name in MACHINES}
    assert usable["strix-halo-128-gtt110"] == 110 * GIB
    assert usable["strix-halo-128-vram96"] == 96 * GIB - (256 << 20)
    assert all(usable.values())
    assert machine_pool("strix-halo-128-vram64").name == "VRAM" and machine_pool("strix-halo-64-gtt54").name == "GTT"


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("24G", 24 * GIB), ("1.5 GiB", 3 * GIB // 2), ("512m", 512 << 20), ("4096", 4096), ("7kb", 7168)],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "G", "-1G", "0", "ten", "1e9", "5X", "1G2"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(StrixhloError, match="is not understood"):
        parse_size(text)


def test_sizes_for_people() -> None:
    assert [size(n) for n in (0, 512, 2048, 3 << 20, 3 * GIB // 2)] == ["0 B", "512 B", "2.0 KiB", "3.0 MiB", "1.5 GiB"]
