"""The kernels of a mixture of experts for few tokens: one for each format and what is around it, and the lines of
moe_kernels.h that make them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .elements import OF
from .fused_kernels import format_of_name
from .moe_kernels import member_of, weight_parameters, weight_type

PAIRED_TOKENS = (1, 8)  # most tokens of a kernel
DOWN, GATE_UP = "strixhlo_moe_down_pairs_", "strixhlo_moe_gate_up_pairs"
FEW_DOWN, FEW_GATE_UP = "strixhlo_moe_down_", "strixhlo_moe_gate_up_"  # and FEW, or SPANS
FEW, SPANS = "chosen_few", "chosen_few_spans"  # on NVIDIA's matrix units: moe_few.h
_GATE_UP = re.compile(GATE_UP + r"(_chosen)?(_corrected)?(_biased)?(_normed)?(_joined)?_(\w+)_m(\d+)")
_DOWN = re.compile(DOWN + r"(\w+)_m(\d+)")
_FEW_GATE_UP = re.compile(FEW_GATE_UP + rf"{FEW}(_spans)?(_corrected)?(_biased)?(_normed)?(_joined)?_(\w+)")
_FEW_DOWN = re.compile(FEW_DOWN + rf"{FEW}(_spans)?_(\w+)")


@dataclass(frozen=True)
class GateUpPairs:
    """What a kernel of gate and up does beside both matmuls and the activation. chosen: it chooses the experts, whose
    scores may be corrected; joined: h stands behind what it has chosen, in one buffer."""

    chosen: bool
    corrected: bool
    biased: bool
    normed: bool
    joined: bool = False

    def symbol(self, name: str, tokens: int) -> str:
        """name: of the format, in symbols; tokens: one of PAIRED_TOKENS."""
        return f"{GATE_UP}{'_chosen' * self.chosen}{self._flags}_{name}_m{tokens}"

    def few_symbol(self, name: str, spans: bool) -> str:
        """The same of moe_few.h's kernel, which chooses."""
        return f"{FEW_GATE_UP}{SPANS if spans else FEW}{self._flags}_{name}"

    @property
    def _flags(self) -> str:
        first = "_corrected" * self.corrected + "_biased" * self.biased
        return first + "_normed" * self.normed + "_joined" * self.joined

    def bindings(self, parts: int) -> int:
        """Its buffers: x, two of the routing, two weights, ..., h, and what it has chosen."""
        return 3 + 2 * parts + 2 * self.biased + self.normed + self.corrected + 1 + self.chosen - self.joined

    def line(self, how: str, kind: str, members: Sequence[str], few: bool = False) -> str:
        """how: most tokens, or, of moe_few.h's kernel, whether by spans; kind: the format's C++ type; members: of
        Parts."""
        biases = ("gate_bias", "up_bias") if self.biased else ()
        more = (*biases, *("norm",) * self.normed, *("correction",) * self.corrected)
        given = [
            weight_parameters(members, "gate"),
            weight_parameters(members, "up", *more),
            *(biases or ("nullptr", "nullptr")),
        ]
        given += ["norm" if self.normed else "nullptr"]
        given += ["correction" if self.corrected else "nullptr"] * self.chosen
        macro = "MOE_GATE_UP_FEW" if few else "MOE_GATE_UP_CHOSEN" if self.chosen else "MOE_GATE_UP_PAIRS"
        h = "(), (AFTER_CHOSEN({x}))" if self.joined else "(, OUT({x}, h)), ()"
        where = f", {h}" if self.chosen else ""
        return f"{macro}({OF}, {how}, {str(self.normed).lower()}{where}, ({kind}), {', '.join(given)})"


def pairs_line(symbol: str, parts_of: Mapping[str, Sequence[str]]) -> str:
    """The line of a kernel of that symbol; empty for others. parts_of: of each format and dtype."""
    gate_up, down = _GATE_UP.fullmatch(symbol), _DOWN.fullmatch(symbol)
    found = gate_up or down
    if not found:
        return _few_line(symbol, parts_of)
    *flags, name, tokens = found.groups()
    format, dtypes = format_of_name(name)
    members = [member_of(part) for part in parts_of[format]]
    kind = weight_type(format, dtypes)
    if gate_up:
        return GateUpPairs(*map(bool, flags)).line(tokens, kind, members)
    return f"MOE_DOWN_PAIRS({OF}, {tokens}, ({kind}), {weight_parameters(members, 'down')})"


def _few_line(symbol: str, parts_of: Mapping[str, Sequence[str]]) -> str:
    gate_up, down = _FEW_GATE_UP.fullmatch(symbol), _FEW_DOWN.fullmatch(symbol)
    found = gate_up or down
    if not found:
        return ""
    spans, *flags, name = found.groups()
    format, dtypes = format_of_name(name)
    members = [member_of(part) for part in parts_of[format]]
    kind = "Bf16Runs" if format == "bf16" else weight_type(format, dtypes)
    how = str(spans is not None).lower()
    if gate_up:
        return GateUpPairs(True, *map(bool, flags)).line(how, kind, members, few=True)
    return f"MOE_DOWN_FEW({OF}, {how}, ({kind}), {weight_parameters(members, 'down')})"


def few_down_symbol(name: str, spans: bool) -> str:
    """The kernel of down after that which chooses."""
    return f"{FEW_DOWN}{SPANS if spans else FEW}_{name}"
