"""Kernels on the matrix unit (AMX), its instructions emulated: the same sources, loops in place of seven intrinsics.

No machine of these tests has the unit, so what it really does is not tested; that the real build holds the instructions
is, from its disassembly.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from moe_cases import problem
from quantized_activations import activations, quantize, relative
from quantized_weights import CASES, Case, first_rows, random_weight

from strixhlo.cpu_features import cpuinfo_flags, required_flags
from strixhlo.custom_kernels import toolchain
from strixhlo.custom_kernels.cpu.direct import run_launches
from strixhlo.custom_kernels.cpu.launches import dense_matmul_launches, quantized_matmul_launches
from strixhlo.custom_kernels.cpu.matrix_unit import kernel_features, with_machine
from strixhlo.custom_kernels.cpu.moe_launches import _rows, stored_kernel
from strixhlo.custom_kernels.ops.formats_gguf import RUN
from strixhlo.custom_kernels.ops.launch import MACHINE, Launch
from strixhlo.custom_kernels.ops.moe_matmul import part_names

SOURCE = Path(__file__).with_name("emulated_tiles.cpp")
YES, NO = np.array([1] + [0] * 15, np.int32), np.zeros(16, np.int32)
TILED = (16, 17, 33, 128)  # rows: whole tiles, and what is left over


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All kernels with the instructions as loops."""
    if not cpuinfo_flags().issuperset(required_flags("x86-64-v4", ("avx512vnni",))):
        pytest.skip("needs AVX-512 with VNNI, as CPUs with the unit have")
    clang, folder = toolchain.find_clang(), tmp_path_factory.mktemp("emulated")
    built, library = folder / "kernels.o", folder / "kernels.so"
    flags = ["-target", "x86_64-linux-gnu", "-march=x86-64-v4", "-mavx512vnni", *toolchain.CPU_FLAGS, "-O1"]
    flags += ["-DSTRIXHLO_SHARED", f"-I{toolchain.CPU_SOURCES}", *clang.include]
    toolchain.run_tool([*clang.command, *flags, "-c", str(SOURCE), "-o", str(built)], "building emulated tiles")
    toolchain.run_tool([*toolchain.linker(), "-shared", "--no-undefined", str(built), "-o", str(library)], "linking")
    return ctypes.CDLL(str(library))


class Both:
    """Launches with the unit and without, with guards around everything that they may touch."""

    def __init__(self, library: ctypes.CDLL, fenced: Callable, guarded: Callable) -> None:
        self.library, self.fenced, self.guarded = library, fenced, guarded

    def __call__(
        self, launches: tuple[Launch, ...], operands: dict[str, np.ndarray], y: str = "y"
    ) -> tuple[np.ndarray, np.ndarray]:
        results = []
        for machine in (YES, NO):
            buffers = {name: self.fenced(array) for name, array in operands.items()} | {MACHINE: machine}
            output = next(o for launch in launches for o in launch.outputs if o.name == y)
            buffers[y], check = self.guarded(output.shape)
            run_launches(self.library, with_machine(launches), buffers)
            check()
            results.append(buffers[y])
        return results[0], results[1]


@pytest.fixture
def both(emulated: ctypes.CDLL, fenced: Callable, guarded: Callable) -> Both:
    return Both(emulated, fenced, guarded)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return bool((a.view(np.int32) == b.view(np.int32)).all())


def as_bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def parts_of(case: Case, n: int, k: int) -> dict[str, np.ndarray]:
    return first_rows(case, random_weight(case, k)[0], n, k)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.integer])
def test_8_bits_are_exact(both: Both, name: str) -> None:
    """Integers are, and the floats around them are summed as without the unit."""
    case = CASES[name]
    for k in case.columns:
        values = random_weight(case, k)[1]
        for m, n in ((16, case.rows), (17, 1), (33, 17), (128, 17)):
            x = activations(m, k)
            launches = quantized_matmul_launches(case.format, m, n, k, True, case.dtypes)
            on, off = both(launches, {"x": x, **parts_of(case, n, k)})
            assert same_bits(on, off), (m, n, k)
            xq, xs, _ = quantize(x)
            used = (xq.reshape(*xs.shape, RUN) * xs[..., None].astype(np.float64)).reshape(x.shape)
            assert relative(on, used @ values[:n].T) < 1e-5, (m, n, k)


@pytest.mark.parametrize("name", CASES)
def test_bfloat16_activations(both: Both, name: str) -> None:
    case, k = CASES[name], CASES[name].columns[-1]
    values = random_weight(case, k)[1]
    for m, n in ((16, case.rows), (33, 17), (70, 1)):
        x = as_bf16(activations(m, k))
        launches = quantized_matmul_launches(case.format, m, n, k, False, case.dtypes)
        on, off = both(launches, {"x": x, **parts_of(case, n, k)})
        assert relative(on, x.astype(np.float64) @ values[:n].T) < 1e-5, (m, n)
        assert not same_bits(on, off)  # it is the unit that ran
        x[15, k // 2] = 1 + 2**-20  # bfloat16 does not hold it: these rows go another way
        on, off = both(launches, {"x": x, **parts_of(case, n, k)})
        assert relative(on, x.astype(np.float64) @ values[:n].T) < 1e-5, (m, n)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_dense_weights(both: Both, dtype: str) -> None:
    rng = np.random.default_rng(0)
    for k in (83, 256, 300):
        for m in TILED:
            n = 17 if m != 33 else 1
            w = rng.standard_normal((n, k)).astype({"f32": "f4", "f16": "f2", "bf16": ml_dtypes.bfloat16}[dtype])
            x = as_bf16(activations(m, k))
            stored = w.view(np.uint16) if dtype == "bf16" else w
            on, _ = both(dense_matmul_launches(dtype, m, n, k), {"x": x, "w": stored})
            assert relative(on, x.astype(np.float64) @ w.astype(np.float64).T) < 1e-5, (k, m)


@pytest.mark.parametrize("name", ["q4_0", "q6_k", "affine3_g64", "mxfp4", "fp8_block128"])
def test_nan_and_infinity(both: Both, name: str) -> None:
    case, k = CASES[name], CASES[name].columns[-1]
    x = as_bf16(activations(18, k))
    x[0, 5], x[1, 40], x[2, :] = np.nan, np.inf, 1e-39
    launches = quantized_matmul_launches(case.format, 18, case.rows, k, False, case.dtypes)
    on, _ = both(launches, {"x": x, **parts_of(case, case.rows, k)})
    with np.errstate(invalid="ignore"):
        want = x.astype(np.float64) @ random_weight(case, k)[1].T
    assert np.isnan(on[0]).all()
    np.testing.assert_array_equal(on[1], want[1])
    assert relative(on[2:], want[2:]) < 1e-5


@pytest.mark.parametrize("fast", [False, True], ids=["f32", "int8"])
def test_rows_of_experts(both: Both, fast: bool) -> None:
    v = problem("q4_0", 60, False, "one")
    k, n = 96, 64
    names = part_names("q4_0", n, k)
    types = [(v[f"gate.{name}"].shape, "i8" if name == "codes" else "f16") for name in names]
    kernel = stored_kernel("q4_0", names, types, experts=8)
    assert kernel
    parts = tuple(f"gate.{name}" for name in names)
    pairs = len(v["order"])
    sorted_rows = as_bf16(v["x"][v["order"] // 3])
    launches: tuple[Launch, ...] = (
        _rows(kernel, ("sorted", "offsets", *parts), "out", pairs=pairs, experts=8, n=n, k=k),
    )
    if fast:
        from strixhlo.custom_kernels.cpu.moe_int8_launches import with_8_bit_activations

        launches = with_8_bit_activations(launches, kernel, pairs, k)
    operands = {"sorted": sorted_rows, "offsets": v["offsets"], **{p: v[p] for p in parts}}
    on, off = both(launches, operands, "out")
    used = v["offsets"][-1]
    assert used > 3 * 16 and relative(on[:used], off[:used].astype(np.float64)) < 1e-5
    assert same_bits(on, off) == fast


def test_the_real_build_holds_the_instructions() -> None:
    built = toolchain.build_cpu_object("x86-64-v4", kernel_features(("avx512vnni", "avx512bf16", "avx512vbmi")))
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(built)], check=True, capture_output=True, text=True
    )
    for instruction in ("ldtilecfg", "tileloadd", "tilestored", "tilezero", "tdpbsud", "tdpbf16ps", "tilerelease"):
        assert re.search(rf"\t{instruction}\b", listing.stdout), instruction


def test_builds_without_vnni_know_nothing_of_it() -> None:
    assert kernel_features(("avx512bf16",)) == ("avx512bf16",)
