"""How `strixhlo.embedding` becomes a launch of the GPU kernel of its format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ops.embedding import operand_names
from ..ops.formats import FORMATS
from ..ops.launch import Launch, Lowering, OperandTypes, Output, ceil_div, float_bits
from .elements import with_elements
from .embedding_kernels import PREFIX
from .kernels import DENSE, weight_name
from .launches import run_of

THREADS = 128


def embedding(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    """None for a dense weight whose rows are no multiple of 8 columns."""
    names, k, format = operand_names(attributes), attributes["columns"], attributes["format"]
    if format not in FORMATS and (format not in DENSE or k % 8):
        return None
    (tokens,), n = types[0][0], types[1][0][0]
    name = weight_name(FORMATS[format], tuple(d for _, d in types[2:])) if format in FORMATS else format
    symbol, output = with_elements(PREFIX + name, attributes["dtype"]), Output("y", (tokens, k), attributes["dtype"])
    workgroups = ceil_div(tokens * (k // run_of(name)), THREADS)
    scalars = (tokens, n, k, float_bits(attributes["scale"]))
    return Lowering(names, (Launch(symbol, names, (output,), scalars, workgroups, THREADS),), ("y",))
