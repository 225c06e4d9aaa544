"""Runs single instructions on chosen register contents, many lanes at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .assembler import assemble
from .device import CodeObject

LANES = 32
# Before the instruction: a, b, c in v[2:3], v[4:5], v[6:7]; the old result in v[8:9]; scalars a, b in s[16:17],
# s[18:19]; the old scalar result in s[24:25]; VCC, EXEC and SCC as given. After it, all results are stored.
BODY = """
  s_load_b128 s[4:7], s[0:1], 0x0
  s_waitcnt lgkmcnt(0)
  s_mul_i32 s8, s2, 1280
  s_add_u32 s4, s4, s8
  s_addc_u32 s5, s5, 0
  s_mul_i32 s8, s2, 896
  s_add_u32 s6, s6, s8
  s_addc_u32 s7, s7, 0
  v_lshlrev_b32_e32 v1, 2, v0
  {loads}
  s_load_b256 s[12:19], s[4:5], 0x400
  s_load_b64 s[24:25], s[4:5], 0x420
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_cmp_lg_u32 s14, 0
  s_mov_b32 vcc_lo, s12
  s_mov_b32 exec_lo, s13
  {instruction}
  s_cselect_b32 s20, 1, 0
  s_mov_b32 s21, vcc_lo
  s_mov_b32 s22, exec_lo
  s_mov_b32 exec_lo, -1
  v_mov_b32_e32 v10, s20
  v_mov_b32_e32 v11, s21
  v_mov_b32_e32 v12, s22
  v_mov_b32_e32 v13, s24
  v_mov_b32_e32 v14, s25
  {stores}
"""
LOADS = "\n  ".join(f"global_load_b32 v{2 + k}, v1, s[4:5] offset:{128 * k}" for k in range(8))
STORES = "\n  ".join(f"global_store_b32 v1, v{8 + k}, s[6:7] offset:{128 * k}" for k in range(7))


@dataclass
class Inputs:
    """Register contents for any number of groups of 32 lanes. Arrays: uint64 [lanes] (a 32-bit source uses the low
    half); scalar arrays: one value a group."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    old: np.ndarray
    scalar_a: np.ndarray
    scalar_b: np.ndarray
    scalar_old: np.ndarray
    vcc: np.ndarray
    exec: np.ndarray
    scc: np.ndarray


@dataclass
class Results:
    """What an instruction left: the result register pair of each lane, and scalars of each group."""

    vector: np.ndarray  # uint64 [lanes]
    scalar: np.ndarray  # uint64 [groups]
    scc: np.ndarray
    vcc: np.ndarray
    exec: np.ndarray


def pack(x: Inputs) -> np.ndarray:
    """The first argument of a kernel: uint32 [groups, 10, 32]."""
    groups = len(x.a) // LANES
    rows = np.zeros((groups, 10, LANES), np.uint32)
    for k, values in enumerate((x.a, x.b, x.c, x.old)):
        rows[:, 2 * k] = (values & 0xFFFFFFFF).reshape(groups, LANES)
        rows[:, 2 * k + 1] = (values >> np.uint64(32)).reshape(groups, LANES)
    for k, scalars in enumerate((x.vcc, x.exec, x.scc)):
        rows[:, 8, k] = scalars
    for k, wide in enumerate((x.scalar_a, x.scalar_b, x.scalar_old)):
        rows[:, 8, 4 + 2 * k] = wide & 0xFFFFFFFF
        rows[:, 8, 5 + 2 * k] = wide >> np.uint64(32)
    return rows


def instructions_body(text: str) -> str:
    """A kernel that loads the registers, runs the instructions and stores the results, uint32 [groups, 7, 32]."""
    return BODY.format(instruction=text, loads=LOADS, stores=STORES)


class Instructions:
    """Kernels that each run one instruction."""

    def __init__(self, texts: Mapping[str, str], folder: Path, denormals: int = 3) -> None:
        """texts: name -> instructions. denormals: 3 keeps those of float32, 0 flushes them."""
        bodies = {n: instructions_body(t) for n, t in texts.items()}
        self._object = CodeObject(assemble(bodies, folder / f"instructions-{denormals}.hsaco", denormals=denormals))

    def run(self, name: str, inputs: Inputs) -> Results:
        """One instruction on all groups."""
        packed = pack(inputs)
        groups = len(packed)
        out = np.zeros((groups, 7, LANES), np.uint32)
        self._object.launch(name, [groups], [LANES], [packed, out])
        wide = out.astype(np.uint64)
        high = np.uint64(32)
        return Results(
            vector=(wide[:, 0] | wide[:, 1] << high).reshape(-1),
            scalar=wide[:, 5, 0] | wide[:, 6, 0] << high,
            scc=out[:, 2, 0],
            vcc=out[:, 3, 0],
            exec=out[:, 4, 0],
        )


def random_inputs(rng: np.random.Generator, groups: int) -> Inputs:
    """Ordinary floats in all registers, some lanes inactive."""
    lanes = groups * LANES

    def pick(count: int) -> np.ndarray:
        pairs = rng.standard_normal((count, 2)).astype(np.float32) * np.float32(8)
        return pairs.view(np.uint64).reshape(-1)

    masks = rng.integers(1, 1 << 32, (2, groups), dtype=np.uint32)
    scalars = [pick(groups) for _ in range(3)]
    return Inputs(*(pick(lanes) for _ in range(4)), *scalars, vcc=masks[0], exec=masks[1], scc=masks[0] & 1)


def edge_inputs(seed: int, groups: int = 32) -> Inputs:
    """Values at which arithmetic goes wrong first, in random pairings."""
    rng = np.random.default_rng(seed)
    floats = [
        0,
        1,
        1.5,
        2.5,
        0.5,
        3.4e38,
        1e-38,
        1e-45,
        1e-30,
        65504,
        65520,
        6e-8,
        6e-5,
        2147483648.0,
        4294967295.0,
        1e-3,
    ]
    words = np.array([*floats, *(-f for f in floats), np.inf, -np.inf], np.float32).view(np.uint32).tolist()
    words += [0x7FC00000, 0x7F800001, 0xFFC12345, 1, 2, 31, 32, 33, 63, 64, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000]
    words += [
        0x7FFFFFFF,
        0x80000000,
        0xFFFFFFFF,
        0xFFFFFFFE,
        0x01020304,
        0x0C0D0700,
        0x3C003C00,
        0x7C00FC00,
        0x00018001,
    ]
    pool = np.array(words, np.uint64)

    def pick(count: int) -> np.ndarray:
        chosen = rng.choice(pool, count)
        noise = rng.integers(0, 1 << 32, count, dtype=np.uint64)
        low = np.where(rng.random(count) < 0.7, chosen, noise)
        return low | rng.choice(pool, count) << np.uint64(32)

    lanes = groups * LANES
    masks = rng.integers(0, 1 << 32, (3, groups), dtype=np.uint32)
    return Inputs(
        *(pick(lanes) for _ in range(4)),
        *(pick(groups) for _ in range(3)),
        vcc=masks[0],
        exec=np.where(rng.random(groups) < 0.5, np.uint32(0xFFFFFFFF), masks[1] | 1).astype(np.uint32),
        scc=masks[2] & 1,
    )
