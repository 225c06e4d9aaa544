"""How near the CPU matmul kernels come to the machine: bytes per second for few rows, products per second for many.

    python benchmarks/cpu_kernels.py [--cpu x86-64-v4 --feature avx512vnni ...] [--threads 2] [--format q4_1 ...]
                                     [--rows 1 --rows 4] [--columns 4096] [--small-pages] [--no-gemm]

Without --cpu the kernels are those for this machine.

Few rows: a weight of 256 MB (larger than any cache, so every pass comes from memory), read by a loop that does nothing
else, by one that asks for lines ahead of itself as the kernels do, and by the kernels, in turn: the very same memory,
cut into as many shares, one for each of as many threads. The ratio is the median over the rounds of plain read to
kernel of the same round, since a shared machine's bandwidth changes from second to second. Workgroups are of 256 weight
rows, as a program's are; what a runtime takes to start them is in neither side. Activations are rounded, or split, by
the kernel's launches, and that counts. --small-pages: memory in pages of 4 KiB, as those of a mapped file are;
otherwise the system may give pages of 2 MiB to both.
Many rows: 10^9 multiply-adds a second, per thread.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from strixhlo.cpu_features import host_cpu
from strixhlo.custom_kernels.cpu.direct import launch_arguments, run_launches
from strixhlo.custom_kernels.cpu.launches import quantized_matmul_launches
from strixhlo.custom_kernels.cpu.weight_kernels import weight_kernel
from strixhlo.custom_kernels.ops.formats import FORMATS
from strixhlo.custom_kernels.toolchain import build_cpu_shared, find_clang

TYPES = {"scale": "f16", "bias": "f16"}  # of affine formats, as MLX usually stores them
READ = """
#include <stdint.h>
typedef uint64_t V __attribute__((ext_vector_type(8), aligned(8)));
uint64_t read_all(const uint64_t* p, int64_t words, int64_t ahead) {
  V a = 0, b = 0, c = 0, d = 0;
  for (int64_t i = 0; i + 32 <= words; i += 32) {
    if (ahead)
      for (int line = 0; line < 256; line += 64) __builtin_prefetch((const char*)(p + i) + line + ahead, 0, 2);
    a ^= *(const V*)(p + i); b ^= *(const V*)(p + i + 8); c ^= *(const V*)(p + i + 16); d ^= *(const V*)(p + i + 24);
  }
  V all = a ^ b ^ c ^ d;
  return all[0] ^ all[1] ^ all[2] ^ all[3] ^ all[4] ^ all[5] ^ all[6] ^ all[7];
}
typedef void Kernel(A64);
void workgroups(Kernel* kernel, const int64_t* a, int count, int64_t from, int64_t to) {
  for (int64_t wg = from; wg < to; wg++) {
    int64_t b[MOST] = {0};
    for (int i = 0; i < count; i++) b[i] = a[i];
    b[count] = wg;
    kernel(B64);
  }
}
"""
MOST_ARGUMENTS = 40  # of a kernel: pointers and integers, all of 64 bits
WEIGHT_BYTES, WORKGROUP_ROWS, ROUNDS = 256e6, 256, 15
AHEAD = 8192  # bytes, as PREFETCH in vector.h


def build_reader(cpu: str) -> ctypes.CDLL:
    """A loop that does nothing but read, and one that calls a kernel for each of a thread's workgroups."""
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "read.c", Path(folder) / "read.so"
        types = ", ".join(["int64_t"] * MOST_ARGUMENTS)
        values = ", ".join(f"b[{i}]" for i in range(MOST_ARGUMENTS))
        source.write_text(READ.replace("A64", types).replace("B64", values).replace("MOST", str(MOST_ARGUMENTS)))
        clang = find_clang()
        command = [*clang.command, "-target", "x86_64-linux-gnu", f"-march={cpu}", "-O3", "-mprefer-vector-width=512"]
        command += [*clang.include, "-fPIC", "-shared", "-nostdlib", "-ffreestanding", str(source), "-o", str(built)]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(built))


def random_parts(format: str, n: int, k: int) -> dict[str, np.ndarray]:
    """Parts of an [n, k] weight with any codes and small scales; rows repeat after 256."""
    if n > 256:
        few = random_parts(format, 256, k)
        return {name: np.resize(few[name], shape) for name, (shape, _) in FORMATS[format].parts(n, k).items()}
    rng = np.random.default_rng(0)
    parts = {}
    for name, (shape, dtype) in FORMATS[format].parts(n, k).items():
        if dtype.kind == "f":
            as_stored = np.dtype(np.float16) if format.startswith("affine") else dtype
            parts[name] = (rng.standard_normal(shape, dtype=np.float32) * 0.01).astype(as_stored)
        elif name == "scale":
            parts[name] = rng.integers(30, 120, shape).astype(np.int8)  # no NaN, E8M0 and E4M3 included
        else:
            bytes_ = rng.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
            if format.startswith(("mxfp8", "fp8")):
                bytes_[bytes_ & 0x7F == 0x7F] = 0  # NaN
            parts[name] = bytes_.view(dtype).reshape(shape)
    return parts


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_memory(parts: dict[str, np.ndarray], small_pages: bool) -> dict[str, np.ndarray]:
    """The parts in memory of their own, of pages of one kind."""
    copies = {}
    for name, part in parts.items():
        memory = mmap.mmap(-1, part.nbytes)
        memory.madvise(mmap.MADV_NOHUGEPAGE if small_pages else mmap.MADV_HUGEPAGE)
        copies[name] = np.frombuffer(memory, part.dtype).reshape(part.shape)
        np.copyto(copies[name], part)
    return copies


def shares(n: int, threads: int) -> list[range]:
    """The workgroups of each thread."""
    groups = -(-n // WORKGROUP_ROWS)
    return [range(groups * i // threads, groups * (i + 1) // threads) for i in range(threads)]


def few_rows(
    format: str, libraries: tuple[ctypes.CDLL, ctypes.CDLL], threads: int, m: int, k: int, fast: bool, small_pages: bool
) -> tuple[float, ...]:
    """Medians: GB/s of a plain read, of one that asks ahead, of the kernel; time of a plain read / of the kernel."""
    library, reader = libraries
    of_one = sum(part.nbytes for part in random_parts(format, 256, k).values()) / 256
    n = int(WEIGHT_BYTES / of_one) // (WORKGROUP_ROWS * threads) * WORKGROUP_ROWS * threads
    parts = in_memory(random_parts(format, n, k), small_pages)
    total = sum(part.nbytes for part in parts.values())
    buffers = {"x": np.random.default_rng(1).standard_normal((m, k)).astype(np.float32), **parts}
    *before, matmul = quantized_matmul_launches(format, m, n, k, fast, TYPES)
    scalars = (*matmul.scalars[:3], WORKGROUP_ROWS, *matmul.scalars[4:])
    matmul = replace(matmul, scalars=scalars, workgroups=n // WORKGROUP_ROWS)
    run_launches(library, before, buffers)
    buffers["y"] = np.zeros((m, n), np.float32)
    function, arguments = getattr(library, matmul.symbol), launch_arguments(matmul, buffers)
    function.restype = None
    reader.workgroups.restype = None
    array = (ctypes.c_int64 * len(arguments))(*(a.value or 0 for a in arguments))

    def read(share: range, ahead: int = 0) -> None:
        for part in parts.values():
            size = part.nbytes // (n // WORKGROUP_ROWS)
            words = size * len(share) // 8
            reader.read_all(
                ctypes.c_void_p(part.ctypes.data + size * share.start), ctypes.c_int64(words), ctypes.c_int64(ahead)
            )

    def compute(share: range) -> None:
        reader.workgroups(function, array, len(arguments), ctypes.c_int64(share.start), ctypes.c_int64(share.stop))

    with ThreadPoolExecutor(threads) as pool:
        split = shares(n, threads)

        def run_all() -> None:
            run_launches(library, before, buffers)
            list(pool.map(compute, split))

        rounds = []
        for _ in range(ROUNDS):
            plain = seconds(lambda: list(pool.map(read, split)))
            asking = seconds(lambda: list(pool.map(partial(read, ahead=AHEAD), split)))
            rounds.append((plain, asking, seconds(run_all)))
    speeds = (total / median(times) / 1e9 for times in zip(*rounds, strict=True))
    return *speeds, median(plain / run for plain, _, run in rounds)


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
    parser.add_argument("--rows", type=int, action="append")
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--small-pages", action="store_true")
    parser.add_argument("--no-gemm", action="store_true")
    args = parser.parse_args()
    if not args.cpu:
        args.cpu, args.feature = host_cpu()
    library, reader = ctypes.CDLL(str(build_cpu_shared(args.cpu, args.feature))), build_reader(args.cpu)
    print(f"{args.cpu} {' '.join(args.feature)}, {args.threads} threads, {args.columns} columns")
    print(
        "format mode rows | read GB/s, asking ahead  kernel GB/s  kernel / read"
        " | GMAC/s a thread at 16 and 128 rows (1536 x 1536)"
    )
    for name in args.format or FORMATS:
        modes = (("8 bit", True), ("f32", False)) if weight_kernel(name, TYPES).integer else (("f32", False),)
        for mode, fast in modes:
            for m in args.rows or [1]:
                row = few_rows(name, (library, reader), args.threads, m, args.columns, fast, args.small_pages)
                print(
                    f"{name:12} {mode:5} {m:3}  | {row[0]:8.1f} {row[1]:8.1f} {row[2]:12.1f} {row[3]:7.2f}",
                    end="",
                    flush=True,
                )
                if not args.no_gemm and m == (args.rows or [1])[-1]:
                    many = [many_rows(name, library, rows, 1536, 1536, fast) for rows in (16, 128)]
                    print(f" | {many[0]:8.1f} {many[1]:8.1f}", end="")
                print(flush=True)


if __name__ == "__main__":
    main()
