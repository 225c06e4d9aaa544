"""The kernels of `fused_matmul`: symbols, and the lines of kernels.h's FUSED_GEMV and FUSED_GEMM that make them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..ops.fused_matmul import LAYERS, SUMS
from .elements import OF
from .gemm_tiles import Tile, tile_of
from .moe_kernels import MEMBERS, member_of, weight_type

MOST_BINDINGS = 16  # of a dispatch in IREE's HIP driver
MOST_WEIGHTS = 3


@dataclass(frozen=True)
class FusedKernel:
    """A kernel by what it takes. name: of the weights' format in symbols; format: a key of FORMATS, or a dtype; dtypes:
    of an affine format's scale and bias; parts: of one weight, in operand order; count: of weights; rows: of x at most,
    or the tile of a kernel for any number of them."""

    name: str
    format: str
    dtypes: tuple[str, ...]
    parts: tuple[str, ...]
    count: int
    gated: bool
    normed: bool
    biased: bool
    added: bool
    rows: int | Tile
    summed: str = ""  # as in ops/fused_matmul.py
    layer: str = ""  # as its layer_norm
    stripes: str = ""  # of few rows: "stripes" or "wide_stripes" of fused_stripes.h, else fused_gemv.h

    @property
    def symbol(self) -> str:
        """ "strixhlo_fused_q4_1_3n_m1": 3 weights, a norm, one row."""
        of_sum, of_norm = (bool(self.summed), self.summed == "scaled"), (bool(self.layer), self.layer == "biased")
        flags = zip("gnlcbrsf", (self.gated, self.normed, *of_norm, self.biased, self.added, *of_sum), strict=True)
        form = f"{self.name}_{self.count}{''.join(c for c, there in flags if there)}"
        if isinstance(self.rows, Tile):
            return f"strixhlo_fused_gemm_{form}_m{self.rows.name}"
        return f"strixhlo_fused_{self.stripes + '_' if self.stripes else ''}{form}_m{self.rows}"

    @property
    def bindings(self) -> int:
        """Buffers of a dispatch: x and y, the weights' parts, what else there is."""
        of_sum, norms = len(SUMS[self.summed]) + bool(self.summed), self.normed + (self.layer == "biased")
        return 2 + self.count * (len(self.parts) + self.biased) + norms + self.added + of_sum

    def line(self, more: bool) -> str:
        """The line that makes it, with OF in the place of its symbol and the type of x and y. more: y is there already,
        and comes first."""
        members = [member_of(part) for part in self.parts]
        weights = range(self.count)
        operands = ["IN({x}, x)", *(f"IN({MEMBERS[m]}, {m}{t})" for t in weights for m in members)]
        operands += ["IN(f32, norm)"] * self.normed + ["IN(f32, norm_bias)"] * (self.layer == "biased")
        operands += [f"IN(f32, bias{t})" for t in weights if self.biased]
        operands += ["IN({x}, residual)"] * self.added
        of_sum = {"base": "IN({x}, base)", "sum norm": "IN(f32, sum_norm)", "factor": "IN(f32, factor)"}
        operands += [of_sum[name] for name in SUMS[self.summed]]
        operands = ["OUT({x}, y)", *operands] if more else [*operands, "OUT({x}, y)"]
        operands += ["OUT({x}, sum)"] * bool(self.summed)
        parts = (", ".join(f".{m} = {m}{t}" for m in MEMBERS if m in members) for t in weights)
        tensors = ", ".join(f"Tensor({{{p}}})" for p in parts)
        rows = ", ".join(f"{{{f'bias{t}' if self.biased else 'nullptr'}, first{t}, n{t}}}" for t in weights)
        norm_kind = LAYERS.index(self.layer) + 1 if self.layer else int(self.normed)
        flags = (int(self.gated), norm_kind, int(self.biased), int(self.added))
        form = ", ".join(map(str, (self.count, *flags, list(SUMS).index(self.summed))))
        kind, norm = weight_type(self.format, self.dtypes), "norm" if self.normed else "nullptr"
        given = f"({kind}), ({form}), ({', '.join(operands)}), ({tensors}), ({rows}), {norm}"
        given += f", {'residual' if self.added else 'nullptr'}"
        if isinstance(self.rows, Tile):
            tile = f"(InMatrixTiles<{self.rows.rows}>)"
            if self.rows.waves_n:
                tile = f"(InFragments<{self.rows.rows}, {self.rows.waves_n}, {self.rows.waves_k}>)"
            return f"FUSED_GEMM({OF}, {self.rows.threads}, {tile}, {given})"
        held = [name.replace(" ", "_") if name in SUMS[self.summed] else "nullptr" for name in SUMS["scaled"]]
        held.insert(0, "norm_bias" if self.layer == "biased" else "nullptr")
        sums = ", ".join([*held, "sum" if self.summed else "nullptr"])
        return f"FUSED_{self.stripes.upper() or 'GEMV'}({OF}, {self.rows}, {given}, {sums})"


_SYMBOL = re.compile(
    r"strixhlo_fused_(?:gemm_|((?:wide_)?stripes)_)?(\w+)_([123])"
    r"(g?)(n?)(l?)(c?)(b?)(r?)(s?)(f?)_m(\d+|\d+x\dx\d|\d+w)(_more)?"
)
_AFFINE = re.compile(r"(affine\d_g\d+)_(\w+?)_(\w+)")


def format_of_name(name: str) -> tuple[str, tuple[str, ...]]:
    """What symbols call a format -> its key, or a dtype, and the dtypes of an affine format's scale and bias."""
    affine = _AFFINE.fullmatch(name)
    return (affine[1], (affine[2], affine[3])) if affine else (name, ())


def fused_line(symbol: str, parts_of: dict[str, Sequence[str]]) -> str:
    """The line of a kernel of that symbol; KeyError for others. parts_of: of each format and dtype."""
    found = _SYMBOL.fullmatch(symbol)
    if not found:
        raise KeyError(symbol)
    stripes, name, count, *flags, rows, more = found.groups()
    format, dtypes = format_of_name(name)
    gated, normed, layer, constant, biased, added, summed, scaled = map(bool, flags)
    parts = tuple(parts_of[format])
    size = int(rows) if rows.isdigit() else tile_of(rows)
    of_sum, of_norm = (
        "scaled" if scaled else "sum" if summed else "",
        "biased" if constant else "plain" if layer else "",
    )
    form = (gated, normed, biased, added, size, of_sum, of_norm, stripes or "")
    kernel = FusedKernel(name, format, dtypes, parts, int(count), *form)
    return kernel.line(bool(more))
