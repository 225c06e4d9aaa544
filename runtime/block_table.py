"""Block tables: which blocks of the KV pools hold a sequence. They stay on the device until they change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..bundle import KVCache, TensorSpec

if TYPE_CHECKING:
    from .program import Program

Blocks = Sequence[Sequence[int]]  # [groups of layers][blocks of a sequence]


def own_table(kv: KVCache, positions: int) -> np.ndarray:
    """For a sequence of so many positions that has the pools to itself: int32 [1, blocks], or [groups, 1, blocks] for
    several groups of layers."""
    tables = np.array(kv.own_table(positions), np.int32)
    return tables if len(tables) == 1 else tables[:, None]


def batch_table(blocks: Sequence[Blocks], rows: int, groups: int, width: int) -> np.ndarray:
    """For the sequences of a batch: int32 [rows, width], or [groups, rows, width]; 0 where there is no block."""
    tables = np.zeros((groups, rows, width), np.int32)
    for row, sequence in enumerate(blocks):
        for table, own in zip(tables, sequence, strict=True):
            table[row, : len(own)] = own
    np.maximum(tables, 0, out=tables)
    return tables if len(tables) > 1 else tables[0]


class DeviceTables:
    """One table on the device for each entry point, that of its last call. A step whose sequences have begun no new
    block, which are 15 of 16 of a sequence alone, sends none."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._kept: dict[str, tuple[object, Any]] = {}

    def on_device(self, entry: str, spec: TensorSpec, key: object, make: Callable[[], np.ndarray]) -> Any:
        """The buffer of a table for a call of that entry point, which only reads it. key: equal where the table is;
        make: the table, asked for where it is another than that of the last call."""
        kept = self._kept.get(entry)
        if kept is None or kept[0] != key:
            kept = self._kept[entry] = key, self._program.send(entry, spec, make())
        return kept[1]

    def close(self) -> None:
        """Let go of the device buffers."""
        self._kept.clear()
