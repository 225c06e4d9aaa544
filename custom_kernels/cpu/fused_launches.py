"""How `strixhlo.fused_matmul` becomes launches of the CPU kernels: one for few rows, for many the input comes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..choices import Choices
from ..ops.formats import FORMATS
from ..ops.formats_gguf import RUN
from ..ops.fused_matmul import Form
from ..ops.launch import Launch, Lowering, OperandTypes, Output, ceil_div, float_bits
from ..ops.moe_matmul import ACTIVATIONS
from .launches import ROW_ALIGN, TOKENS_PER_WORKGROUP, WORKGROUPS, shares
from .weight_kernels import REALS, WeightKernel, weight_kernel

# In the order of StoredFormat in fused_matmul.cpp.
NAMES = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "q2_k", "q3_k"),
    *("affine2", "affine3", "affine4", "affine5", "affine6", "affine8"),
    *("mxfp4", "nvfp4", "mxfp8", "fp8"),
    *REALS,
)
# Where a kernel expects each part of a weight.
PLACES = (
    ("codes", "dense"),
    ("high", "global_scale"),
    ("scale",),
    ("super_scale",),
    ("minimum", "bias"),
    ("super_minimum",),
)
INTEGER = 1 << 6  # in a weight's word: it takes 8-bit activations
NORMED, BIASED, ADDED, PREPARED, SUMMED, SCALED, LAYER, NORM_BIASED = 1, 2, 4, 8, 16, 32, 64, 128
SCRATCH = 64 * 1024  # bytes of a workgroup for its input
FEW = 8  # rows
MOST_SHARES, ROWS_OF_SHARE = 32, 128  # of workgroups that prepare the input themselves, which costs as much as 8 rows


@dataclass(frozen=True)
class Weight:
    """One weight of a call: how it is read, which rows, and its operands where a kernel expects them."""

    kernel: WeightKernel
    integer: bool
    first: int
    n: int
    places: tuple[str, ...]
    bias: str

    @property
    def scalars(self) -> tuple[int, ...]:
        word = NAMES.index(self.kernel.name) | (INTEGER if self.integer else 0)
        for i, value in enumerate(self.kernel.scalars):
            word |= value << 8 * (i + 1)
        return word, self.first, self.n


def placed(operands: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Part -> operand, codes first: the operands where a kernel expects them, and that of the codes, which stands
    wherever there is none."""
    codes = next(iter(operands.values()))
    return tuple(next((operands[name] for name in place if name in operands), codes) for place in PLACES), codes


def _weights(form: Form, k: int, types: OperandTypes, fast: bool) -> list[Weight]:
    found, dtypes = [], dict(zip(form.operands(k), (t for _, t in types), strict=True))
    for i, rows in enumerate(form.rows):
        format, names = form.formats[rows.tensor], form.parts(k)[rows.tensor]
        operands = {name: f"{rows.tensor}.{name}" for name in names}
        of_parts = {name: dtypes[operand] for name, operand in operands.items()}
        weight = stored_weight(format, operands, of_parts, rows.count)
        bias = f"bias {i}" if form.biased else weight.bias
        found.append(replace(weight, integer=fast and weight.kernel.integer, first=rows.first, bias=bias))
    return found


def stored_weight(format: str, operands: Mapping[str, str], dtypes: Mapping[str, str], n: int) -> Weight:
    """All n rows of a tensor, for float32 activations and without a bias. operands, dtypes: of its parts by name."""
    kernel = weight_kernel(format, dtypes) if format in FORMATS else WeightKernel(format, integer=False)
    places, codes = placed(operands)
    return Weight(kernel, False, 0, n, places, codes)


def _scratch(weights: Sequence[Weight], form: Form, m: int, k: int) -> int:
    """Bytes that the kernel takes for m rows of the input."""
    rounded = m * (k + k // RUN * 4 + k // 16 * 4) if any(w.integer for w in weights) else 0
    if all(w.integer for w in weights):
        return rounded + (k * 4 if form.summed or form.layer else 0)
    return rounded + (m * k * 4 if form.normed or form.summed else 0)


def _tile(
    weights: Sequence[Weight], gated: bool, prepares: bool, choices: Choices, shape: tuple[int, int]
) -> tuple[int, int]:
    """(tiles of 16 weight rows of a workgroup, workgroups). shape: of the input."""
    tiles = sum(ceil_div(w.n, ROW_ALIGN) for w in (weights[:1] if gated else weights))
    workgroups = WORKGROUPS
    if prepares:
        workgroups = 1
        while workgroups < MOST_SHARES and tiles * ROW_ALIGN * (2 if gated else 1) >= 2 * workgroups * ROWS_OF_SHARE:
            workgroups *= 2
    kernel = "_".join(("gated" if gated else "fused", *(w.kernel.name for w in weights), *["prepares"] * prepares))
    workgroups = shares(choices, kernel, shape[0], tuple(w.n for w in weights), shape[1], workgroups)
    tile = ceil_div(tiles, workgroups)
    return tile, ceil_div(tiles, tile)


def add_normed_launch(scaled: bool, m: int, k: int, epsilon: float, offset: float, based: bool = False) -> Launch:
    """Operands "base", "x", "sum norm" and, scaled, "factor", based, "base norm" -> "sum": `strixhlo.add_normed`."""
    tile = ceil_div(m, TOKENS_PER_WORKGROUP)
    inputs = ("base", "x", "sum norm", "factor" if scaled else "sum norm", "base norm" if based else "sum norm")
    scalars = (m, k, float_bits(epsilon), float_bits(offset), int(scaled), int(based), tile)
    return Launch("strixhlo_add_normed", inputs, (Output("sum", (m, k), "f32"),), scalars, ceil_div(m, tile))


def layer_norm_launch(biased: bool, m: int, k: int, epsilon: float, offset: float, x: str = "x") -> Launch:
    """Operands x, "norm" and, biased, "norm bias" -> "h": `strixhlo.layer_norm`."""
    tile = 1 if m <= TOKENS_PER_WORKGROUP else ceil_div(m, TOKENS_PER_WORKGROUP)
    inputs = (x, "norm", "norm bias" if biased else "norm")
    scalars = (m, k, float_bits(epsilon), float_bits(offset), int(biased), tile)
    return Launch("strixhlo_layer_norm_rows", inputs, (Output("h", (m, k), "f32"),), scalars, ceil_div(m, tile))


def _prepare(form: Form, attributes: Mapping[str, Any], m: int, k: int, integers: bool) -> tuple[list[Launch], str]:
    """The launches that add, normalize and round the input of many rows, and the name of what they make of x."""
    row_tile, launches, x = 1 if m <= TOKENS_PER_WORKGROUP else ceil_div(m, TOKENS_PER_WORKGROUP), [], "x"
    if form.summed:
        numbers = (attributes["sum_epsilon"], attributes["sum_offset"])
        launches.append(add_normed_launch(form.summed == "scaled", m, k, *numbers))
        x = "sum"
    if form.normed:
        bits = (float_bits(attributes["epsilon"]), float_bits(attributes["offset"]))
        h, scalars = (Output("h", (m, k), "f32"),), (m, k, *bits, row_tile)
        launch = Launch("strixhlo_norm_rows", (x, "norm"), h, scalars, ceil_div(m, row_tile))
        if form.layer:
            launch = layer_norm_launch(form.layer == "biased", m, k, attributes["epsilon"], attributes["offset"], x)
        launches.append(launch)
        x = "h"
    if integers:
        outputs = (Output("xq", (m, k), "i8"), Output("xs", (m, k // RUN), "f32"), Output("xsum", (m, k // 16), "i32"))
        launches.append(Launch("strixhlo_quantize_rows", (x,), outputs, (m, k, row_tile), ceil_div(m, row_tile)))
    return launches, x


def fused_matmul(fast: bool, choices: Choices, attributes: Mapping[str, Any], types: OperandTypes) -> Lowering:
    """fast: activations are rounded to 8 bits where a weight's format has integer dot products.

    Up to 8 rows are one launch, unless their input is larger than what a workgroup may put on its stack.
    """
    (m, k), form = types[0][0], Form.of(attributes)
    weights, gated = _weights(form, k, types, fast), len(form.rows) == 2 and bool(attributes["activation"])
    integers, small = any(w.integer for w in weights), m <= FEW
    prepares = small and (integers or form.normed or bool(form.summed)) and _scratch(weights, form, m, k) <= SCRATCH
    launches, x = ([], "x") if prepares else _prepare(form, attributes, m, k, integers)
    rounded = ("xq", "xs", "xsum") if not prepares and integers else (x, x, x)
    norms = ("norm" if form.normed else x, "norm bias" if form.layer == "biased" else x)
    inputs = (x, *rounded, *norms, "residual" if form.added else x)
    summed = prepares and bool(form.summed)
    of_sum = ("base", "sum norm", "factor" if form.summed == "scaled" else "base") if summed else (x, x, x)
    flags = NORMED * form.normed | BIASED * form.biased | ADDED * form.added | PREPARED * (not prepares)
    flags |= LAYER * bool(form.layer) | NORM_BIASED * (form.layer == "biased")
    flags |= (SUMMED | SCALED * (form.summed == "scaled")) * summed
    tile, workgroups = _tile(weights, gated, prepares, choices, (m, k))
    activation = ACTIVATIONS.index(attributes["activation"]) if attributes["activation"] else -1
    names = ("epsilon", "offset", "limit", "scale", "sum_epsilon", "sum_offset")
    epsilon, offset, *numbers = (float_bits(attributes.get(name, 0.0)) for name in names)
    n = weights[0].n if gated else sum(w.n for w in weights)
    outputs: tuple[Output, ...] = (Output("y", (m, n), "f32"),)
    symbol = f"strixhlo_fused_matmul_{len(weights)}"
    if gated:
        symbol = f"strixhlo_fused_gated_{'few' if small else 'many'}"
        outputs = outputs if small else (Output("gate", (m, n), "f32"), *outputs)
    sums = (Output("sum", (m, k), "f32"),) if summed else ()
    launches.append(
        Launch(
            symbol,
            (*inputs, *of_sum, *(name for w in weights for name in (*w.places, w.bias)), *(() if summed else (x,))),
            (*sums, *outputs),
            (m, k, tile, flags, epsilon, offset, activation, *numbers, *(s for w in weights for s in w.scalars)),
            workgroups,
            bytes=True,
        )
    )
    return Lowering(form.operands(k), tuple(launches), form.results)
