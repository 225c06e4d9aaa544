"""An H200 whose matmuls of many rows take one tile, whatever the rules say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strixhlo.custom_kernels.choices import Choices, Option, Question
from strixhlo.custom_kernels.gpu.launches import H200, Chip


@dataclass(frozen=True)
class Always(Choices):
    """One tile whatever the shape."""

    tile: str = ""

    def pick(self, question: Question, rule: Option, options: Sequence[Option]) -> Option:
        wanted = {"tile": self.tile}
        return wanted if question.choice.endswith("gemm_tile") and wanted in options else rule


def chip(tile: str) -> Chip:
    return replace(H200, choices=Always(tile=tile))
