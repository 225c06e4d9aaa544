"""The element types of activations in the names of GPU kernels: without a suffix a kernel is of float32."""

from __future__ import annotations

ELEMENTS = {"f32": "f32", "f16": "f16", "bf16": "BF16"}  # dtype -> its type in elements.h
OF = "{symbol}, {x}"  # in a line of kernels.h's macros
_MARK = "_x"


def with_elements(symbol: str, dtype: str) -> str:
    """The symbol of a kernel whose activations are of that dtype: "strixhlo_gemv_q4_1_m1_xbf16"."""
    return symbol if dtype == "f32" else f"{symbol}{_MARK}{dtype}"


def elements_of(symbol: str) -> tuple[str, str]:
    """(the symbol without the type of activations, that type)."""
    for dtype in ELEMENTS:
        if symbol.endswith(f"{_MARK}{dtype}"):
            return symbol.removesuffix(f"{_MARK}{dtype}"), dtype
    return symbol, "f32"
