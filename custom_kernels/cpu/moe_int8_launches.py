"""The launches of a mixture of experts with 8-bit activations in place of float32 ones."""

from __future__ import annotations

from dataclasses import replace

from ..ops.formats_gguf import RUN
from ..ops.launch import Launch, Output, ceil_div
from .launches import TOKENS_PER_WORKGROUP
from .weight_kernels import WeightKernel

ROUNDED = ("xq", "xs", "xsum")


def quantize_rows(x: str, m: int, k: int) -> Launch:
    """x float32 [m, k] -> xq int8, xs and xsum: what matmuls with 8-bit activations take."""
    shapes = (((m, k), "i8"), ((m, k // RUN), "f32"), ((m, k // 16), "i32"))
    outputs = tuple(Output(name, *spec) for name, spec in zip(ROUNDED, shapes, strict=True))
    row_tile = 1 if m <= TOKENS_PER_WORKGROUP else ceil_div(m, TOKENS_PER_WORKGROUP)
    return Launch("strixhlo_quantize_rows", (x,), outputs, (m, k, row_tile), ceil_div(m, row_tile))


def with_8_bit_activations(launches: tuple[Launch, ...], kernel: WeightKernel, m: int, k: int) -> tuple[Launch, ...]:
    """The launches of `moe_rows`, all over one input [m, k] and of one kernel, as those of integer dot products."""
    symbol = f"strixhlo_moe_rows_{kernel.name}"
    if not kernel.integer:
        return launches
    changed: list[Launch] = []
    for launch in launches:
        if launch.symbol != symbol:
            changed.append(launch)
            continue
        x, *others = launch.inputs
        quantize = quantize_rows(x, m, k)
        if quantize not in changed:
            changed.append(quantize)
        changed.append(replace(launch, symbol=f"{symbol}_int8", inputs=(*ROUNDED, *others)))
    return tuple(changed)
