"""When a comparison passes: stated limits for each kind of arithmetic.

They lie between what right programs differ by and what a rotary base that is wrong by a factor of two does, measured on
SmolLM2-135M and Gemma 3 270M beside llama.cpp (docs/compare.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .native.contender import Precision
from .numerics import LogitComparison


@dataclass(frozen=True)
class Limits:
    """The most that two right evaluations differ by. relative_error: see LogitComparison. gap: of the two best logits
    where greedy tokens first differ; a larger one is no tie."""

    name: str
    mean_kl: float
    p99_kl: float
    relative_error: float
    top1_agreement: float
    gap: float


EXACT = Limits("float32 on both sides", 1e-4, 1e-3, 0.01, 0.98, 0.1)
HALF = Limits("16-bit weights, a side with reduced activations", 0.005, 0.05, 0.04, 0.95, 0.5)
EIGHT_BIT = Limits("8-bit weights, a side with reduced activations", 0.008, 0.1, 0.06, 0.9, 0.75)
FOUR_BIT = Limits("weights below 8 bits, a side with reduced activations", 0.008, 0.1, 0.06, 0.9, 1.0)
# llama.cpp rounds 256 activations with one scale before these, not 32
K_QUANT = Limits("K-quants, a side with reduced activations", 0.01, 0.1, 0.06, 0.9, 1.0)
EIGHT_BIT_FORMATS = frozenset({"q8_0", "mxfp8", "fp8_tensor", "fp8_channel", "fp8_block128"})
K_QUANT_FORMATS = frozenset({"q2_k", "q3_k", "q4_k", "q5_k", "q6_k"})
PLAIN = frozenset({"f32", "f16", "bf16"})
FEW = 8  # positions, whose share in all is by how much limits are wider


def limits_for(formats: Iterable[str], ours: Precision, theirs: Precision, top: bool = False) -> Limits:
    """formats: of the bundle's weights. Where both sides compute in float32, quantized weights are no excuse.
    top: only the likeliest tokens are compared. Their logits spread less than those of a vocabulary, so that the same
    differences are a larger part of them: twice the relative error is allowed."""
    if top:
        whole = limits_for(formats, ours, theirs)
        return replace(whole, name=f"{whole.name}, likeliest tokens only", relative_error=2 * whole.relative_error)
    found = set(formats) - PLAIN
    if ours == theirs == "float32":
        return EXACT
    if not found:
        return HALF
    if found & K_QUANT_FORMATS:
        return K_QUANT
    eight = all(f in EIGHT_BIT_FORMATS or f.startswith("affine8") for f in found)
    return EIGHT_BIT if eight else FOUR_BIT


def failures(numbers: LogitComparison, limits: Limits, what: str) -> list[str]:
    """One line for each limit that is exceeded. Where positions are few each weighs much: limits are wider then."""
    lines = []
    wider = 1 + FEW / numbers.positions
    for name in ("mean_kl", "p99_kl", "relative_error"):
        value, most = getattr(numbers, name), wider * getattr(limits, name)
        if not value <= most:
            lines.append(f"{what}: {name.replace('_', ' ')} {value:.3g} is above {most:.3g}")
    share = limits.top1_agreement
    least = share - 2 * math.sqrt(share * (1 - share) / numbers.positions)  # few positions agree less by chance
    if numbers.top1_agreement < least and numbers.mean_kl > limits.mean_kl / 10:
        lines.append(f"{what}: top-1 agreement {numbers.top1_agreement:.1%} is below {least:.0%}")
    return lines
