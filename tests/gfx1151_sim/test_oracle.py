"""Random kernels here and in another emulator, bit for bit: runs only where the environment names one.

GFX1151_SIM: a folder with a run_hsaco.py whose `run(path, kernel, grid, block, arrays)` changes arrays in place;
TINYGRAD: the checkout of the public tinygrad repository that it needs.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from gfx1151_sim.assembler import assemble
from gfx1151_sim.device import CodeObject
from gfx1151_sim.instruction_meanings import EXACT
from gfx1151_sim.instruction_runs import LANES, instructions_body, pack, random_inputs

pytestmark = pytest.mark.skipif(
    not (os.environ.get("TINYGRAD") and os.environ.get("GFX1151_SIM")), reason="TINYGRAD and GFX1151_SIM are not set"
)
# Integers and floats apart, since the sign and payload of a NaN differ. Left out is what the other emulator does
# otherwise than LLVM and the ISA say: 24-bit factors, -0 of v_rndne, signaling NaNs, output modifiers.
INTEGERS = [t for t in EXACT if not re.search(r"f16|f32|f64|u24|pk_|\[|dot", t)]
FLOATS = [
    t
    for t in EXACT
    if re.search(r"(add|sub|subrev|mul|fma|fmac|fmamk|fmaak|floor|ceil|trunc)_f32", t) and "mul:" not in t
]
KERNELS, LENGTH = 12, 24


def random_body(rng: np.random.Generator, texts: list[str]) -> str:
    """Instructions with random registers among v2 to v9."""
    chosen = [texts[k] for k in rng.integers(0, len(texts), LENGTH)]
    return "\n  ".join(re.sub(r"\bv\d+\b", lambda _: f"v{rng.integers(2, 10)}", text) for text in chosen)


def test_random_kernels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    bodies = {f"random{k}": instructions_body(random_body(rng, [INTEGERS, FLOATS][k % 2])) for k in range(KERNELS)}
    path = assemble(bodies, tmp_path / "random.hsaco")
    code = CodeObject(path)  # first: the other emulator changes CC
    sys.path.insert(0, os.environ["GFX1151_SIM"])
    from run_hsaco import run

    for name, body in bodies.items():
        packed = pack(random_inputs(rng, groups=2))
        ours, theirs = np.zeros((2, 2, 7, LANES), np.uint32)
        code.launch(name, [2], [LANES], [packed.copy(), ours])
        run(str(path), name, (2,), (LANES,), [packed.copy(), theirs])
        nan = [(x & 0x7FFFFFFF) > 0x7F800000 for x in (ours, theirs)]
        same = (ours == theirs) | (nan[0] & nan[1])
        assert same.all(), f"{name}: {np.argwhere(~same)[:4].tolist()}\n{body}"
