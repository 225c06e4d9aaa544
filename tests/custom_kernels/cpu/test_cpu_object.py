"""The kernel object that a program links, and how it is found, built and cached."""

from __future__ import annotations

import re
import stat
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from rope_and_append_cases import CASES, Call

from strixhlo.custom_kernels import toolchain
from strixhlo.custom_kernels.cpu.launches import (
    argmax_launches,
    attention_launches,
    dense_matmul_launches,
    quantized_matmul_launches,
)
from strixhlo.custom_kernels.cpu.rules import rope_and_append
from strixhlo.custom_kernels.cpu.weight_kernels import weight_kernel
from strixhlo.custom_kernels.ops.formats import FORMATS
from strixhlo.errors import StrixhloError


def readelf(path: Path, *flags: str) -> str:
    return subprocess.run(["readelf", "-W", *flags, str(path)], check=True, capture_output=True, text=True).stdout


def all_symbols() -> set[str]:
    types = {"scale": "f16", "bias": "f16"}
    launches = [
        launch
        for name in FORMATS
        for fast in (False, True)
        for launch in quantized_matmul_launches(name, 1, 16, 256, fast, types)
    ]
    for dtype in ("f32", "f16", "bf16"):
        launches += dense_matmul_launches(dtype, 1, 16, 32)
    for dtype in ("f32", "f16", "bf16", "fp8"):
        call = Call(CASES["decode"], dtype)
        lowering = rope_and_append(call.attributes, call.types)
        assert lowering
        launches += lowering.launches
        launches += attention_launches(
            dtype,
            layer=0,
            tokens=1,
            sequences=1,
            q_heads=1,
            kv_heads=1,
            head_dim=64,
            pool_rows=16,
            blocks_per_sequence=1,
            block_size=16,
            scale=1.0,
        )
    launches += argmax_launches(1, 16)
    few = {f"{name}_{how}" for name in ("gate_up", "down") for how in ("few", "chosen")}
    moe = {f"strixhlo_moe_{name}" for name in ("route", "gather", "activate", "combine", *few)}
    kernels = {weight_kernel(name, types) for name in FORMATS}
    moe |= {f"strixhlo_moe_rows_{name}" for name in ({k.name for k in kernels} | {"f32", "f16", "bf16"})}
    moe |= {f"strixhlo_moe_rows_{k.name}_int8" for k in kernels if k.integer}
    forms = ("matmul_1", "matmul_2", "matmul_3", "gated_few", "gated_many")
    fused = {f"strixhlo_fused_{form}" for form in forms}
    fused |= {f"strixhlo_{name}" for name in ("norm_rows", "layer_norm_rows", "add_normed", "add_gated", "embedding")}
    return moe | fused | {launch.symbol for launch in launches}


def test_object_needs_nothing_and_holds_every_kernel() -> None:
    """No libc, no writable data, no thread-local storage, and only relocations that need no loader."""
    built = toolchain.build_cpu_object("x86-64-v3")
    symbols = [line.split() for line in readelf(built, "-s").splitlines() if re.match(r"\s+\d+: [0-9a-f]+", line)]
    undefined = {fields[7] for fields in symbols if fields[6] == "UND" and len(fields) > 7}
    assert undefined == set()
    hidden = {fields[7] for fields in symbols if fields[4:6] == ["GLOBAL", "HIDDEN"]}
    assert hidden == all_symbols()
    sections = re.findall(r"\] (\.\S+)\s+(\S+)\s+\S+ \S+ (\S+) \S+\s+([A-Z]*)", readelf(built, "-S"))
    assert [name for name, _, size, flags in sections if ("W" in flags or "T" in flags) and int(size, 16)] == []
    assert set(re.findall(r"R_X86_64_\w+", readelf(built, "-r"))) <= {"R_X86_64_PC32", "R_X86_64_PLT32"}


def test_every_variant_defines_its_own_helpers(builds: dict[str, Future[Path]]) -> None:
    for name, build in builds.items():
        assert " UND " not in readelf(build.result(), "--dyn-syms").split("UND", 1)[1], name


@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v3", "x86-64-v4"])
def test_no_warnings(cpu: str) -> None:
    clang = toolchain.find_clang()
    flags = [*toolchain.CPU_FLAGS, *clang.include, f"-march={cpu}", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    source = str(toolchain.CPU_SOURCES / "kernels.cpp")
    command = [*clang.command, "-target", "x86_64-linux-gnu", *flags, source]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def write_compiler(path: Path, version: str) -> Path:
    path.write_text(f"#!/bin/sh\necho 'clang version {version}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class TestFindClang:
    def test_the_override_is_taken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        clang = write_compiler(tmp_path / "my-clang", "21.1.0")
        monkeypatch.setenv("STRIXHLO_CLANG", str(clang))
        assert toolchain.find_clang().command == (str(clang),)

    def test_an_old_override_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        clang = write_compiler(tmp_path / "old-clang", "19.1.7")
        monkeypatch.setenv("STRIXHLO_CLANG", str(clang))
        with pytest.raises(StrixhloError, match=r"old-clang is clang version 19\.1\.7.* clang >= 20"):
            toolchain.find_clang()

    def test_a_missing_override_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STRIXHLO_CLANG", "/no/such/clang")
        with pytest.raises(StrixhloError, match="does not run"):
            toolchain.find_clang()

    def test_without_any_clang_the_error_says_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_compiler(tmp_path / "clang", "14.0.6")
        monkeypatch.delenv("STRIXHLO_CLANG", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(toolchain, "ROCM_CLANG", tmp_path / "no-rocm" / "clang")
        monkeypatch.setattr(toolchain, "_ziglang", lambda: None)
        toolchain._find_clang.cache_clear()
        with pytest.raises(StrixhloError, match=r"clang version 14\.0\.6.*pip install ziglang"):
            toolchain.find_clang()
        toolchain._find_clang.cache_clear()


class TestCache:
    def test_the_same_build_is_found_again(self) -> None:
        first = toolchain.build_cpu_object("x86-64-v3")
        written = first.stat().st_mtime_ns
        assert toolchain.build_cpu_object("x86-64-v3", []) == first
        assert first.stat().st_mtime_ns == written
        assert first.is_relative_to(toolchain.cache_directory())

    def test_where_it_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        monkeypatch.delenv("STRIXHLO_CACHE", raising=False)
        assert toolchain.cache_directory() == tmp_path / "xdg" / "strixhlo"
        monkeypatch.setenv("STRIXHLO_CACHE", str(tmp_path / "own"))
        assert toolchain.cache_directory() == tmp_path / "own"

    def test_builds_at_the_same_time_agree_and_leave_nothing_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sources = tmp_path / "cpu"
        sources.mkdir()
        (sources / "kernels.cpp").write_text('extern "C" int f(int a) { return a + 1; }\n')
        monkeypatch.setattr(toolchain, "CPU_SOURCES", sources)
        monkeypatch.setenv("STRIXHLO_CACHE", str(tmp_path / "cache"))
        with ThreadPoolExecutor(2) as pool:
            built = set(pool.map(lambda _: toolchain.build_cpu_object("x86-64"), range(4)))
        (only,) = built
        assert list(only.parent.iterdir()) == [only]
        before = toolchain.kernel_sources_hash("cpu")
        (sources / "kernels.cpp").write_text('extern "C" int f(int a) { return a + 2; }\n')
        assert toolchain.kernel_sources_hash("cpu:x86-64-v3") != before
        assert toolchain.build_cpu_object("x86-64") != only

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("STRIXHLO_CACHE", str(tmp_path / "file"))
        with pytest.raises(StrixhloError, match="set STRIXHLO_CACHE"):
            toolchain.build_cpu_object("x86-64-v2")


def test_an_unknown_cpu_is_one_line() -> None:
    with pytest.raises(StrixhloError, match=r"building kernels for pentium-9 failed: .*pentium-9") as caught:
        toolchain.build_cpu_object("pentium-9")
    assert "\n" not in str(caught.value)


def test_this_machine_is_not_a_cpu_name() -> None:
    with pytest.raises(ValueError, match="name the CPU"):
        toolchain.build_cpu_object("native")
