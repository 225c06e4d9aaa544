"""Where an export puts the parts of weights, for programs that are compiled without one."""

from __future__ import annotations

from collections.abc import Mapping

from strixhlo.bundle import ALIGNMENT, Parameter
from strixhlo.export.archive import dtype_name
from strixhlo.export.layers.weights import Weight
from strixhlo.weight_spans import Span, weight_spans


def in_archive(weights: Mapping[str, Weight]) -> dict[str, Span]:
    """Where the weights are that programs can take whole."""
    parameters, end = {}, 0
    for name, of in weights.items():
        for part, array in of.parts.items():
            length = array.size * array.dtype.itemsize
            parameters[f"{name}.{part}"] = Parameter(
                dtype=dtype_name(array.dtype), shape=array.shape, offset=end, length=length
            )
            end += length + -length % ALIGNMENT
    return weight_spans(parameters)
