"""The launches of a mixture of experts for few tokens: one for gate and up, one for down and the weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ops.formats_gguf import RUN
from ..ops.launch import Launch, Output, ceil_div, float_bits
from ..ops.moe_matmul import ACTIVATIONS
from .fused_launches import ADDED, BIASED, FEW, NORMED, SCRATCH, Weight, placed
from .launches import ROW_ALIGN
from .weight_kernels import WeightKernel

WEIGHED = 256  # a flag beside those of fused_launches.py
MOST_SHARES, ROWS_OF_SHARE = 64, 64  # workgroups; rows of gate and up of a token that are worth preparing its input


def _weight(kernel: WeightKernel, fast: bool, prefix: str, names: Sequence[str], n: int, bias: str) -> Weight:
    """The rows of all experts; n: of one."""
    places, codes = placed({name: f"{prefix}.{name}" for name in names})
    return Weight(kernel, fast and kernel.integer, 0, n, places, bias or codes)


def _bytes(weights: Sequence[Weight], normed: bool, m: int, k: int) -> int:
    """What the kernel of gate and up takes of its stack for m rows of the input."""
    floats = normed and not all(w.integer for w in weights)
    integers = any(w.integer for w in weights)
    return m * (4 * k * floats + (k + k // RUN * 4 + k // 16 * 4) * integers)


def gate_up_few(
    attributes: Mapping[str, Any],
    kernels: tuple[WeightKernel, WeightKernel],
    names: Sequence[str],
    *,
    t: int,
    experts: int,
    n: int,
    columns: int,
    fast: bool,
) -> tuple[Launch, ...] | None:
    """x float32 [t, columns] -> h float32 [t * k, n]; None for more tokens, or larger ones, than the kernel takes."""
    biases = ("gate_bias", "up_bias") if attributes["biased"] else ("", "")
    weights = [
        _weight(kernel, fast, prefix, names, n, bias)
        for kernel, prefix, bias in zip(kernels, ("gate", "up"), biases, strict=True)
    ]
    normed = bool(attributes.get("normed"))
    if t > FEW or _bytes(weights, normed, t, columns) > SCRATCH:
        return None
    k = attributes["k"]
    rows = min(t * k, experts) * ceil_div(n, ROW_ALIGN) * ROW_ALIGN * 2
    workgroups = max(1, min(MOST_SHARES, rows // ROWS_OF_SHARE))
    norm = (float_bits(attributes["epsilon"]), float_bits(attributes["offset"])) if normed else (0, 0)
    how = (ACTIVATIONS.index(attributes["activation"]), float_bits(attributes["limit"]))
    weighed = bool(attributes.get("weighed", False))
    flags = NORMED * normed | BIASED * bool(attributes["biased"]) | WEIGHED * weighed
    scalars = (t, columns, experts, k, flags, *norm, *how, workgroups, *(s for w in weights for s in w.scalars))
    operands = (i for w in weights for i in (*w.places, w.bias))
    inputs = ("x", "norm" if normed else "x", "order", "offsets", "weights" if weighed else "x", *operands)
    h = (Output("h", (t * k, n), "f32"),)
    return (Launch("strixhlo_moe_gate_up_few", inputs, h, scalars, workgroups, bytes=True),)


def down_few(
    attributes: Mapping[str, Any],
    kernel: WeightKernel,
    names: Sequence[str],
    *,
    t: int,
    k: int,
    experts: int,
    n: int,
    columns: int,
    fast: bool,
) -> tuple[Launch, ...] | None:
    """h float32 [t * k, columns] -> y float32 [t, n]; None for more tokens, or larger ones, than the kernel takes."""
    weight = _weight(kernel, fast, "down", names, n, "bias" if attributes["biased"] else "")
    if t > FEW or _bytes([weight], False, 1, columns) > SCRATCH // 2:
        return None
    added = bool(attributes.get("added", False))
    tiles = ceil_div(n, ROW_ALIGN)
    tile = ceil_div(tiles, min(MOST_SHARES, max(1, n // ROWS_OF_SHARE)))
    flags = ADDED * added | BIASED * bool(attributes["biased"])
    scalars = (t, columns, experts, k, flags, float_bits(attributes.get("scale", 1.0)), tile, *weight.scalars)
    inputs = ("h", "weights", "order", "offsets", "residual" if added else "h", *weight.places, weight.bias)
    y = (Output("y", (t, n), "f32"),)
    return (Launch("strixhlo_moe_down_few", inputs, y, scalars, ceil_div(tiles, tile), bytes=True),)
