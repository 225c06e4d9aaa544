"""The kernels of `fused_matmul`: symbols, and the lines of kernels.h's FUSED_GEMV and FUSED_GEMM that make them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ..ops.fused_matmul import LAYERS, SUMS
from .elements import OF
from .gemm_tiles import Tile, tile_of
from .moe_kernels import MEMBERS, member_of, weight_type

MOST_BINDINGS = 16  # of a dispatch in IREE's HIP driver
MOST_WEIGHTS = 3
FLAGS = "gnlcbrsfwo"  # what a symbol says of a form, in this order: see `FusedKernel.symbol`
BETWEEN = "__"  # names of several formats in a symbol


@dataclass(frozen=True)
class FusedWeight:
    """The format of a weight. name: in symbols; format: a key of FORMATS, or a dtype; dtypes: of an affine format's
    scale and bias; parts: in operand order."""

    name: str
    format: str
    dtypes: tuple[str, ...]
    parts: tuple[str, ...]

    @property
    def members(self) -> list[str]:
        """Of weights.h's Parts, in the order of the parts."""
        return [member_of(part) for part in self.parts]


@dataclass(frozen=True)
class FusedKernel:
    """A kernel by what it takes. weights: as they stand side by side; rows: of x at most, or the tile of a kernel for
    any number of them (of weights of one format)."""

    weights: tuple[FusedWeight, ...]
    gated: bool
    normed: bool
    biased: bool
    added: bool
    rows: int | Tile
    summed: str = ""  # as in ops/fused_matmul.py
    layer: str = ""  # as its layer_norm
    stripes: str = ""  # of few rows: a key of STRIPES of kernels.py, or "": fused_gemv.h
    whole: bool = False  # weights of several parts are one buffer each
    wide: bool = False  # the result is float32, whatever x is

    @property
    def groups(self) -> list[tuple[FusedWeight, list[int]]]:
        """Each format, and the numbers of the weights beside each other that have it."""
        each = groupby(range(len(self.weights)), key=lambda t: self.weights[t])
        return [(weight, list(numbers)) for weight, numbers in each]

    @property
    def name(self) -> str:
        """Of its formats: "q4_1", "q4_k__q6_k"."""
        return BETWEEN.join(weight.name for weight, _ in self.groups)

    @property
    def symbol(self) -> str:
        """ "strixhlo_fused_q4_1_3n_m1": 3 weights, a norm, one row. "..._q4_k__q6_k_21n_m1": two of the first format
        and one of the second."""
        of_sum, of_norm = (bool(self.summed), self.summed == "scaled"), (bool(self.layer), self.layer == "biased")
        given = (self.gated, self.normed, *of_norm, self.biased, self.added, *of_sum, self.whole, self.wide)
        counts = "".join(str(len(numbers)) for _, numbers in self.groups)
        form = f"{self.name}_{counts}{''.join(c for c, there in zip(FLAGS, given, strict=True) if there)}"
        if isinstance(self.rows, Tile):
            return f"strixhlo_fused_gemm_{form}_m{self.rows.name}"
        return f"strixhlo_fused_{self.stripes + '_' if self.stripes else ''}{form}_m{self.rows}"

    def in_one_buffer(self, weight: FusedWeight) -> bool:
        """Whether the parts of such a weight are."""
        return self.whole and len(weight.parts) > 1

    @property
    def bindings(self) -> int:
        """Buffers of a dispatch: x and y, the weights' parts, what else there is."""
        of_sum, norms = len(SUMS[self.summed]) + bool(self.summed), self.normed + (self.layer == "biased")
        of_weights = sum((1 if self.in_one_buffer(w) else len(w.parts)) + self.biased for w in self.weights)
        return 2 + of_weights + norms + self.added + of_sum

    def line(self, more: bool) -> str:
        """The line that makes it, with OF in the place of its symbol and the type of x. more: y is there already, and
        comes first."""
        given = f"{self._form()}, {self._operands(more)}, {self._places()}, {self._weights()}"
        residual = "residual" if self.added else "nullptr"
        if isinstance(self.rows, Tile):
            return f"FUSED_GEMM({OF}, {self.rows.threads}, ({self.rows.kernel}), {given}, {residual})"
        given += f", {'norm' if self.normed else 'nullptr'}, {residual}"
        held = [name.replace(" ", "_") if name in SUMS[self.summed] else "nullptr" for name in SUMS["scaled"]]
        held.insert(0, "norm_bias" if self.layer == "biased" else "nullptr")
        sums = ", ".join([*held, "sum" if self.summed else "nullptr"])
        return f"FUSED_{self.stripes.upper() or 'GEMV'}({OF}, {self.rows}, {given}, {sums})"

    def _form(self) -> str:
        norm_kind = LAYERS.index(self.layer) + 1 if self.layer else int(self.normed)
        flags = (int(self.gated), norm_kind, int(self.biased), int(self.added))
        return f"({', '.join(map(str, (len(self.weights), *flags, list(SUMS).index(self.summed))))})"

    def _operands(self, more: bool) -> str:
        operands = ["IN({x}, x)"]
        for t, weight in enumerate(self.weights):
            parts = [f"IN({MEMBERS[m]}, {m}{t})" for m in weight.members]
            operands += [f"IN(u8, whole{t})"] if self.in_one_buffer(weight) else parts
        operands += ["IN(f32, norm)"] * self.normed + ["IN(f32, norm_bias)"] * (self.layer == "biased")
        operands += [f"IN(f32, bias{t})" for t in range(len(self.weights)) if self.biased]
        operands += ["IN({x}, residual)"] * self.added
        of_sum = {"base": "IN({x}, base)", "sum norm": "IN(f32, sum_norm)", "factor": "IN(f32, factor)"}
        operands += [of_sum[name] for name in SUMS[self.summed]]
        y = "OUT(f32, y)" if self.wide else "OUT({x}, y)"
        operands = [y, *operands] if more else [*operands, y]
        return f"({', '.join([*operands, *(['OUT({x}, sum)'] * bool(self.summed))])})"

    def _places(self) -> str:
        """Scalars after all others: where the parts behind the first begin, of each weight that is one buffer."""
        each = ((t, m) for t, w in enumerate(self.weights) if self.in_one_buffer(w) for m in w.members[1:])
        return f"({''.join(f', u32 {m}{t}_at' for t, m in each)})"

    def _weights(self) -> str:
        made = []
        for weight, numbers in self.groups:
            kind, one = weight_type(weight.format, weight.dtypes), self.in_one_buffer(weight)
            tensors = []
            for t in numbers:
                there = [m for m in MEMBERS if m in weight.members]
                one_buffer = [f".begin = whole{t}", *(f".{m} = {m}{t}_at" for m in there[1:])]
                held = one_buffer if one else [f".{m} = {m}{t}" for m in there]
                tensors.append(f"{{{', '.join(held)}}}")
            rows = [f"{{{f'bias{t}' if self.biased else 'nullptr'}, first{t}, n{t}}}" for t in numbers]
            parts = "WholeParts" if one else "Parts"
            made.append(
                f"FusedWeights<{kind}, {len(numbers)}, {parts}>{{{{{', '.join(tensors)}}}, {{{', '.join(rows)}}}}}"
            )
        return f"({', '.join(made)})"


_SYMBOL = re.compile(
    r"strixhlo_fused_(?:gemm_|((?:deep_)?stripes)_)?(\w+)_([123]{1,3})"
    + "".join(f"({flag}?)" for flag in FLAGS)
    + r"_m(\d+|\d+x\dx\d|\d+w|\d+r\dx\d+)(_more)?"
)
_AFFINE = re.compile(r"(affine\d_g\d+)_(\w+?)_(\w+)")


def format_of_name(name: str) -> tuple[str, tuple[str, ...]]:
    """What symbols call a format -> its key, or a dtype, and the dtypes of an affine format's scale and bias."""
    affine = _AFFINE.fullmatch(name)
    return (affine[1], (affine[2], affine[3])) if affine else (name, ())


def fused_line(symbol: str, parts_of: dict[str, Sequence[str]]) -> str:
    """The line of a kernel of that symbol; KeyError for others. parts_of: of each format and dtype."""
    found = _SYMBOL.fullmatch(symbol)
    if not found or len(names := found[2].split(BETWEEN)) != len(found[3]):
        raise KeyError(symbol)
    stripes, _, counts, *flags, rows, more = found.groups()
    gated, normed, layer, constant, biased, added, summed, scaled, whole, wide = map(bool, flags)
    weights: list[FusedWeight] = []
    for name, count in zip(names, counts, strict=True):
        format, dtypes = format_of_name(name)
        weights += [FusedWeight(name, format, dtypes, tuple(parts_of[format]))] * int(count)
    size = int(rows) if rows.isdigit() else tile_of(rows)
    of_sum = "scaled" if scaled else "sum" if summed else ""
    of_norm = "biased" if constant else "plain" if layer else ""
    form = (gated, normed, biased, added, size, of_sum, of_norm, stripes or "", whole, wide)
    return FusedKernel(tuple(weights), *form).line(bool(more))
