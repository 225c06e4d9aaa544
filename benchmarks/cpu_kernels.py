"""How near the CPU matmul kernels come to the machine: bytes per second for one row, products per second for many.

    python benchmarks/cpu_kernels.py [--cpu x86-64-v4 --feature avx512vnni ...] [--threads 2] [--format q4_1 ...]

Without --cpu the kernels are those for this machine.

One row: the floor is a plain read of the weight's bytes by as many threads, in turn with the kernel. Every number is
the best of its rounds, which a busy machine disturbs least.
The weight (64 M parameters) is larger than the last cache. Many rows: 10^9 multiply-adds a second, per thread.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from strixhlo.cpu_features import host_cpu
from strixhlo.custom_kernels.cpu.direct import run_launches
from strixhlo.custom_kernels.cpu.launches import quantized_matmul_launches
from strixhlo.custom_kernels.cpu.weight_kernels import weight_kernel
from strixhlo.custom_kernels.ops.formats import FORMATS
from strixhlo.custom_kernels.ops.launch import Launch
from strixhlo.custom_kernels.toolchain import build_cpu_shared, find_clang

TYPES = {"scale": "f16", "bias": "f16"}  # of affine formats, as MLX usually stores them
READ = """
#include <stdint.h>
typedef uint64_t V __attribute__((ext_vector_type(8), aligned(8)));
uint64_t read_all(const uint64_t* p, int64_t words) {
  V a = 0, b = 0, c = 0, d = 0;
  for (int64_t i = 0; i + 32 <= words; i += 32) {
    a ^= *(const V*)(p + i); b ^= *(const V*)(p + i + 8); c ^= *(const V*)(p + i + 16); d ^= *(const V*)(p + i + 24);
  }
  V all = a ^ b ^ c ^ d;
  return all[0] ^ all[1] ^ all[2] ^ all[3] ^ all[4] ^ all[5] ^ all[6] ^ all[7];
}
"""


def build_reader(cpu: str) -> ctypes.CDLL:
    """A loop that does nothing but read."""
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "read.c", Path(folder) / "read.so"
        source.write_text(READ)
        clang = find_clang()
        command = [*clang.command, "-target", "x86_64-linux-gnu", f"-march={cpu}", "-O3", "-mprefer-vector-width=512"]
        command += [*clang.include, "-fPIC", "-shared", "-nostdlib", "-ffreestanding", str(source), "-o", str(built)]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(built))


def random_parts(format: str, n: int, k: int) -> dict[str, np.ndarray]:
    """Parts of an [n, k] weight with any codes and small scales."""
    rng = np.random.default_rng(0)
    parts = {}
    for name, (shape, dtype) in FORMATS[format].parts(n, k).items():
        if dtype.kind == "f":
            as_stored = np.dtype(np.float16) if format.startswith("affine") else dtype
            parts[name] = (rng.standard_normal(shape, dtype=np.float32) * 0.01).astype(as_stored)
        elif name == "scale":
            parts[name] = rng.integers(30, 120, shape).astype(np.int8)  # no NaN, E8M0 and E4M3 included
        else:
            parts[name] = rng.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8).view(dtype).reshape(shape)
    return parts


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_one_workgroup_each(launches: tuple[Launch, ...], threads: int, n: int) -> tuple[Launch, ...]:
    """The last launch cut into one workgroup a thread: Python's cost per call is not the kernel's."""
    tile = -(-n // threads // 16) * 16
    matmul = launches[-1]
    return (
        *launches[:-1],
        replace(matmul, scalars=(*matmul.scalars[:3], tile, *matmul.scalars[4:]), workgroups=-(-n // tile)),
    )


def one_row(format: str, library: ctypes.CDLL, reader: ctypes.CDLL, threads: int, fast: bool) -> dict[str, float]:
    """GB/s of the kernel and of a plain read of the same bytes."""
    n, k = 16384, 4096
    parts = random_parts(format, n, k)
    total = sum(part.nbytes for part in parts.values())
    flat = np.concatenate([part.reshape(-1).view(np.uint8) for part in parts.values()])
    words = flat[: len(flat) // 8 * 8].view(np.uint64)
    share = len(words) // threads
    pieces = [(ctypes.c_void_p(words.ctypes.data + 8 * share * i), ctypes.c_int64(share)) for i in range(threads)]
    buffers = {"x": np.random.default_rng(1).standard_normal((1, k)).astype(np.float32), **parts}
    launches = in_one_workgroup_each(quantized_matmul_launches(format, 1, n, k, fast, TYPES), threads, n)
    with ThreadPoolExecutor(threads) as pool:
        rounds = [
            (
                seconds(lambda: list(pool.map(lambda piece: reader.read_all(*piece), pieces))),
                seconds(lambda: run_launches(library, launches, buffers, pool)),
            )
            for _ in range(31)
        ]
    floor, kernel = (total / min(times) / 1e9 for times in zip(*rounds, strict=True))
    return {"floor": floor, "kernel": kernel}


def many_rows(format: str, library: ctypes.CDLL, m: int, n: int, k: int, fast: bool) -> float:
    """10^9 multiply-adds per second of one thread."""
    buffers = {"x": np.random.default_rng(1).standard_normal((m, k)).astype(np.float32), **random_parts(format, n, k)}
    launches = quantized_matmul_launches(format, m, n, k, fast, TYPES)
    times = [seconds(lambda: run_launches(library, launches, buffers)) for _ in range(25)]
    return m * n * k / min(times) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", default="")
    parser.add_argument("--feature", action="append", default=[])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--format", action="append", choices=list(FORMATS))
    args = parser.parse_args()
    if not args.cpu:
        args.cpu, args.feature = host_cpu()
    library, reader = ctypes.CDLL(str(build_cpu_shared(args.cpu, args.feature))), build_reader(args.cpu)
    print(f"{args.cpu} {' '.join(args.feature)}, {args.threads} threads")
    print("format mode | 1 row: read GB/s  kernel GB/s  ratio | GMAC/s a thread at 16 and 128 rows (1536 x 1536)")
    for name in args.format or FORMATS:
        modes = (("8 bit", True), ("f32", False)) if weight_kernel(name, TYPES).integer else (("f32", False),)
        for mode, fast in modes:
            row = one_row(name, library, reader, args.threads, fast)
            many = [many_rows(name, library, m, 1536, 1536, fast) for m in (16, 128)]
            print(
                f"{name:12} {mode:5} | {row['floor']:8.1f} {row['kernel']:12.1f} {row['kernel'] / row['floor']:11.2f}"
                f"      | {many[0]:8.1f} {many[1]:8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
