"""What an entry point of a compiled program takes and returns, held against what the manifest says that it does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..bundle import TensorSpec

_TENSOR = re.compile(r"%(input|output)\d+: tensor<([^>]*)>")


def signature_problem(function: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    """ "" when a function of IREE's, by the declaration that the compiler leaves in the program, has these inputs and
    outputs; else what is different. A dimension that is chosen at run time ("?") goes with any."""
    found = _TENSOR.findall(function.reflection.get("iree.abi.declaration", ""))
    for kind, specs in (("input", inputs), ("output", outputs)):
        types = [text for direction, text in found if direction == kind]
        if len(types) != len(specs):
            return f"has {len(types)} {kind}s, not {len(specs)}"
        for text, spec in zip(types, specs, strict=True):
            *shape, dtype = text.split("x")
            same = len(shape) == len(spec.shape) and all(
                d in ("?", str(n)) for d, n in zip(shape, spec.shape, strict=True)
            )
            if dtype != spec.dtype or not same:
                return f"has the {kind} {text} for {spec.name}, not {'x'.join([*map(str, spec.shape), spec.dtype])}"
    return ""
