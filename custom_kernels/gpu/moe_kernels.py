"""The kernels of a mixture of experts by symbol: the lines of moe_kernels.h's macros that make them."""

from __future__ import annotations

from collections.abc import Iterable

from ..ops.formats import FORMATS
from ..ops.formats_affine import AffineFormat

EXPERT_ROWS = (1, 8)  # most sorted rows of an expert that a gemv takes at once
ROUTE_EXPERTS = (128, 512)  # most experts of a routing kernel
# Members of weights.h's Parts, in their order: type and, where it differs, the name of the format's part.
MEMBERS = {
    "codes": "u32",
    "high": "u32",
    "scale": "void",
    "super_scale": "f16",
    "minimum": "void",
    "super_minimum": "f16",
    "global_scale": "f32",
}


def member_of(part: str) -> str:
    """The member of Parts that holds a format's part."""
    return {"bias": "minimum", "dense": "codes"}.get(part, part)


def _weight_type(format: str, dtypes: tuple[str, ...]) -> str:
    """The format's C++ type; dtypes: of an affine format's scale and bias."""
    fmt = FORMATS.get(format)
    if fmt is None:
        return f"Dense<{format.replace('bf16', 'BF16')}>"
    if isinstance(fmt, AffineFormat):
        of = ", ".join((str(fmt.bits), str(fmt.group), *dtypes)).replace("bf16", "BF16")
        return f"Affine<{of}>"
    return format.upper() if format.startswith("q") else "".join(map(str.capitalize, format.split("_")))


def expert_kernels(
    name: str, format: str, parts: Iterable[str], dtypes: tuple[str, ...], matrix: bool
) -> dict[str, str]:
    """Symbol -> line, of one format. name: in symbols; parts: of a weight, in operand order; matrix: whether the matrix
    units can hold its codes."""
    kind = f"({_weight_type(format, dtypes)})"
    members = [member_of(p) for p in parts]

    def weight(prefix: str) -> str:
        given = ", ".join(f"IN({MEMBERS[m]}, {prefix}_{m})" for m in members)
        held = ", ".join(f".{m} = {prefix}_{m}" for m in MEMBERS if m in members)
        return f"({given}), ({{{held}}})"

    pair, down = f"{weight('gate')}, {weight('up')}", weight("down")
    lines = {
        f"strixhlo_moe_gate_up_gemv_{name}_m{m}": f"MOE_GATE_UP_GEMV({{symbol}}, {m}, {kind}, {pair})"
        for m in EXPERT_ROWS
    }
    most = EXPERT_ROWS[-1]
    lines[f"strixhlo_moe_rows_gemv_{name}_m{most}"] = f"MOE_ROWS_GEMV({{symbol}}, {most}, {kind}, {down})"
    lines[f"strixhlo_moe_down_gemv_{name}"] = f"MOE_DOWN_GEMV({{symbol}}, {kind}, {down})"
    if matrix:
        lines[f"strixhlo_moe_gate_up_gemm_{name}"] = f"MOE_GATE_UP_GEMM({{symbol}}, {kind}, {pair})"
        lines[f"strixhlo_moe_rows_gemm_{name}"] = f"MOE_ROWS_GEMM({{symbol}}, {kind}, {down})"
    return {symbol: line.replace("{symbol}", symbol) for symbol, line in lines.items()}


def routing_kernels() -> dict[str, str]:
    """Symbol -> line, of what knows no weight format."""
    routes = {
        f"strixhlo_moe_route_e{most}": f"MOE_ROUTE(strixhlo_moe_route_e{most}, {most // 32})" for most in ROUTE_EXPERTS
    }
    return {**routes, "strixhlo_moe_combine": "MOE_COMBINE"}
