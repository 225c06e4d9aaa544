"""Runs iree-compile in a process of its own, so that a crash in the compiler is an error message here."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import iree.compiler
from iree.compiler import ir

from ..end_with_parent import ends_with_parent
from ..errors import StrixhloError

# The linker writes through a mapping, and gets the last one.
_DISK_IS_FULL = ("No space left on device", "File too large", "Bus error")
_EMPTY = "func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }"


def iree_compile(source: str, flags: Sequence[str], output: Path) -> None:
    """Compile MLIR text to a vmfb, or with `--compile-to` to text. StrixhloError with the compiler's first error."""
    run(source, [*flags, "-o", str(output)])


def executable_target(flags: Sequence[str]) -> str:
    """The #hal.executable.target attribute that the compiler itself uses under these flags."""
    text = run(_EMPTY, ["--compile-to=preprocessing", "-o", "-", *flags])
    with ir.Context():
        for op in ir.Module.parse(text).body.operations:
            if op.operation.name == "util.global":
                line = str(op.operation.attributes["initial_value"])
                return line[line.index("#hal.executable.target") : line.rindex("]")]
    raise StrixhloError(f"iree-compile names no executable target under {' '.join(flags)}")


def run(source: str, arguments: Sequence[str]) -> str:
    """Standard output of iree-compile with `source` on standard input."""
    tool = Path(iree.compiler.__file__).parent / "_mlir_libs" / "iree-compile"
    result = subprocess.run(
        ends_with_parent([str(tool), "-", *arguments]),
        input=source,
        encoding="utf-8",
        errors="replace",
        capture_output=True,
        check=False,
    )
    if result.returncode < 0:
        name = signal.Signals(-result.returncode).name
        raise StrixhloError(f"iree-compile was ended by {name}; free some memory, or report the program as a bug")
    if result.returncode and any(sign in result.stderr for sign in _DISK_IS_FULL):
        raise StrixhloError(
            f"iree-compile: no space left on device; free some where the bundle is, or in {tempfile.gettempdir()}"
        )
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if "error:" in line] or result.stderr.splitlines()[-1:]
        reason = lines[0].strip() if lines else f"it ended with code {result.returncode}"
        raise StrixhloError(f"iree-compile failed: {reason}")
    return result.stdout
