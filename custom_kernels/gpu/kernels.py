"""The GPU kernels by symbol, and the code objects that hold those which a program needs.

One source for every target: HSACO for AMD GPUs (wave32), PTX for NVIDIA GPUs, and a shared object for x86-64 in which
tests run each kernel on the CPU.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path

from ...errors import StrixhloError
from ...replacement import scratch_directory
from ..ops.formats import FORMATS, WeightFormat
from ..ops.formats_affine import AFFINE_FORMATS, AffineFormat
from ..toolchain import KernelObject, cache_directory, find_clang, linker, run_tool
from .attention_kernels import POOLS as ATTENTION_POOLS
from .attention_kernels import flash_line, float32_kernels
from .elements import ELEMENTS, OF, elements_of
from .embedding_kernels import PREFIX as EMBEDDING
from .embedding_kernels import embedding_line
from .fused_kernels import fused_line
from .gemm_tiles import EXPERT_MATRIX_TILE, EXPERT_TILE, tile_of
from .moe_kernels import expert_kernels, expert_tile_kernels, nvidia_expert_kernels, routing_kernels
from .moe_pairs_kernels import pairs_line

SOURCES = Path(__file__).parent
GEMV_ROWS = (1, 2, 4, 8)  # most rows of x that a gemv kernel takes
GEMV_WEIGHT_ROWS = 2  # of one lane: they share what is loaded of x
# Formats whose rows stripes.h reads whatever their length; of the others a multiple of SPAN columns.
STRIPED = ("q4_0", "q4_1", "q8_0", "mxfp4", "nvfp4", "mxfp8", "fp8_tensor", "fp8_channel", "fp8_block128")
STRIPED_BITS = (4, 8)  # the same of affine formats
SPAN = 128
# In symbols -> waves of a workgroup, which share a stripe. Those of 16 waves are alone on a multiprocessor.
STRIPES = {"stripes": 8, "deep_stripes": 16}
GEMM_ROWS = (16, 64)  # rows of x in a gemm kernel's tile
DENSE = ("f32", "f16", "bf16")
WIDE = ("f32", "f16")  # weights that bfloat16 does not hold exactly: no matrix units
POOLS = {**ATTENTION_POOLS, "f32": "f32"}  # type of a pool -> its type in cache.h
AT_ONCE = 2  # workgroups of an NVIDIA multiprocessor: 128 registers a lane
PTX_VERSION = 78  # CUDA 11.8
PTX_VERSIONS = {"sm_89": 81}  # CUDA 12.1, which converts fp8

FLAGS = (
    "-std=c++20",
    "-O3",
    "-ffreestanding",
    "-fno-exceptions",
    "-fno-rtti",
    "-ffp-contract=off",  # a fused multiply-add is written as one, so that every row count rounds alike
    "-Wall",
    "-Wextra",
    "-Werror",
)


def weight_name(fmt: WeightFormat, dtypes: tuple[str, ...] = ()) -> str:
    """What the kernels of a format are called; dtypes: of an affine format's scale and bias."""
    return f"{fmt.name}_{'_'.join(dtypes)}" if isinstance(fmt, AffineFormat) else fmt.name


def threads(symbol: str) -> int:
    """Of a workgroup of the kernel; gemv kernels: as built for NVIDIA GPUs."""
    if tile := re.search(r"_m(\d+x\dx\d|\d+w|\d+r\dx\d+)", symbol):
        return tile_of(tile[1]).threads
    if symbol.startswith("strixhlo_moe_one") or symbol == "strixhlo_argmax":
        return 512
    if stripes := re.match(r"strixhlo_(?:fused_)?((?:deep_)?stripes)_", symbol):
        return 32 * STRIPES[stripes[1]]
    small = "attention" in symbol or symbol.startswith(tuple(f"strixhlo_gemm_{name}_" for name in WIDE))
    return 128 if small else 256


def stripe_local(symbol: str) -> int:
    """Bytes of local memory that a launch of a kernel of stripes gives."""
    return 1024 * (98 if threads(symbol) == 256 else 226)


def _kernels() -> dict[str, str]:
    lines: dict[str, str] = {}
    for name in (*(f for f in FORMATS if f not in AFFINE_FORMATS), *DENSE):
        lines |= {f"strixhlo_gemv_{name}_m{m}": f"GEMV({OF}, {name}, {m}, {GEMV_WEIGHT_ROWS})" for m in GEMV_ROWS}
        gemm = "GEMM" if name in WIDE else "MATRIX_GEMM"
        lines |= {f"strixhlo_gemm_{name}_m{m}": f"{gemm}({OF}, {name}, {m})" for m in GEMM_ROWS}
        parts = FORMATS[name].parts(1, 256) if name in FORMATS else ("dense",)
        lines |= expert_kernels(name, name, parts, ())
        if name != "f32":
            lines |= expert_tile_kernels(name, name, parts, (), EXPERT_MATRIX_TILE)
        if name in FORMATS:
            for m, (stripes, waves) in product(GEMV_ROWS, STRIPES.items()):
                lines[f"strixhlo_{stripes}_{name}_m{m}"] = f"STRIPES({OF}, {name}, {m}, {waves})"
    for fmt, (scale, bias) in product(AFFINE_FORMATS.values(), product(DENSE, DENSE)):
        name = weight_name(fmt, (scale, bias))
        of = f"{fmt.bits}, {fmt.group}, {scale}, {bias}".replace("bf16", "BF16")
        lines |= {f"strixhlo_gemv_{name}_m{m}": f"AFFINE_GEMV({OF}, {m}, {GEMV_WEIGHT_ROWS}, {of})" for m in GEMV_ROWS}
        lines |= {f"strixhlo_gemm_{name}_m{m}": f"AFFINE_GEMM({OF}, {m}, {of})" for m in GEMM_ROWS}
        lines |= expert_kernels(name, fmt.name, fmt.parts(1, 256), (scale, bias))
        lines |= expert_tile_kernels(name, fmt.name, fmt.parts(1, 256), (scale, bias), EXPERT_MATRIX_TILE)
        for m, (stripes, waves) in product(GEMV_ROWS, STRIPES.items()):
            lines[f"strixhlo_{stripes}_{name}_m{m}"] = f"AFFINE_STRIPES({OF}, {m}, {waves}, {of})"
    for pool, name in POOLS.items():
        lines[f"strixhlo_rope_and_append_{pool}"] = f"ROPE_AND_APPEND({OF}, {name})"
    lines["strixhlo_argmax"] = "ARGMAX"
    lines |= {"strixhlo_norm_rows": f"NORM_ROWS({OF})", "strixhlo_add_normed": f"ADD_NORMED({OF})"}
    lines["strixhlo_layer_norm_rows"] = f"LAYER_NORM_ROWS({OF})"
    lines |= {"strixhlo_finish": f"FINISH({OF})", "strixhlo_finish_more": f"FINISH_MORE({OF})"}
    return lines | float32_kernels() | routing_kernels()


def _nvidia_kernels() -> dict[str, str]:
    lines: dict[str, str] = {}
    for name in (f for f in FORMATS if f not in AFFINE_FORMATS):
        lines |= nvidia_expert_kernels(name, name, FORMATS[name].parts(1, 256), ())
        lines |= expert_tile_kernels(name, name, FORMATS[name].parts(1, 256), (), EXPERT_TILE)
    lines |= nvidia_expert_kernels("bf16", "bf16", ("dense",), ())
    for name in DENSE:
        lines |= expert_tile_kernels(name, name, ("dense",), (), EXPERT_TILE)
    for fmt, dtypes in product(AFFINE_FORMATS.values(), product(DENSE, DENSE)):
        of = (weight_name(fmt, dtypes), fmt.name, fmt.parts(1, 256), dtypes)
        lines |= nvidia_expert_kernels(*of) | expert_tile_kernels(*of, EXPERT_TILE)
    return lines


# Symbol, of float32 activations -> the line of kernels.h's macros that makes it, with {symbol} and {x}, their type.
KERNELS: dict[str, str] = _kernels()
NVIDIA_KERNELS: dict[str, str] = _nvidia_kernels()  # those that have no build for AMD's GPUs
_PARTS: dict[str, Sequence[str]] = {name: tuple(fmt.parts(1, 256)) for name, fmt in FORMATS.items()}
_PARTS |= dict.fromkeys(DENSE, ("dense",))


def kernel_line(symbol: str) -> str:
    """The line of kernels.h's macros that makes a kernel; KeyError for what is none. Symbols may name the type of
    activations (elements.py); fused matmuls, experts of few tokens, and attention on the matrix units, are too many for
    a table."""
    plain, dtype = elements_of(symbol)
    others = embedding_line if plain.startswith(EMBEDDING) else fused_line
    line = KERNELS.get(plain) or NVIDIA_KERNELS.get(plain) or pairs_line(plain, _PARTS)
    line = line or flash_line(plain) or others(plain, _PARTS)
    if "{x}" not in line and dtype != "f32":
        raise KeyError(symbol)
    return line.replace("{symbol}", symbol).replace("{x}", ELEMENTS[dtype])


def sources_hash() -> str:
    """SHA-256 (hex) of everything that decides what the GPU kernels compute."""
    digest = hashlib.sha256("\0".join(FLAGS).encode())
    for path in sorted(p for p in SOURCES.iterdir() if p.suffix in (".cpp", ".h")):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def build_hsaco(chip: str, symbols: Iterable[str]) -> Path:
    """`hsaco`, built."""
    return hsaco(chip, symbols).built()


def build_ptx(chip: str, symbols: Iterable[str]) -> Path:
    """`ptx_object`, built."""
    return ptx_object(chip, symbols).built()


def hsaco(chip: str, symbols: Iterable[str]) -> KernelObject:
    """A code object for an AMD GPU ("gfx1151") with these kernels, its assembly beside it (same name, `.s`).

    It is cached by content. Raises KeyError for a symbol that is no kernel, StrixhloError as `find_clang` does.
    """
    flags = [
        "-target",
        "amdgcn-amd-amdhsa",
        f"-mcpu={chip}",
        "-mno-wavefrontsize64",
        "-nogpulib",
        "-mcode-object-version=5",
    ]
    what = f"building kernels for {chip}"

    def assemble(clang: list[str], source: Path, out: Path) -> None:
        assembly, relocatable = out.with_suffix(".s"), out.with_suffix(".o")
        run_tool([*clang, *flags, *FLAGS, f"-I{SOURCES}", "-S", str(source), "-o", str(assembly)], what)
        run_tool([*clang, *flags, "-c", str(assembly), "-o", str(relocatable)], what)
        run_tool([*linker(), "-shared", "--no-undefined", str(relocatable), "-o", str(out)], what)

    return _cached(chip, [*flags, *FLAGS], symbols, (".s", ".hsaco"), assemble)


def ptx_object(chip: str, symbols: Iterable[str]) -> KernelObject:
    """PTX text for an NVIDIA GPU ("sm_80") with these kernels. Cached; raises as `hsaco` does."""
    version = PTX_VERSIONS.get(chip, PTX_VERSION)
    flags = ["-target", "nvptx64-nvidia-cuda", f"-march={chip}", f"--cuda-feature=+ptx{version}", "-nogpulib"]

    def assemble(clang: list[str], source: Path, out: Path) -> None:
        run_tool([*clang, *flags, *FLAGS, f"-I{SOURCES}", "-S", str(source), "-o", str(out)], f"kernels for {chip}")
        out.write_text(_bounded(out.read_text()))

    names = sorted(set(symbols))
    bounds = [_bounds(name) for name in names]
    return _cached(chip, [*flags, *FLAGS, *bounds], names, (".ptx",), assemble)


def _bounds(symbol: str) -> str:
    """PTX directives of a kernel: the threads of a workgroup, and that two of stripes, and of few tokens' spans, run at
    once. So the driver gives them enough registers and no more."""
    stripes = "_stripes_" in symbol or re.search(r"_m\d+r[1-4]x\d+", symbol)
    several = bool(stripes or re.match(r"strixhlo_moe_(gate_up|gate_up_biased|rows)_few_spans_", symbol))
    return f".maxntid {threads(symbol)}, 1, 1\n" + f".minnctapersm {AT_ONCE}\n" * (several and threads(symbol) == 256)


def _bounded(ptx: str) -> str:
    """PTX with the directives of each kernel."""

    def bound(entry: re.Match[str]) -> str:
        return f"{entry[1]}{_bounds(entry[2])}{{"

    return re.sub(r"(\.entry (\w+)\([^)]*\)\s*(?://[^\n]*\s*)?)\{", bound, ptx)


def build_host(symbols: Iterable[str], march: str = "x86-64-v3") -> Path:
    """The kernels as a shared object for x86-64, whose `strixhlo_launch` (host.cpp) runs one on the CPU. Cached."""
    flags = ["-target", "x86_64-linux-gnu", f"-march={march}", "-fPIC", "-fno-builtin", "-fno-stack-protector"]

    def assemble(clang: list[str], source: Path, out: Path) -> None:
        objects = [str(out.with_suffix(".1.o")), str(out.with_suffix(".2.o"))]
        for path, made in zip((source, SOURCES / "host.cpp"), objects, strict=True):
            include = [f"-I{SOURCES}", *find_clang().include]
            run_tool([*clang, *flags, *FLAGS, *include, "-c", str(path), "-o", made], "GPU kernels for the CPU")
        run_tool([*linker(), "-shared", "--no-undefined", *objects, "-o", str(out)], "linking GPU kernels for the CPU")

    return _cached("host", [*flags, *FLAGS], symbols, (".so",), assemble).built()


def _cached(
    chip: str,
    flags: list[str],
    symbols: Iterable[str],
    suffixes: tuple[str, ...],
    assemble: Callable[[list[str], Path, Path], None],
) -> KernelObject:
    """A source with these kernels, built unless it is there; files with `suffixes` are kept, the last is the object."""
    clang = find_clang()
    source = "".join(f"{line}\n" for line in ('#include "kernels.h"', *(kernel_line(s) for s in sorted(set(symbols)))))
    key = "\0".join([sources_hash(), source, clang.version, *flags])
    stem = f"gpu-{chip}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
    folder = cache_directory() / "kernels"

    def build() -> None:
        if all((folder / f"{stem}{s}").exists() for s in suffixes):
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with scratch_directory(folder / "building") as scratch:
                path = scratch / "kernels.cpp"
                path.write_text(source)
                built = scratch / f"out{suffixes[-1]}"
                assemble(list(clang.command), path, built)
                for suffix in suffixes:
                    built.with_suffix(suffix).replace(folder / f"{stem}{suffix}")
        except OSError as error:
            raise StrixhloError(
                f"cannot write kernels to {folder} ({error.strerror}):"
                " set STRIXHLO_CACHE to a folder that can be written"
            ) from error

    return KernelObject(folder / f"{stem}{suffixes[-1]}", build)
