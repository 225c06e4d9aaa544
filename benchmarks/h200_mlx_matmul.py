"""MLX's quantized matmul on an NVIDIA GPU: 1, 16, 128 and 512 rows of bfloat16 in MLX's own formats.

  python benchmarks/h200_mlx_matmul.py warm [ROWS ...]          # compiles MLX's kernels, all formats at once
  python benchmarks/h200_mlx_matmul.py [ROWS ...] [FORMAT ...]  # the table; all of those that are not named

Needs mlx[cuda] and a GPU, nothing of this project. MLX compiles a kernel when it first needs it, which takes half a
minute for each format and 16 rows, and again for many; MLX_PTX_CACHE_DIR is where it keeps them. Weights rotate over
512 MB or more, so that no cache helps. Calls that do not need each other's results are evaluated in one go, as many as
take some milliseconds: microseconds a call, the median of five, GB/s of weights (codes, scales, biases) and TFLOP/s.
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
WARM_SECONDS = 240

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


def measured(mx: Any, format: str, all_rows: Sequence[int]) -> None:
    """Print the format's lines, as they come."""
    of_shape = {}
    for n, k in SHAPES:
        bits = FORMATS[format][1]
        of_shape[n, k] = weights(mx, format, n, k, -(-ROTATING // (n * k * bits // 8)))
    for rows in all_rows:
        cells = []
        for n, k in SHAPES:
            x, made = random_x(mx, rows, k), of_shape[n, k]

            def calls(count: int, x: Any = x, made: list[Weight] = made) -> list[Any]:
                return [multiply(mx, format, x, made[i % len(made)]) for i in range(count)]

            took, size = seconds_a_call(mx, calls, len(made)), sum(p.nbytes for p in made[0] if p is not None)
            cells.append(f"{took * 1e6:.1f} | {size / took / 1e9:.0f} | {2 * rows * n * k / took / 1e12:.1f}")
        print(f"| {format} | {rows} | {' | '.join(cells)} |", flush=True)


def warm(all_rows: Sequence[int]) -> None:
    """Each format once in a process of its own."""
    began = time.perf_counter()
    wanted = [str(r) for r in all_rows]
    running = {f: subprocess.Popen([sys.executable, __file__, "once", f, *wanted]) for f in FORMATS}
    while running and time.perf_counter() - began < WARM_SECONDS:
        for format in [f for f, p in running.items() if p.poll() is not None]:
            code = running.pop(format).returncode
            print(f"{format}: compiled after {time.perf_counter() - began:.1f} s, exit status {code}", flush=True)
        time.sleep(0.1)
    for format, process in running.items():
        process.kill()
        print(f"{format}: not compiled within {WARM_SECONDS} s", flush=True)


def once(format: str, all_rows: Sequence[int]) -> None:
    """One call of each number of rows."""
    import mlx.core as mx

    (made,) = weights(mx, format, *SHAPES[0], 1)
    for rows in all_rows:
        mx.eval(multiply(mx, format, random_x(mx, rows, SHAPES[0][1]), made))


def main(arguments: list[str]) -> None:
    """See the module."""
    rows = [int(a) for a in arguments if a.isdigit()] or list(ROWS)
    match [a for a in arguments if not a.isdigit()]:
        case ["-h" | "--help", *_]:
            raise SystemExit(__doc__)
        case ["warm"]:
            return warm(rows)
        case ["once", format]:
            return once(format, rows)
        case formats if set(formats) <= set(FORMATS):
            chosen = formats or list(FORMATS)
        case _:
            raise SystemExit(__doc__)
    import mlx.core as mx

    print(f"MLX {version('mlx')} on {mx.default_device()}", flush=True)
    print("| format | rows |", " | ".join(f"{n}x{k}: us | GB/s | TFLOP/s" for n, k in SHAPES), "|")
    print("|---" * 8 + "|", flush=True)
    for format in chosen:
        try:
            measured(mx, format, rows)
        except (RuntimeError, ValueError, TypeError) as error:
            print(f"| {format} | {type(error).__name__}: {' '.join(str(error).split())[:300]} |", flush=True)
        mx.clear_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
