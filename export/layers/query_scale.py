"""A factor on q that grows with the position, which keeps attention sharp in long contexts (Llama 4, Ministral 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class QueryScale:
    """1 + beta * log(1 + floor((position + first) / original_context)), a table made at export. first: the number of
    the first position (Llama 4 counts from 1). table: the weight's name."""

    beta: float
    original_context: int
    first: int = 0
    table: str = "attention.query_scale"

    def values(self, context: int) -> np.ndarray:
        """float32 [context]."""
        turns = (np.arange(context) + self.first) // self.original_context
        return (1 + self.beta * np.log1p(turns)).astype(np.float32)
