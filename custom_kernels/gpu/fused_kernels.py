"""The kernels of `fused_matmul` for few rows: symbols, and the lines of kernels.h's FUSED_GEMV that make them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .elements import OF
from .moe_kernels import MEMBERS, member_of, weight_type

MOST_BINDINGS = 16  # of a dispatch in IREE's HIP driver
MOST_WEIGHTS = 3


@dataclass(frozen=True)
class FusedKernel:
    """A kernel by what it takes. name: of the weights' format in symbols; format: a key of FORMATS, or a dtype; dtypes:
    of an affine format's scale and bias; parts: of one weight, in operand order; count: of weights."""

    name: str
    format: str
    dtypes: tuple[str, ...]
    parts: tuple[str, ...]
    count: int
    gated: bool
    normed: bool
    biased: bool
    added: bool
    rows: int

    @property
    def symbol(self) -> str:
        """ "strixhlo_fused_q4_1_3n_m1": 3 weights, a norm, one row."""
        flags = zip("gnbr", (self.gated, self.normed, self.biased, self.added), strict=True)
        return f"strixhlo_fused_{self.name}_{self.count}{''.join(c for c, there in flags if there)}_m{self.rows}"

    @property
    def bindings(self) -> int:
        """Buffers of a dispatch: x and y, the weights' parts, what else there is."""
        return 2 + self.count * (len(self.parts) + self.biased) + self.normed + self.added

    def line(self, more: bool) -> str:
        """The line that makes it, with OF in the place of its symbol and the type of x and y. more: y is there already,
        and comes first."""
        members = [member_of(part) for part in self.parts]
        weights = range(self.count)
        operands = ["IN({x}, x)", *(f"IN({MEMBERS[m]}, {m}{t})" for t in weights for m in members)]
        operands += ["IN(f32, norm)"] * self.normed + [f"IN(f32, bias{t})" for t in weights if self.biased]
        operands += ["IN({x}, residual)"] * self.added
        operands = ["OUT({x}, y)", *operands] if more else [*operands, "OUT({x}, y)"]
        held = (", ".join(f".{m} = {m}{t}" for m in MEMBERS if m in members) for t in weights)
        tensors = ", ".join(f"Tensor({{{h}}})" for h in held)
        rows = ", ".join(f"{{{f'bias{t}' if self.biased else 'nullptr'}, first{t}, n{t}}}" for t in weights)
        form = ", ".join(map(str, (self.count, *map(int, (self.gated, self.normed, self.biased, self.added)))))
        kind, norm = weight_type(self.format, self.dtypes), "norm" if self.normed else "nullptr"
        given = f"({kind}), ({form}), ({', '.join(operands)}), ({tensors}), ({rows}), {norm}"
        return f"FUSED_GEMV({OF}, {self.rows}, {given}, {'residual' if self.added else 'nullptr'})"


_SYMBOL = re.compile(r"strixhlo_fused_(\w+)_([123])(g?)(n?)(b?)(r?)_m(\d)(_more)?")
_AFFINE = re.compile(r"(affine\d_g\d+)_(\w+?)_(\w+)")


def fused_line(symbol: str, parts_of: dict[str, Sequence[str]]) -> str:
    """The line of a kernel of that symbol; KeyError for others. parts_of: of each format and dtype."""
    found = _SYMBOL.fullmatch(symbol)
    if not found:
        raise KeyError(symbol)
    name, count, *flags, rows, more = found.groups()
    affine = _AFFINE.fullmatch(name)
    format, dtypes = (affine[1], (affine[2], affine[3])) if affine else (name, ())
    gated, normed, biased, added = map(bool, flags)
    parts = tuple(parts_of[format])
    kernel = FusedKernel(name, format, dtypes, parts, int(count), gated, normed, biased, added, int(rows))
    return kernel.line(bool(more))
