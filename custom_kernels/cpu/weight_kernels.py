"""Which CPU kernels read a quantized format: the name in their symbols, and the scalars that say how its groups lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..ops.formats import FORMATS
from ..ops.formats_affine import AffineFormat
from ..ops.formats_float import FloatFormat
from ..ops.formats_gguf import RUN

REALS = ("f32", "f16", "bf16")  # as in formats.h
ALL = 31  # shift of a scale that all runs of a row, or all rows, share


@dataclass(frozen=True)
class WeightKernel:
    """name: "q4_0", "affine4", "fp8" ...; scalars: the last ones of a matmul's; integer: 8-bit activations too."""

    name: str
    scalars: tuple[int, ...] = ()
    integer: bool = True


def weight_kernel(format: str, dtypes: Mapping[str, str]) -> WeightKernel:
    """The kernels of a key of FORMATS. dtypes: of the parts by name; only those of affine scales and biases matter."""
    fmt = FORMATS[format]
    if isinstance(fmt, AffineFormat):
        reals = (REALS.index(dtypes[part]) for part in ("scale", "bias"))
        return WeightKernel(f"affine{fmt.bits}", (_shift(fmt.group // RUN), *reals))
    if not isinstance(fmt, FloatFormat):
        return WeightKernel(format)
    if fmt.scale != "f32":
        return WeightKernel(format, integer=fmt.element == "e2m1")
    rows, columns = fmt.block
    return WeightKernel("fp8", (_shift(columns // RUN), _shift(rows)), integer=False)


def _shift(count: int) -> int:
    """log2 of a power of two; ALL for 0."""
    return count.bit_length() - 1 if count else ALL
