"""Builds the simulator's library with the machine's C compiler, or zig's, into strixhlo's cache."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from strixhlo.custom_kernels.toolchain import cache_directory

SOURCES = Path(__file__).parent
FLAGS = (
    "-shared",
    "-fPIC",
    "-O3",
    "-march=native",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",  # a multiplication and an addition are not one instruction here either
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
    "-pthread",
)


def compiler() -> list[str]:
    """The C compiler: CC, gcc, cc, or zig's of the ziglang package."""
    if own := os.environ.get("CC"):
        return shlex.split(own)
    for name in ("gcc", "cc"):
        if path := shutil.which(name):
            return [path]
    spec = importlib.util.find_spec("ziglang")
    assert spec and spec.origin, "no C compiler found: install gcc, or `pip install ziglang`"
    return [str(Path(spec.origin).parent / "zig"), "cc"]


def _machine() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "model name"))}))


@lru_cache(maxsize=1)
def library() -> Path:
    """libamdhip64.so, built when its sources, the compiler or the CPU are new."""
    command = compiler()
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h"))
    digest = hashlib.sha256("\0".join([version, _machine(), *FLAGS]).encode())
    for path in sources:
        digest.update(path.name.encode() + path.read_bytes())
    folder = cache_directory() / "gfx1151-sim" / digest.hexdigest()[:24]
    result = folder / "libamdhip64.so"
    if not result.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / result.name
            files = [str(path) for path in sources if path.suffix == ".c"]
            subprocess.run([*command, *FLAGS, *files, "-lm", "-o", str(built)], check=True)
            built.replace(result)
    return result
