"""Exact arithmetic on float bits, by fractions: what single instructions must give."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

# name -> (numpy type, unsigned type, bits of the fraction, exponent of the smallest denormal, largest exponent)
FORMATS = {
    "f16": (np.float16, np.uint16, 10, -24, 15),
    "f32": (np.float32, np.uint32, 23, -149, 127),
    "f64": (np.float64, np.uint64, 52, -1074, 1023),
}


def round_to(kind: str, value: Fraction) -> float:
    """The nearest float of a format (ties to even) as a Python float; infinity beyond the largest."""
    _, _, fraction, smallest, largest = FORMATS[kind]
    if value == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(value.numerator)) - math.log2(value.denominator))
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - fraction, smallest)
    rounded = round(value / unit) * unit  # Python rounds halves to even
    if abs(rounded) >= Fraction(2) ** (largest + 1):
        return math.inf if value > 0 else -math.inf
    return math.copysign(float(rounded), value)


def fused(kind: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c rounded once, for float arrays of a format; specials as float64 does them."""
    out = np.empty(len(a), FORMATS[kind][0])
    for k, (x, y, z) in enumerate(zip(a.astype(float), b.astype(float), c.astype(float), strict=True)):
        plain = x * y + z
        if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
            out[k] = plain
            continue
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        out[k] = plain if exact == 0 else round_to(kind, exact)
    return out


def minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """minNum: NaN only when both are, or one is signaling; -0 below +0."""
    return _pick(a, b, np.signbit(a), lambda x, y: x < y)


def maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """maxNum, as `minimum`."""
    return _pick(a, b, ~np.signbit(a), lambda x, y: x > y)


def _pick(a: np.ndarray, b: np.ndarray, tie_first: np.ndarray, better: Callable[..., np.ndarray]) -> np.ndarray:
    first = np.where(a == b, tie_first, better(a, b))
    chosen = np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where(first, a, b)))
    return np.where(is_signaling(a) | is_signaling(b), np.float32(np.nan), chosen)


def is_signaling(x: np.ndarray) -> np.ndarray:
    """Which float32 are signaling NaNs."""
    return np.isnan(x) & (x.view(np.uint32) & 0x400000 == 0)


def flushed(x: np.ndarray) -> np.ndarray:
    """float32 with denormals replaced by zeros of their sign."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def saturated(x: np.ndarray, low: int, high: int) -> np.ndarray:
    """Floats truncated to integers inside a range, NaN as 0; int64."""
    clipped = np.clip(np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=1e30, neginf=-1e30)), low, high)
    return clipped.astype(np.int64)
