"""Weights as one buffer each: the parts of a weight lie one after the other in the archive, so that a program can take
them as a single parameter, which has the weight's own name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .bundle import ALIGNMENT, Parameter

MOST_BYTES = 1 << 31  # offsets in a weight are int32 numbers of kernels


@dataclass(frozen=True)
class Span:
    """Where a weight lies in the archive, in bytes, and where in it each part begins: part -> (offset, dtype)."""

    offset: int
    length: int
    parts: Mapping[str, tuple[int, str]]

    @property
    def parameter(self) -> Parameter:
        """All of it, as a parameter of bytes."""
        return Parameter(dtype="i8", shape=(self.length,), offset=self.offset, length=self.length)


def weight_spans(parameters: Mapping[str, Parameter]) -> dict[str, Span]:
    """The weights of several parts whose parts lie in the archive in order, with nothing but padding between them.

    parameters: <weight>.<part> -> where it is. Weights that stay in a checkpoint's files are none of them."""
    weights: dict[str, dict[str, Parameter]] = {}
    for name, parameter in parameters.items():
        weight, _, part = name.rpartition(".")
        weights.setdefault(weight, {})[part] = parameter
    spans = {}
    for weight, parts in weights.items():
        ordered = sorted(parts.items(), key=lambda item: item[1].offset)
        begin, last = ordered[0][1].offset, ordered[-1][1]
        ends = [p.offset + p.length for _, p in ordered]
        gaps = [p.offset - end for (_, p), end in zip(ordered[1:], ends, strict=False)]
        inside = all(p.file is None for p in parts.values()) and all(0 <= gap < ALIGNMENT for gap in gaps)
        length = last.offset + last.length - begin
        if len(parts) > 1 and inside and length < MOST_BYTES and weight not in parameters:
            spans[weight] = Span(begin, length, {part: (p.offset - begin, p.dtype) for part, p in ordered})
    return spans
