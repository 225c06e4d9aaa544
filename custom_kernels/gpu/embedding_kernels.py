"""The kernels of `embedding` on GPUs: one for each format, and the lines of kernels.h's EMBEDDING that make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .elements import OF
from .fused_kernels import format_of_name
from .moe_kernels import MEMBERS, member_of, weight_type

PREFIX = "strixhlo_embedding_"


def embedding_line(symbol: str, parts_of: Mapping[str, Sequence[str]]) -> str:
    """The line of a kernel of that symbol; KeyError for others. parts_of: of each format and dtype."""
    if not symbol.startswith(PREFIX):
        raise KeyError(symbol)
    format, dtypes = format_of_name(symbol.removeprefix(PREFIX))
    members = [member_of(part) for part in parts_of[format]]
    operands = ", ".join(f"IN({MEMBERS[m]}, {m})" for m in members)
    held = ", ".join(f".{m} = {m}" for m in MEMBERS if m in members)
    return f"EMBEDDING({OF}, ({weight_type(format, dtypes)}), ({operands}), ({{{held}}}))"
