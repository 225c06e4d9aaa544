"""What an x86-64 CPU can do: the psABI's levels, and the extras that our kernels use.

compile asks which level this machine reaches; runtime checks that a program's features are there before it loads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# Flags of /proc/cpuinfo for each level of the x86-64 psABI (table 3.1), beyond the level below.
LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64": ("sse2",),
    "x86-64-v2": ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"),
    "x86-64-v3": ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
# Name for LLVM -> flag of /proc/cpuinfo; used on top of a level when this machine is the target.
EXTRAS = {"avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "avx512vbmi": "avx512vbmi", "avxvnni": "avx_vnni"}


def cpuinfo_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The flags of the first processor."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def required_flags(level: str, extra: Iterable[str]) -> tuple[str, ...]:
    """All flags of /proc/cpuinfo that a program for this level and these extras may need."""
    names = list(LEVELS)
    flags = [flag for name in names[: names.index(level) + 1] for flag in LEVELS[name]]
    return (*flags, *(EXTRAS[e] for e in extra))


def host_cpu(flags: frozenset[str] | None = None) -> tuple[str, tuple[str, ...]]:
    """The highest level that this machine reaches, and the extras that it has."""
    have = cpuinfo_flags() if flags is None else flags
    level = "x86-64"
    for name in LEVELS:
        if have.issuperset(required_flags(name, ())):
            level = name
    return level, tuple(e for e, flag in EXTRAS.items() if flag in have)


def cpu_model(path: Path = Path("/proc/cpuinfo")) -> str:
    """Name of the processors, and how many there are: "AMD Ryzen AI MAX+ 395 x 32"."""
    found = [line.partition(":")[2].strip() for line in path.read_text().splitlines() if line.startswith("model name")]
    return f"{found[0] if found else 'CPU'} x {max(len(found), 1)}"
