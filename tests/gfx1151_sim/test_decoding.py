"""Every instruction of strixhlo's kernels is known, and is what LLVM says it is (where an llvm-objdump is there)."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest

from gfx1151_sim.kernel_machine import all_code_objects
from gfx1151_sim.simulator import load, opcodes

OBJDUMPS = (
    "/opt/rocm/llvm/bin/llvm-objdump",
    *(f"llvm-objdump-{major}" for major in range(30, 18, -1)),
    *(f"/usr/lib/llvm-{major}/bin/llvm-objdump" for major in range(30, 18, -1)),
    "llvm-objdump",
)
LINE = re.compile(r"^\t(\S+)(.*)// ([0-9A-F]+): ([0-9A-F ]+)")


def disassembly() -> list[tuple[str, str, list[int]]]:
    """(mnemonic, operands, words) of every instruction of all kernels; skips without a fitting llvm-objdump."""
    paths = [str(path) for path in all_code_objects()]
    for name in OBJDUMPS:
        if not (tool := shutil.which(name)):
            continue
        done = subprocess.run([tool, "-d", "--mcpu=gfx1151", *paths], capture_output=True, text=True, check=False)
        found = [m.groups() for line in done.stdout.splitlines() if (m := LINE.match(line))]
        if len(found) > 1000:
            return [(name, rest, [int(w, 16) for w in words.split()]) for name, rest, _, words in found]
    pytest.skip("there is no llvm-objdump that knows gfx1151")


def decoded(words: list[int]) -> tuple[int, list[str]]:
    """Words used, and names."""
    code = np.array([*words, 0, 0, 0], np.uint32)
    name, second = ctypes.c_char_p(), ctypes.c_char_p()
    used = load().simulator_decode(
        code.ctypes.data_as(ctypes.c_void_p), len(code), ctypes.byref(name), ctypes.byref(second)
    )
    return used, [n.decode() for n in (name.value, second.value) if n]


def plain(mnemonic: str) -> str:
    """Without what an encoding adds to a name."""
    return re.sub(r"(_e32|_e64)?(_dpp)?$", "", mnemonic).replace("v_dual_", "v_").replace("v_cmpx_", "v_cmp_")


def test_kernels_decode_as_llvm_says() -> None:
    seen = set()
    for mnemonic, rest, words in disassembly():
        if mnemonic in ("s_code_end", ".long"):
            continue
        pair = re.search(r":: (v_dual_\w+)", rest)
        expected = [plain(mnemonic), *([plain(pair[1])] if pair else [])]
        used, names = decoded(words)
        assert (used, names) == (len(words), expected), f"{mnemonic}{rest}: {[hex(w) for w in words]}"
        seen.update(names)
    assert len(seen) > 100


def test_every_encoding_has_opcodes() -> None:
    counts: dict[str, int] = {}
    for encoding, *_ in opcodes():
        counts[encoding] = counts.get(encoding, 0) + 1
    assert len(counts) == 16 and sum(counts.values()) > 700, counts
