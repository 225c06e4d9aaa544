"""How `strixhlo.embedding` becomes a launch of the CPU kernel: one for any format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ops.embedding import operand_names
from ..ops.launch import Launch, Lowering, OperandTypes, Output, float_bits
from .fused_launches import stored_weight


def embedding(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering:
    """A workgroup a token."""
    names, k = operand_names(attributes), attributes["columns"]
    dtypes = {name: dtype for name, (_, dtype) in zip(names, types, strict=True)}
    (tokens,), n = types[0][0], types[1][0][0]
    weight = stored_weight(attributes["format"], {name: name for name in names[1:]}, dtypes, n)
    scalars = (k, float_bits(attributes["scale"]), 0, *weight.scalars)
    inputs = ("tokens", *weight.places, weight.bias)
    output = Output("y", (tokens, k), "f32")
    launch = Launch("strixhlo_embedding", inputs, (output,), scalars, tokens, bytes=True)
    return Lowering(names, (launch,), ("y",))
