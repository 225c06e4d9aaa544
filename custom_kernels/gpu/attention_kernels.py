"""Attention's GPU kernels by name: which exist, and the lines of kernels.h's macros that make them.

In float32, for pools of that type: `strixhlo_attention_f32_d128`, by the largest head dimension. On the matrix units
(flash_attention.h): `strixhlo_attention_b1_f16_d576_v512p256`, where "few" stands for waves that share their rows and
"b1", "b2" for the blocks of rows that each has of its own. Those, too many for a table, are built for the head
dimensions of a program: of a key in steps of 32, of a value in steps of 64 for each of the one, two or four waves that
share it, with at most 256 (p256) or 128 for one.
"""

from __future__ import annotations

import re

from .elements import OF

# The largest head dimension of a float32 kernel -> queries that share what it reads.
FLOAT32_QUERIES = {64: 8, 128: 8, 256: 8, 1024: 2}
POOLS = {"fp8": "fp8", "f16": "f16", "bf16": "BF16"}  # type of a pool on the matrix units -> its type in cache.h
MOST_KEY, MOST_VALUE = 576, 512  # head dimensions on the matrix units
NARROW = 128  # head dimensions of which a ring has more keys
_FLASH = re.compile(r"strixhlo_attention_(few|b[12])(_split)?_(fp8|f16|bf16)_d(\d+)_v(\d+)p(\d+)")


def float32_kernels() -> dict[str, str]:
    """Symbol -> line, of the kernels for float32 pools and those that join the parts of a split."""
    lines = {"strixhlo_attention_combine": f"ATTENTION_COMBINE({OF})"}
    lines["strixhlo_attention_combine_few"] = f"ATTENTION_COMBINE_FEW({OF})"
    for dim, queries in FLOAT32_QUERIES.items():
        lines[f"strixhlo_attention_f32_d{dim}"] = f"ATTENTION({OF}, f32, {dim}, {queries})"
        lines[f"strixhlo_attention_split_f32_d{dim}"] = f"ATTENTION_SPLIT({OF}, f32, {dim}, {queries})"
    return lines


def parts_of(value_dim: int, part: int) -> int:
    """Waves that share a value, with at most `part` of its dimensions for each."""
    return next(n for n in (1, 2, 4) if value_dim <= n * part)


def flash_symbol(pool: str, head_dim: int, value_dim: int, blocks: int, part: int, split: bool) -> str:
    """The kernel for these head dimensions; blocks: of rows of a wave, 0 where waves share their rows."""
    key, step = -(-head_dim // 32) * 32, 64 * parts_of(value_dim, part)
    kind = f"b{blocks}" if blocks else "few"
    return f"strixhlo_attention_{kind}{'_split' if split else ''}_{pool}_d{key}_v{-(-value_dim // step) * step}p{part}"


def flash_local_memory(symbol: str) -> int:
    """Bytes of local memory that a launch of the kernel gives on NVIDIA's GPUs: RING of flash_rows.h; 0 for a kernel
    that is none on the matrix units."""
    found = _FLASH.fullmatch(symbol)
    if found is None:
        return 0
    few, wide = found[1] == "few", int(found[4]) > NARROW
    return ((76 if wide else 64) if few else (60 if wide else 53)) * 1024


def flash_line(symbol: str) -> str | None:
    """The line that makes a kernel on the matrix units, None for another symbol."""
    found = _FLASH.fullmatch(symbol)
    if found is None:
        return None
    kind, split, pool, key, value, part = found.groups()
    macro = "FLASH_SPLIT" if split else "FLASH"
    return f"{macro}({OF}, {POOLS[pool]}, {key}, {value}, {0 if kind == 'few' else kind[1:]}, {part})"
