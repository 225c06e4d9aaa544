"""The block table of one sequence that has a program's KV pools to itself."""

from __future__ import annotations

import numpy as np

from ..bundle import KVCache


def own_table(kv: KVCache, positions: int) -> np.ndarray:
    """For a sequence of so many positions: int32 [1, blocks], or [groups, 1, blocks] for several groups of layers."""
    tables = np.array(kv.own_table(positions), np.int32)
    return tables if len(tables) == 1 else tables[:, None]
