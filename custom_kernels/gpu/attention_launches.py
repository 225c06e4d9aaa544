"""How attention becomes launches of the GPU kernels, and into how many parts the positions of a sequence go."""

from __future__ import annotations

from dataclasses import dataclass

from ..choices import Question
from ..ops.cache_types import BYTES
from ..ops.launch import Dimension, Launch, Output, float_bits
from .attention_kernels import (
    FLOAT32_QUERIES,
    MOST_KEY,
    MOST_VALUE,
    POOLS,
    flash_local_memory,
    flash_symbol,
    parts_of,
)
from .elements import with_elements
from .launches import GFX1151, Chip

THREADS, WAVES = 128, 4
COMBINED = 128  # columns of a row that a workgroup joins from its parts, or of FEW_PARTS a wave: of attention.h
FEW_PARTS = 8
SPLIT_BYTES = 512 * 1024  # of a head's keys and values: below, a second launch costs more than it saves
MOST_SPLITS = 64  # of attention.h
PARTS_BYTES = 128 * 1024 * 1024  # that parts take at most: 64 of eight tokens with the 128 latent heads of DeepSeek
MOST_DECODED = 8  # sequences of a decode entry
ROWS_OF_FEW = 8  # queries in two terms each
NARROW_BLOCK = 128  # head dimensions of which a wave holds the sums of two blocks of rows


def attention_launches(
    dtype: str,
    *,
    layer: int,
    tokens: int,
    sequences: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    pool_rows: int | Dimension,
    blocks_per_sequence: int,
    block_size: int,
    window: int = 0,
    scale: float,
    softcap: float = 0.0,
    value_dim: int = 0,
    sinks: bool = False,
    splits: int | None = None,
    x: str = "f32",
    chip: Chip = GFX1151,
) -> tuple[Launch, ...] | None:
    """q [tokens, q_heads, head_dim] of dtype `x` over the pools (dtype "fp8", "f16", "bf16" or "f32") -> y like q, or
    [tokens, q_heads, value_dim].

    head_dim: a multiple of 8, at most 576, and values of at most 512; else None, as for float32 pools where 256 is
    exceeded by what is no multiple of 32. sinks: an input of that name, float32 [q_heads]. splits: None chooses.
    """
    pools = 1 if value_dim else 2  # values that begin their keys are read with them
    value_dim = value_dim or head_dim
    if head_dim % 8 or value_dim % 8 or value_dim > head_dim:
        return None
    heads = sequences * kv_heads
    context = min(abs(window), blocks_per_sequence * block_size) if window else blocks_per_sequence * block_size
    call = _Call(dtype, x, tokens, sequences, q_heads, kv_heads, head_dim, value_dim, context, pools)
    found = _on_matrix_units(call, splits, chip) if dtype in POOLS else _in_float32(call, splits, chip)
    if found is None:
        return None
    symbol, tiles, splits = found
    local = flash_local_memory(symbol) if chip.rings else 0
    symbol, workgroups = with_elements(symbol, x), heads * tiles
    # A kernel without sinks reads nothing of what stands in their place.
    inputs = ("q", "k_pool", "v_pool", "block_table", "positions", "sinks" if sinks else "q")
    shape = (layer, tokens, sequences, q_heads, kv_heads, head_dim, value_dim, pool_rows, blocks_per_sequence)
    scalars = (*shape, block_size, window, float_bits(scale), float_bits(softcap), int(sinks))
    result = Output("y", (tokens, q_heads, value_dim), x)
    if splits == 1:
        return (Launch(symbol, inputs, (result,), scalars, workgroups, THREADS, local_memory=local),)
    parts = Output("parts", (tokens, q_heads, splits, value_dim), "f32")
    peaks = Output("peaks", (tokens, q_heads, splits, 2), "f32")
    return (
        Launch(symbol, inputs, (parts, peaks), (*scalars, splits), workgroups * splits, THREADS, local_memory=local),
        _combine(tokens * q_heads, value_dim, splits, q_heads, inputs[-1], result),
    )


def _combine(rows: int, value_dim: int, splits: int, q_heads: int, sinks: str, result: Output) -> Launch:
    """Joins the parts of each row, a head of a token."""
    few, pieces = splits <= FEW_PARTS, rows * -(-value_dim // COMBINED)
    symbol = with_elements("strixhlo_attention_combine_few" if few else "strixhlo_attention_combine", result.dtype)
    scalars = (value_dim, splits, q_heads, int(sinks == "sinks"), *(rows,) * few)
    workgroups = -(-pieces // WAVES) if few else pieces
    return Launch(symbol, ("parts", "peaks", sinks), (result,), scalars, workgroups, THREADS)


@dataclass(frozen=True)
class _Call:
    """Numbers of a call. context: the positions that a query can see at most; pools: that are read."""

    dtype: str
    x: str
    tokens: int
    sequences: int
    q_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    context: int
    pools: int

    @property
    def heads(self) -> int:
        return self.sequences * self.kv_heads

    @property
    def queries(self) -> int:
        """Of a sequence's key head."""
        return self.tokens // self.sequences * (self.q_heads // self.kv_heads)


def _on_matrix_units(call: _Call, splits: int | None, chip: Chip) -> tuple[str, int, int] | None:
    """(symbol, tiles of queries of a key head, parts of the context); None for heads that are too wide."""
    c = call
    if c.head_dim > MOST_KEY or c.value_dim > MOST_VALUE:
        return None
    blocks, rows = _rows(c.queries, c.head_dim, c.value_dim, c.x, chip)
    tiles = -(-c.queries // rows)
    if splits is None:
        # Of decoded tokens the same for any number of sequences: a row is summed in one order.
        alone = not blocks or c.tokens == c.sequences
        long = c.context * c.pools * c.head_dim * BYTES[c.dtype] > SPLIT_BYTES
        splits = chip.attention_wanted // ((c.kv_heads if alone else c.heads) * tiles) if long else 1
        held = 4 * (MOST_DECODED if alone else c.tokens) * c.q_heads * c.value_dim  # bytes of a part
        most = min(MOST_SPLITS, PARTS_BYTES // held)
        own = {"splits": max(1, min(splits, most))}
        kernel = f"{c.dtype}_d{c.head_dim}" + (f"v{c.value_dim}" if c.value_dim != c.head_dim else "")
        # As above, asked with no number of rows.
        shape = (c.q_heads, c.kv_heads, c.context)
        asked = Question("attention", with_elements(kernel, c.x), 0 if alone else c.tokens, shape)
        options = [{"splits": n} for n in sorted({own["splits"], 1, 2, 4, 8, 16, 32, 64}) if n <= most or n == 1]
        splits = int(chip.choices.pick(asked, own, options)["splits"])
    symbol = flash_symbol(c.dtype, c.head_dim, c.value_dim, blocks, chip.attention_part, splits > 1)
    return symbol, tiles, splits


def _in_float32(call: _Call, splits: int | None, chip: Chip) -> tuple[str, int, int] | None:
    """The same for float32 pools; None for dimensions that no kernel takes."""
    c = call
    capacity = next((d for d in FLOAT32_QUERIES if c.head_dim <= d), 0)
    if not capacity or (c.head_dim > 256 and (c.head_dim % 32 or c.value_dim % 32)):
        return None
    tiles = -(-c.queries // FLOAT32_QUERIES[capacity])
    if splits is None:
        by_bytes = c.context * 2 * c.head_dim * BYTES[c.dtype] // SPLIT_BYTES
        splits = max(1, min(by_bytes, chip.attention_wanted // (c.heads * tiles), 16))
    return f"strixhlo_attention_{'split_' if splits > 1 else ''}f32_d{capacity}", tiles, splits


def _rows(queries: int, head_dim: int, value_dim: int, x: str, chip: Chip) -> tuple[int, int]:
    """(blocks of rows of a wave, 0 where the waves share one, and rows of a workgroup) for so many queries of a key
    head: FlashShape of flash_attention.h."""
    if queries <= 2 * ROWS_OF_FEW:
        return 0, ROWS_OF_FEW
    block = (8 if x == "f32" else 16) * (WAVES // parts_of(value_dim, chip.attention_part))  # a block of each wave
    several = max(head_dim, value_dim) <= NARROW_BLOCK and queries > block
    blocks = chip.attention_blocks if several else 1
    return blocks, block * blocks
