"""Registers, spills and instructions of GPU kernels as NVIDIA's assembler makes them; needs no GPU.

  python benchmarks/nvidia_counts.py                                   # the kernels of docs/performance.md's counts
  python benchmarks/nvidia_counts.py strixhlo_stripes_q4_0_m1_xbf16    # these
  python benchmarks/nvidia_counts.py --cuda-bin /usr/local/cuda/bin --arch sm_90

The loop that is counted is the innermost one of those with matrix instructions, the one with most of them, or the one
around it where that is hardly longer. Of its instructions: those on the shortest way round that asks for the next
weights, which leaves out what only some rounds do; all of them; the matrix units'. A round of `stripes` is 2 KB of a
wave's codes of 4 and 8 bits, one of the experts' tiles (`m64x4x1`) 128 products of 16 x 16 weights and 8 rows.

Needs this project's clang, and ptxas and nvdisasm (on PATH, or in --cuda-bin): of a CUDA toolkit from 12.1 on, or those
in triton's wheel (triton/backends/nvidia/bin). Kernels' names are made in custom_kernels/gpu/kernels.py; `strixhlo
compile --keep-intermediates FOLDER` shows which ones a program launches.
"""

from __future__ import annotations

import argparse
import heapq
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FEW = ("mxfp4", "nvfp4", "q4_1", "q4_k", "q4_0", "q8_0", "fp8_channel", "mxfp8", "q5_k", "q6_k")
AFFINE = tuple(f"affine{bits}_g64_bf16_bf16" for bits in (4, 5, 6, 8))
EXPERTS = ("gate_up_gemm_affine4_g64_bf16_bf16", "gate_up_biased_gemm_mxfp4", "rows_gemm_affine4_g64_bf16_bf16")
NAMED = (
    *(f"strixhlo_stripes_{name}_m1{x}" for name in (*FEW, *AFFINE) for x in ("", "_xbf16")),
    *(f"strixhlo_moe_{name}_m64x4x1{x}" for name in (*EXPERTS, "rows_gemm_mxfp4") for x in ("", "_xbf16")),
)
ATTENTION = ("few_split_f16", "few_split_fp8", "b1_f16")  # decoding 128 dimensions in parts, prompts
NAMED += tuple(f"strixhlo_attention_{name}_d128_v128p256_xbf16" for name in ATTENTION)
NAMED += tuple(f"strixhlo_moe_one_normed_added_gemv_{name}_xbf16" for name in ("mxfp4", "affine4_g64_bf16_bf16"))
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([\w$]+)", re.MULTILINE)
_LABEL = re.compile(r"^(\.L_\w+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
HARDLY_LONGER = 1.1  # a loop around another one, whose header was moved out of it
_REQUESTS = ("LDGSTS", "LDG")
_ENDS, _MATRIX = ("EXIT", "RET", "BRX", "JMX"), ("HMMA", "IMMA", "QMMA", "HGMMA", "IGMMA")


@dataclass(frozen=True)
class Instruction:
    """Its name without modifiers, and the instructions that may be next."""

    name: str
    following: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """From the instruction `begin` to `end`, which goes back there: instructions on the shortest way round that asks
    for data, of all its ways together, and how many of these are the matrix units'."""

    begin: int
    end: int
    shortest: int
    all: int
    matrix: int


def instructions(text: str) -> list[Instruction]:
    """Of one function, as nvdisasm -c prints it."""
    labels: dict[str, int] = {}
    found: list[tuple[str, bool, str | None]] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif one := _INSTRUCTION.match(line):
            name, target = one[2].partition(".")[0], _TARGET.search(one[3])
            found.append((name, bool(one[1]), target[1] if target and name in ("BRA", "JMP") else None))
    made = []
    for i, (name, guarded, target) in enumerate(found):
        after = [labels[target]] if target in labels else []
        falls = guarded or not (target or name in _ENDS)
        made.append(Instruction(name, tuple(n for n in (*after, *([i + 1] * falls)) if n < len(found))))
    return made


def loops_of(code: Sequence[Instruction]) -> list[Loop]:
    """Each branch back with the instructions between it and its target that lie on a way round."""
    found = []
    for end, one in enumerate(code):
        for begin in one.following:
            way = _reaching(code, begin, end) if begin < end else set()
            if begin in way:
                names = [code[i].name for i in way]
                asks = next((name for name in _REQUESTS if name in names), "")
                steps = _steps(code, begin, end, asks)
                found.append(Loop(begin, end, steps, len(names), sum(n in _MATRIX for n in names)))
    return found


def _reaching(code: Sequence[Instruction], begin: int, end: int) -> set[int]:
    """Those from begin to end from which end can be reached by branches forward."""
    reached = {end}
    for i in range(end - 1, begin - 1, -1):
        if any(n > i and n in reached for n in code[i].following):
            reached.add(i)
    return reached


def _steps(code: Sequence[Instruction], begin: int, end: int, asks: str) -> int:
    """Instructions on the shortest way from begin to end, both counted, that passes one of this name ("": any)."""
    waiting = [(1, begin, asks in ("", code[begin].name))]
    seen: set[tuple[int, bool]] = set()
    while waiting:
        steps, at, asked = heapq.heappop(waiting)
        if at == end and asked:
            return steps
        if (at, asked) in seen or at == end:
            continue
        seen.add((at, asked))
        for n in code[at].following:
            if begin <= n <= end:
                heapq.heappush(waiting, (steps + 1, n, asked or code[n].name == asks))
    return 0


def main_loop(loops: Sequence[Loop]) -> Loop | None:
    """The one that is counted."""
    loops = [loop for loop in loops if loop.matrix] or loops
    inner = [a for a in loops if not any(_inside(b, a) for b in loops)]
    main = max(inner, key=lambda loop: (loop.matrix, loop.all), default=None)
    around = [a for a in loops if main and _inside(main, a) and a.all <= HARDLY_LONGER * main.all]
    return max(around, key=lambda loop: loop.all, default=main)


def _inside(a: Loop, b: Loop) -> bool:
    return b.begin <= a.begin and a.end <= b.end and a != b


def registers(report: str) -> Mapping[str, tuple[int, int]]:
    """What ptxas -v says: kernel -> registers, bytes of registers that are stored for lack of them."""
    found: dict[str, tuple[int, int]] = {}
    name, spilled = "", 0
    for line in report.splitlines():
        if start := re.search(r"Compiling entry function '(\w+)'", line):
            name, spilled = start[1], 0
        elif spills := re.search(r"(\d+) bytes spill stores", line):
            spilled = int(spills[1])
        elif (used := re.search(r"Used (\d+) registers", line)) and name:
            found[name] = int(used[1]), spilled
    return found


def tool(name: str, folder: Path | None) -> str:
    """The program's path; exits with one line where it is not there."""
    path = str(folder / name) if folder and (folder / name).is_file() else None if folder else shutil.which(name)
    if path is None:
        where = f"in {folder}" if folder else "on PATH"
        sys.exit(
            f"nvidia_counts: no {name} {where}; give --cuda-bin FOLDER, that of a CUDA toolkit from 12.1 on or"
            " triton/backends/nvidia/bin of triton's wheel"
        )
    return path


def ran(*command: str) -> str:
    """What it writes; exits with the line that says what is wrong where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        sys.exit(f"nvidia_counts: {Path(command[0]).name}: {said[0] if said else f'ended with {done.returncode}'}")
    return done.stdout + done.stderr


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("symbols", nargs="*", metavar="SYMBOL", help="kernels by name; default: those of the document")
    parser.add_argument("--cuda-bin", type=Path, metavar="FOLDER", help="where ptxas and nvdisasm are; default: PATH")
    parser.add_argument("--arch", default="sm_90", help="the GPU that ptxas assembles for; default: sm_90 (H100, H200)")
    options = parser.parse_args()
    ptxas, nvdisasm = tool("ptxas", options.cuda_bin), tool("nvdisasm", options.cuda_bin)
    from strixhlo.custom_kernels.gpu.kernels import build_ptx, kernel_line
    from strixhlo.errors import StrixhloError

    symbols = list(dict.fromkeys(options.symbols or NAMED))
    for symbol in symbols:
        try:
            kernel_line(symbol)
        except (KeyError, ValueError):
            sys.exit(f"nvidia_counts: no kernel is called {symbol}; names are in custom_kernels/gpu/kernels.py")
    try:
        ptx = build_ptx("sm_89", symbols)
    except StrixhloError as error:
        sys.exit(f"nvidia_counts: {error}")
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernels.cubin"
        used = registers(ran(ptxas, f"-arch={options.arch}", "-v", str(ptx), "-o", str(cubin)))
        _, *sections = _SECTION.split(ran(nvdisasm, "-c", str(cubin)))
    code = dict(zip(sections[::2], sections[1::2], strict=True))
    print(
        f"| kernel, {options.arch} | registers | bytes spilled | loop, shortest way | all of it | of the matrix units |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    for symbol in symbols:
        count, spilled = used[symbol]
        loop = main_loop(loops_of(instructions(code[symbol])))
        counts = (loop.shortest, loop.all, loop.matrix) if loop else ("", "", "")
        print(f"| {symbol.removeprefix('strixhlo_')} | {count} | {spilled} | {' | '.join(map(str, counts))} |")


if __name__ == "__main__":
    main()
