"""The CPU kernels beside the compiler's own code of the formats' definition, which a format without a kernel would run.

    python benchmarks/cpu_kernels_against_inlined.py [--cpu x86-64-v4 --feature avx512vnni] [--format mxfp4 ...]

One row times a weight [2048, 2048], one thread, the best of several rounds in turn.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable

import iree.compiler
import iree.runtime
import jax
import jax.numpy as jnp
import numpy as np
from cpu_kernels import TYPES, random_parts

from strixhlo.compile.targets import parse_target
from strixhlo.custom_kernels.cpu.direct import run_launches
from strixhlo.custom_kernels.cpu.launches import quantized_matmul_launches
from strixhlo.custom_kernels.cpu.weight_kernels import weight_kernel
from strixhlo.custom_kernels.ops.formats import FORMATS
from strixhlo.custom_kernels.ops.quantized_matmul import reference
from strixhlo.custom_kernels.toolchain import build_cpu_shared

N = K = 2048


def inlined(format: str, x: np.ndarray, parts: dict[str, np.ndarray]) -> Callable[[], object]:
    """The reference of the op, compiled by IREE for this machine."""
    function = jax.jit(lambda x, *weight: reference(x, *weight, format=format))
    text = function.lower(jnp.asarray(x), *map(jnp.asarray, parts.values())).as_text()
    flags = list(parse_target("cpu").iree_flags)
    program = iree.compiler.compile_str(text, input_type="stablehlo", extra_args=flags)
    device = iree.runtime.get_device("local-sync")
    context = iree.runtime.SystemContext(config=iree.runtime.Config(device=device))
    context.add_vm_module(iree.runtime.VmModule.copy_buffer(context.instance, program))
    main = list(context.modules.values())[-1]["main"]
    arguments = [iree.runtime.asdevicearray(device, a) for a in (x, *parts.values())]
    return lambda: main(*arguments)


def seconds(call: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", default="x86-64-v4")
    parser.add_argument("--feature", action="append", default=[])
    parser.add_argument("--format", action="append", choices=list(FORMATS))
    args = parser.parse_args()
    library = ctypes.CDLL(str(build_cpu_shared(args.cpu, args.feature)))
    x = np.random.default_rng(0).standard_normal((1, K)).astype(np.float32)
    print("format | the compiler's own ms | kernel f32 ms, times faster | kernel 8 bit ms, times faster")
    for format in args.format or FORMATS:
        parts = random_parts(format, N, K)
        own = seconds(inlined(format, x, parts), 7)
        cells = [f"{own * 1e3:.1f}"]
        for fast in (False, True)[: 1 + weight_kernel(format, TYPES).integer]:
            launches, buffers = quantized_matmul_launches(format, 1, N, K, fast, TYPES), {"x": x, **parts}
            run_launches(library, launches, buffers)
            kernel = seconds(lambda run=launches, b=buffers: run_launches(library, run, b), 40)
            cells.append(f"{kernel * 1e3:.2f}, {own / kernel:.0f}")
        print(f"{format} | {' | '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
