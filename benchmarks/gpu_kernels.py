"""Bandwidth and arithmetic of the matmul kernels on an NVIDIA GPU, beside a copy on the same device in the same run.

  python benchmarks/gpu_kernels.py prepare FOLDER       # needs this project and its compiler, no GPU
  python benchmarks/gpu_kernels.py prepare FOLDER few   # only 1, 8 and 16 rows, those of target cuda:sm_90 beside
  python benchmarks/gpu_kernels.py run FOLDER           # needs torch and a GPU, nothing of this project

`prepare` writes the kernels as PTX, what to launch, and small cases with their results; `run` checks those, then times
each kernel in a CUDA graph over weights that rotate through 512 MB or more, so that no cache helps. A launch is timed
with its share of the graph's gaps, which weigh where a matrix takes 10 us: "own us" is the time less that of a kernel
that does nothing, with as many workgroups, threads and bytes of local memory, in a graph of its own.

"In turn" are two matrices of which each takes what the other one wrote, as in a step: then x is in the second cache,
which alone it is not, since each kernel reads more than that holds. The weights rotate all the same.

`few` is for one short run, of a minute at most where kernels.cubin is there (`ptxas -arch=sm_90 -o kernels.cubin
kernels.ptx` in the folder; without it the driver compiles first). "sm_90" are the launches of that target alone:
workgroups of 512 threads and 226 KB of local memory.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

GGUF = ("q4_0", "q4_1", "q4_k", "q5_k", "q6_k", "q8_0")
FORMATS = (*GGUF, "mxfp4", "nvfp4", "mxfp8", "fp8_tensor", "fp8_channel", "fp8_block128")
AFFINE = tuple((f"affine{bits}_g64", "bf16") for bits in (4, 5, 6, 8))
SHAPES = ((4096, 14336), (14336, 4096), (5120, 25600), (28672, 8192))
IN_TURN = ((14336, 4096), (28672, 8192), (25600, 5120))  # and the same turned over
FEW = (1, 2, 4, 8, 16)  # rows of x, at every shape
SHORT = (1, 8, 16)  # the same of the short plan
CHECKED, CHECK_SHAPE = (1, 2, 3, 8, 9, 70), (131, 768)  # rows of x whose results are checked first; n, k
LONG_CHECK_SHAPE = (19, 8448)  # the same of those that sm_90 has for long rows
ACTIVATIONS = ("f32", "bf16")
MANY = (32, 64, 128, 512, 2048)  # rows of x, at 14336 x 4096, of float16 too; those of 128 and 512 also at 4096 x 14336
ROTATING = 768 << 20  # bytes of weights
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # of CUfunction_attribute


def prepare(folder: Path, short: bool = False) -> None:
    """Write kernels.ptx, plan.json and the small cases. short: the plan of few rows alone."""
    from strixhlo.custom_kernels.gpu.kernels import build_ptx
    from strixhlo.custom_kernels.gpu.launches import H200, SM_90, dense_matmul_launches, quantized_matmul_launches
    from strixhlo.custom_kernels.ops.formats import FORMATS as DEFINED

    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    plan: list[dict[str, Any]] = []
    chips = {"": H200, "sm_90": SM_90}
    for name, dtype in (*((f, "f32") for f in FORMATS), *AFFINE):
        fmt = DEFINED[name]

        def case(m: int, n: int, k: int, of: str, chip: str = "", fmt: Any = fmt, dtype: str = dtype) -> dict[str, Any]:
            (launch,) = quantized_matmul_launches(fmt, m, n, k, (dtype, dtype), chips[chip], of)
            parts = fmt.parts(n, k)
            narrow = {"scale", "bias"} if dtype == "bf16" else set()
            sizes = [int(np.prod(s)) * (2 if p in narrow else np.dtype(d).itemsize) for p, (s, d) in parts.items()]
            return {**described(launch, fmt.name, of, m, n, k, sizes), "variant": chip}

        for m, of, chip in product((1, 7, 9) if short else CHECKED, ACTIVATIONS, chips if short else ("",)):
            for shape in (CHECK_SHAPE, LONG_CHECK_SHAPE) if chip else (CHECK_SHAPE,):
                if m <= 8 or not chip:
                    file = write_check(folder, fmt, dtype, (m, *shape), of, random)
                    plan.append({**case(m, *shape, of, chip), "check": file})
        for (n, k), m, of, chip in product(SHAPES, SHORT if short else FEW, ACTIVATIONS, chips if short else ("",)):
            if m <= 8 or not chip:
                plan.append(case(m, n, k, of, chip))
        for (n, k), of, chip in product(IN_TURN, ACTIVATIONS, chips if short else ("",)):
            plan.append({"in turn": [case(1, n, k, of, chip), case(1, k, n, of, chip)]})
        if not short:
            plan += [case(m, 14336, 4096, of) for m in MANY for of in (*ACTIVATIONS, "f16")]
            plan += [case(m, 4096, 14336, "bf16") for m in (128, 512)]
    for m in () if short else MANY:
        (launch,) = dense_matmul_launches("bf16", m, 14336, 4096, H200, "bf16") or ()
        plan.append(described(launch, "bf16", "bf16", m, 14336, 4096, [2 * 14336 * 4096]))
    symbols = {c["symbol"] for entry in plan for c in entry.get("in turn", [entry])}
    ptx = build_ptx("sm_89", symbols).read_text()
    nothing = ".visible .entry nothing() { ret; }"
    (folder / "kernels.ptx").write_text(f"{ptx}\n{nothing}\n")
    (folder / "plan.json").write_text(json.dumps(plan))
    print(f"{len(plan)} cases in {folder}")


def write_check(
    folder: Path, fmt: Any, dtype: str, size: tuple[int, int, int], of: str, random: np.random.Generator
) -> str:
    """A small case with its result, as a file of that folder: its name. size: m, n, k; of: x's dtype."""
    from strixhlo.custom_kernels.ops.formats import dequantize

    (m, n, k), parts = size, {}
    for part, (shape, kind) in fmt.parts(n, k).items():
        if kind.kind == "f":
            parts[part] = random.uniform(0.5, 1.5, shape).astype(kind)
        elif part == "scale" and fmt.name.startswith("mx"):
            parts[part] = random.integers(120, 130, shape).astype(np.uint8).view(np.int8)
        else:
            e4m3 = part == "scale" or (kind == np.int8 and fmt.name.startswith(("mxfp8", "fp8")))
            limit = 2 ** (8 * kind.itemsize - 1)
            low, high = (0, 100) if e4m3 else (-limit, limit)
            parts[part] = random.integers(low, high, shape, np.int64).astype(kind)
    x = random.standard_normal((m, k), np.float32)
    if of == "bf16":
        x = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    stored = list(parts.values())
    if dtype == "bf16":
        import ml_dtypes

        for part in ("scale", "bias"):
            parts[part] = parts[part].astype(ml_dtypes.bfloat16)
        stored = [v.view(np.int16) if v.dtype == ml_dtypes.bfloat16 else v for v in parts.values()]
    want = x.astype(np.float64) @ np.asarray(dequantize(fmt, parts)).astype(np.float64).T
    file = f"{fmt.name}-{m}-{n}x{k}-{of}.npz"
    np.savez(folder / file, x, *(np.frombuffer(v.tobytes(), np.uint8) for v in stored), want)
    return file


def described(launch: Any, format: str, x: str, m: int, n: int, k: int, parts: list[int]) -> dict[str, Any]:
    """A launch as the plan has it. parts: bytes of each of the weight's."""
    shape = {"symbol": launch.symbol, "workgroups": launch.workgroups, "threads": launch.threads}
    shape |= {"local": launch.local_memory, "scalars": launch.scalars}
    return {**shape, "format": format, "x": x, "m": m, "n": n, "k": k, "parts": parts}


class Gpu:
    """The kernels on a device, a stream of torch's, and weights larger than any cache."""

    def __init__(self, folder: Path) -> None:
        import torch

        torch.zeros(1, device="cuda")
        self.torch, self.cuda, self.stream = torch, ctypes.CDLL("libcuda.so.1"), torch.cuda.Stream()
        self.kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
        self.module = ctypes.c_void_p()
        built = folder / "kernels.cubin"  # made of the PTX by ptxas, if somebody did: the driver takes a minute
        code = built.read_bytes() if built.exists() else (folder / "kernels.ptx").read_bytes() + b"\0"
        self.ok(self.cuda.cuModuleLoadData(ctypes.byref(self.module), code))
        self.pool = torch.randint(0, 2**31, (ROTATING // 4,), dtype=torch.int32, device="cuda") & 0x2FFF2FFF
        self.turn, self.nothing = 0, dict[tuple[int, ...], float]()

    def ok(self, code: int) -> None:
        """Ends the program where a call of the driver failed."""
        if code:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorString(code, ctypes.byref(text))
            raise SystemExit(f"CUDA: {(text.value or b'unknown error').decode()}")

    def launch(self, case: dict[str, Any], pointers: list[int]) -> None:
        """A case's kernel on these buffers."""
        function = ctypes.c_void_p()
        self.ok(self.cuda.cuModuleGetFunction(ctypes.byref(function), self.module, case["symbol"].encode()))
        if case["local"]:
            self.ok(self.cuda.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, case["local"]))
        values = [*map(ctypes.c_uint64, pointers), *map(ctypes.c_int32, case["scalars"])]
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values))
        size, stream = (case["workgroups"], 1, 1, case["threads"], 1, 1, case["local"]), self.stream.cuda_stream
        self.ok(self.cuda.cuLaunchKernel(function, *size, ctypes.c_void_p(stream), arguments, None))

    def seconds(self, work: Callable[[], object], repeats: int) -> float:
        """The median of five replays of a graph of `repeats` calls, for one call."""
        torch = self.torch
        with torch.cuda.stream(self.stream):
            work()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                for _ in range(repeats):
                    work()
            times = []
            for _ in range(6):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record(self.stream)
                graph.replay()
                end.record(self.stream)
                torch.cuda.synchronize()
                times.append(start.elapsed_time(end) / repeats * 1e-3)
        return sorted(times[1:])[2]

    def check(self, case: dict[str, Any], file: Path) -> None:
        """Ends the program where a case's result is not the one that the file has."""
        torch = self.torch
        x, *parts, want = np.load(file).values()
        on_device = [torch.from_numpy(a.copy()).cuda() for a in (x, *parts)]
        on_device[0] = on_device[0].to(self.kinds[case["x"]])
        y = torch.full(want.shape, float("nan"), device="cuda", dtype=self.kinds[case["x"]])
        self.launch(case, [t.data_ptr() for t in (*on_device, y)])
        torch.cuda.synchronize()
        error = np.linalg.norm(y.float().cpu().numpy() - want) / np.linalg.norm(want)
        if not error < (1e-5 if case["x"] == "f32" else 4e-3):
            raise SystemExit(f"{case['symbol']}: relative L2 {error:.1e}")

    def timed(self, cases: list[dict[str, Any]]) -> float:
        """Seconds of a launch of each, every time on other weights. Of several each takes what the one before wrote."""
        placed = [np.cumsum([0, *((p + 255) // 256 * 256 for p in case["parts"])]) for case in cases]
        size = sum(int(starts[-1]) for starts in placed)
        copies, first = ROTATING // size, cases[0]
        xs = [self.torch.randn(first["m"] * first["k"], device="cuda").to(self.kinds[first["x"]])]
        xs += [self.torch.empty(case["m"] * case["n"], device="cuda", dtype=xs[0].dtype) for case in cases]
        if len(cases) > 1:
            xs[-1] = xs[0]

        def work() -> None:
            base = self.pool.data_ptr() + self.turn % copies * size
            self.turn += 1
            for case, starts, x, y in zip(cases, placed, xs[:-1], xs[1:], strict=True):
                self.launch(case, [x.data_ptr(), *(base + int(s) for s in starts[:-1]), y.data_ptr()])
                base += int(starts[-1])

        return self.seconds(work, max(copies, 8))

    def of_nothing(self, case: dict[str, Any]) -> float:
        """Seconds of a kernel of the same size that does nothing."""
        geometry = (case["workgroups"], case["threads"], case["local"])
        if geometry not in self.nothing:
            empty = {**case, "symbol": "nothing", "scalars": []}
            self.nothing[geometry] = self.seconds(partial(self.launch, empty, []), 64)
        return self.nothing[geometry]


def run(folder: Path) -> None:
    """Check and time everything in the folder; a Markdown table on stdout."""
    gpu = Gpu(folder)
    target = gpu.torch.empty_like(gpu.pool)
    copy = 2 * ROTATING / gpu.seconds(lambda: gpu.torch.bitwise_not(gpu.pool, out=target), 10)
    print(f"copy on this device: {copy / 1e9:.0f} GB/s\n")
    names = ("format", "x", "rows", "variant", "shape", "us", "own us", "GB/s", "of copy", "own, of copy", "TFLOP/s")
    print("|", " | ".join(names), "|\n" + "|---" * len(names) + "|")
    for case in json.loads((folder / "plan.json").read_text()):
        if "check" in case:
            gpu.check(case, folder / case["check"])
            continue
        cases = case.get("in turn", [case])
        took = gpu.timed(cases)
        print(row(cases, took, took - sum(map(gpu.of_nothing, cases)), copy), flush=True)


def row(cases: list[dict[str, Any]], took: float, own: float, copy: float) -> str:
    """Of the table. took, own: seconds of a launch of each, and less those that do nothing; copy: bytes/s."""
    case, size = cases[0], sum(sum(c["parts"]) for c in cases)
    rate, own_rate, flops = size / took, size / own, sum(2 * c["m"] * c["n"] * c["k"] for c in cases) / took
    times = (f"{took * 1e6:.1f}", f"{own * 1e6:.1f}", f"{rate / 1e9:.0f}", f"{rate / copy:.2f}")
    shapes = " and ".join(f"{c['n']}x{c['k']}" for c in cases)
    cells = (case["format"], case["x"], case["m"], case.get("variant", ""), shapes, *times, f"{own_rate / copy:.2f}")
    return f"| {' | '.join(map(str, cells))} | {flops / 1e12:.1f} |"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["prepare", folder]:
            prepare(Path(folder))
        case ["prepare", folder, "few"]:
            prepare(Path(folder), short=True)
        case ["run", folder]:
            run(Path(folder))
        case _:
            raise SystemExit(__doc__)
