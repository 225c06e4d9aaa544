"""MLX's quantized matmul on an NVIDIA GPU: 1, 16, 128 and 512 rows of bfloat16 in MLX's own formats.

  python benchmarks/h200_mlx_matmul.py warm           # compiles MLX's kernels, all formats at once, into its cache
  python benchmarks/h200_mlx_matmul.py [FORMAT ...]   # the table; all formats without any

Needs mlx[cuda] and a GPU, nothing of this project. Weights rotate over 512 MB or more, so that no cache helps. Calls
that do not need each other's results are evaluated in one go, as many as take some milliseconds: microseconds a call,
the median of five, GB/s of weights (codes, scales, biases) and TFLOP/s. "in a chain" is a pair of calls of both shapes,
each of which needs the one before it, as in a model: MLX may not run them side by side.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

AFFINE = {f"affine{bits}_g{group}": ("affine", bits, group) for bits in (4, 8) for group in (64, 32)}
AFFINE |= {f"affine{bits}_g64": ("affine", bits, 64) for bits in (5, 6, 3, 2)}
FORMATS = {"mxfp4": ("mxfp4", 4, 32), "nvfp4": ("nvfp4", 4, 16), "mxfp8": ("mxfp8", 8, 32), **AFFINE}
SHAPES = ((14336, 4096), (4096, 14336))
ROWS = (16, 128, 512, 1)
ROTATING = 512 << 20  # bytes of weights
LONG = 0.012  # seconds that what is timed takes, at least about
WARM_SECONDS = 45

Weight = tuple[Any, ...]


def weights(mx: Any, format: str, n: int, k: int, count: int) -> list[Weight]:
    """Random codes with plausible scales: (packed, scales, biases or None) of each of `count` matrices."""
    mode, bits, group = FORMATS[format]
    made: list[Weight] = []
    for _ in range(count):
        packed = mx.random.randint(0, 2**31 - 1, (n, k * bits // 32)).astype(mx.uint32)
        if mode == "affine":
            scale = 0.05 / 2**bits
            groups = [mx.full((n, k // group), v, mx.bfloat16) for v in (scale, -scale * 2 ** (bits - 1))]
        else:
            # E8M0: 2^-7; E4M3: 2^-4
            groups = [mx.full((n, k // group), 24 if mode == "nvfp4" else 120, mx.uint8), None]
            if mode == "mxfp8":
                packed = mx.bitwise_and(packed, 0x3F3F3F3F)  # no NaNs
        made.append((packed, *groups))
    mx.eval([[p for p in w if p is not None] for w in made])
    return made


def multiply(mx: Any, format: str, x: Any, weight: Weight) -> Any:
    """x @ weight.T, lazily."""
    mode, bits, group = FORMATS[format]
    packed, scales, biases = weight
    return mx.quantized_matmul(x, packed, scales, biases, transpose=True, group_size=group, bits=bits, mode=mode)


def seconds_a_call(mx: Any, work: Callable[[int], object], fewest: int) -> float:
    """The median of five. work(count): that many calls, lazily, of which `fewest` go round all weights."""

    def once(count: int) -> float:
        began = time.perf_counter()
        mx.eval(work(count))
        return (time.perf_counter() - began) / count

    once(2)
    count = max(fewest, min(400, int(LONG / once(fewest))))
    return sorted(once(count) for _ in range(5))[2]


def random_x(mx: Any, rows: int, k: int) -> Any:
    """Standard normal bfloat16 numbers, there already."""
    x = mx.random.normal((rows, k)).astype(mx.bfloat16)
    mx.eval(x)
    return x


def measured(mx: Any, format: str) -> None:
    """Print the format's lines, as they come."""
    of_shape, bytes_of = {}, {}
    for n, k in SHAPES:
        bits = FORMATS[format][1]
        of_shape[n, k] = weights(mx, format, n, k, -(-ROTATING // (n * k * bits // 8)))
        bytes_of[n, k] = sum(p.nbytes for p in of_shape[n, k][0] if p is not None)
    for rows in ROWS:
        cells = []
        for n, k in SHAPES:
            x, made = random_x(mx, rows, k), of_shape[n, k]

            def calls(count: int, x: Any = x, made: list[Weight] = made) -> list[Any]:
                return [multiply(mx, format, x, made[i % len(made)]) for i in range(count)]

            took = seconds_a_call(mx, calls, len(made))
            cells.append(f"{took * 1e6:.1f} | {bytes_of[n, k] / took / 1e9:.0f} | {2 * rows * n * k / took / 1e12:.1f}")
        x, (up, down) = random_x(mx, rows, SHAPES[0][1]), (of_shape[s] for s in SHAPES)

        def chain(count: int, x: Any = x, up: list[Weight] = up, down: list[Weight] = down) -> Any:
            for i in range(count):
                x = multiply(mx, format, multiply(mx, format, x, up[i % len(up)]), down[i % len(down)])
            return x

        pair = seconds_a_call(mx, chain, len(up))
        print(f"| {format} | {rows} | {' | '.join(cells)} | {pair * 1e6:.1f} |", flush=True)


def warm(formats: Sequence[str]) -> None:
    """Each format once in a process of its own: MLX compiles kernels as it needs them, and keeps them in its cache."""
    began = time.perf_counter()
    running = {f: subprocess.Popen([sys.executable, __file__, "once", f]) for f in formats}
    while running and time.perf_counter() - began < WARM_SECONDS:
        for format in [f for f, p in running.items() if p.poll() is not None]:
            code = running.pop(format).returncode
            print(f"{format}: compiled after {time.perf_counter() - began:.1f} s, exit status {code}", flush=True)
        time.sleep(0.1)
    for format, process in running.items():
        process.kill()
        print(f"{format}: not compiled within {WARM_SECONDS} s", flush=True)


def main(arguments: list[str]) -> None:
    """See the module."""
    match arguments:
        case ["-h" | "--help", *_]:
            raise SystemExit(__doc__)
        case ["warm", *formats]:
            return warm(formats or list(FORMATS))
    import mlx.core as mx

    match arguments:
        case ["once", format]:
            (made,) = weights(mx, format, *SHAPES[0], 1)
            for rows in ROWS:
                mx.eval(multiply(mx, format, random_x(mx, rows, SHAPES[0][1]), made))
            return
    print(f"MLX {version('mlx')} on {mx.default_device()}", flush=True)
    units = "us | GB/s | TFLOP/s"
    print("| format | rows |", " | ".join(f"{n}x{k}: {units}" for n, k in SHAPES), "| both in a chain, us |")
    print("|---" * 9 + "|", flush=True)
    for format in arguments or FORMATS:
        try:
            measured(mx, format)
        except (RuntimeError, ValueError, TypeError) as error:
            print(f"| {format} | {type(error).__name__}: {' '.join(str(error).split())[:300]} |", flush=True)
        mx.clear_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
