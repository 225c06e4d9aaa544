"""Finds clang, and builds and caches the kernel objects that `compile` links into a program."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..end_with_parent import ends_with_parent
from ..errors import StrixhloError
from ..replacement import scratch_directory

CPU_SOURCES = Path(__file__).parent / "cpu"
ROCM_CLANG = Path("/opt/rocm/llvm/bin/clang")
MINIMUM_CLANG = 20  # clang 19 miscompiles GPU kernels; one floor for every target

# The object goes into an ELF file that has no libc and no loader to speak of: nothing may be left undefined.
CPU_FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-ffreestanding",
    "-fno-builtin",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-threadsafe-statics",
    "-fno-math-errno",
    "-ffp-contract=off",  # a fused multiply-add is written as one, so that every row count rounds alike
    "-mprefer-vector-width=512",
)


@dataclass(frozen=True)
class Clang:
    """A clang driver: the command that starts it, and what it says about itself."""

    command: tuple[str, ...]
    version: str
    include: tuple[str, ...] = ()  # flags that name its own headers, where it does not find them itself


@dataclass(frozen=True)
class KernelObject:
    """A file with kernels, named by all that decides its content, so that a program can name it before it is built.

    build: makes it, unless it is there. StrixhloError when the compiler refuses or nothing can be written.
    """

    path: Path
    build: Callable[[], None]

    def built(self) -> Path:
        """The path, once the file is there."""
        self.build()
        return self.path


def _version(command: tuple[str, ...]) -> str:
    """First line of `clang --version`, "" when it does not run."""
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.splitlines()[0].strip() if done.stdout else ""


def _major(version: str) -> int:
    found = re.search(r"clang version (\d+)", version)
    return int(found.group(1)) if found else 0


def _ziglang() -> Path | None:
    spec = importlib.util.find_spec("ziglang")
    return Path(spec.origin).parent if spec and spec.origin else None


def _system_clangs() -> list[str]:
    names = ["clang", *(f"clang-{major}" for major in range(30, MINIMUM_CLANG - 1, -1))]
    return [path for name in names if (path := shutil.which(name))]


@lru_cache(maxsize=8)
def _find_clang(override: str) -> Clang:
    if override:
        version = _version((override,))
        if _major(version) < MINIMUM_CLANG:
            found = version or "a program that does not run"
            raise StrixhloError(f"STRIXHLO_CLANG={override} is {found}: name a clang >= {MINIMUM_CLANG}, or unset it")
        return Clang((override,), version)
    tried = []
    rocm = (str(ROCM_CLANG),)
    version = _version(rocm)
    if _major(version) >= MINIMUM_CLANG:
        return Clang(rocm, version)
    tried.append(f"{ROCM_CLANG} ({version or 'not there'})")
    if zig := _ziglang():
        command = (str(zig / "zig"), "clang")
        version = _version(command)
        if _major(version) >= MINIMUM_CLANG:
            return Clang(command, version, ("-isystem", str(zig / "lib" / "include")))
        tried.append(f"{' '.join(command)} ({version or 'does not run'})")
    for path in _system_clangs():
        version = _version((path,))
        if _major(version) >= MINIMUM_CLANG:
            return Clang((path,), version)
        tried.append(f"{path} ({version or 'does not run'})")
    raise StrixhloError(
        f"no clang >= {MINIMUM_CLANG} found (tried {', '.join(tried)}): `pip install ziglang==0.17.1`, "
        "or set STRIXHLO_CLANG to one"
    )


def find_clang() -> Clang:
    """The clang that builds kernels: STRIXHLO_CLANG, ROCm's, the ziglang wheel's, else a system clang >= 20.

    Raises StrixhloError when there is none, or when STRIXHLO_CLANG names something else.
    """
    return _find_clang(os.environ.get("STRIXHLO_CLANG", ""))


def cache_directory() -> Path:
    """Where built kernels are kept: STRIXHLO_CACHE, else strixhlo/ in XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("STRIXHLO_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "strixhlo"


def _cpu_source_files() -> list[Path]:
    return sorted(path for path in CPU_SOURCES.iterdir() if path.suffix in (".cpp", ".h"))


def kernel_sources_hash(target: str) -> str:
    """SHA-256 (hex) of everything that decides what the kernels of `target` ("cpu" or "cpu:...") compute.

    Raises ValueError for a target without kernels.
    """
    if target.partition(":")[0] != "cpu":
        raise ValueError(f"no kernels for target {target}")
    digest = hashlib.sha256()
    for path in _cpu_source_files():
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    digest.update("\0".join(CPU_FLAGS).encode())
    return digest.hexdigest()


def _target_flags(cpu: str, features: Sequence[str]) -> list[str]:
    if cpu in ("", "host", "native"):
        raise ValueError(f"cpu {cpu!r} means another machine in another place, and objects are cached: name the CPU")
    signs = {"+": "-m", "-": "-mno-"}
    return [
        f"-march={cpu}",
        *(signs[f[0]] + f[1:] if f[:1] in signs else f"-m{f}" for f in features),
    ]


def run_tool(command: Sequence[str], what: str) -> None:
    """Run a compiler or linker; StrixhloError with its first error."""
    path = shutil.which(command[0]) or command[0]
    done = subprocess.run(ends_with_parent([path, *command[1:]]), capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["?"]
        raise StrixhloError(f"{what} failed: {lines[0].strip()} (command: {' '.join(command)})")


def _build(cpu: str, features: Sequence[str], *, shared: bool) -> Path:
    clang = find_clang()
    flags = ["-target", "x86_64-linux-gnu", *_target_flags(cpu, features), *CPU_FLAGS]
    flags += ["-DSTRIXHLO_SHARED"] if shared else ["-fvisibility=hidden"]
    key = "\0".join([kernel_sources_hash("cpu"), clang.version, *flags])
    digest = hashlib.sha256(key.encode()).hexdigest()
    suffix = ".so" if shared else ".o"
    folder = cache_directory() / "kernels"
    result = folder / f"cpu-{cpu}-{digest[:24]}{suffix}"
    if result.exists():
        return result
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with scratch_directory(folder / "building") as scratch:
            built = scratch / "kernels.o"
            source = str(CPU_SOURCES / "kernels.cpp")
            run_tool(
                [*clang.command, *flags, *clang.include, "-c", source, "-o", str(built)], f"building kernels for {cpu}"
            )
            if shared:
                objects, built = built, scratch / "kernels.so"
                run_tool([*linker(), "-shared", "--no-undefined", str(objects), "-o", str(built)], "linking kernels")
            # Another process may have been faster: both files are the same, and the last one stays.
            built.replace(result)
    except OSError as error:
        raise StrixhloError(
            f"cannot write kernels to {folder} ({error.strerror}): set STRIXHLO_CACHE to a folder that can be written"
        ) from error
    return result


def linker() -> list[str]:
    """The command of an ELF linker for every target: the one inside of IREE's compiler."""
    spec = importlib.util.find_spec("iree.compiler")
    if spec is None or not spec.submodule_search_locations:
        raise StrixhloError("iree-lld not found: `pip install iree-base-compiler==3.13.0`")
    return [str(Path(spec.submodule_search_locations[0]) / "_mlir_libs" / "iree-lld"), "-flavor", "gnu"]


def build_cpu_object(cpu: str, features: Sequence[str] = ()) -> Path:
    """One relocatable x86-64 ELF object with every CPU kernel, built for `-march=<cpu>` plus `features`.

    cpu: what clang's -march takes ("x86-64-v4", "znver4"; not "native"). features: LLVM names ("avx512vnni", "+fma",
    "-avx512f"). The object needs no libc and leaves no symbol undefined. It is cached by its content's hash (sources,
    flags, compiler), written under a temporary name and renamed, so builds at the same time do no harm.
    Raises StrixhloError when no clang is found, the CPU or a feature is unknown, or the cache cannot be written.
    """
    return _build(cpu, features, shared=False)


def build_cpu_shared(cpu: str, features: Sequence[str] = ()) -> Path:
    """The same sources as `build_cpu_object`, as a shared object: tests and benchmarks call kernels through ctypes."""
    return _build(cpu, features, shared=True)
