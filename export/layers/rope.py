"""Rotary position embedding (Su et al., arXiv:2104.09864), the half-split layout of Hugging Face.

The cosines and sines are a table that is made at export, in double precision, and stored as a weight: the compiler's
own float32 sine is off by 1e-4 at position 4,000, and by 4e-3 at 130,000.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import StrixhloError
from ..config_values import count, positive, shown, wrong


@dataclass(frozen=True)
class RopeScaling:
    """The "rope_scaling" block of config.json: none, linear, or Llama 3's."""

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192

    @classmethod
    def from_config(cls, block: Mapping[str, Any] | None) -> RopeScaling:
        """Reads the block; a kind that is not supported is an error that names it."""
        if not block:
            return cls()
        if not isinstance(block, Mapping):
            raise wrong("rope_scaling", block, "an object")
        kind = block.get("rope_type", block.get("type", "default"))
        if kind == "default":
            return cls()
        if kind not in ("linear", "llama3"):
            raise StrixhloError(
                f"rope scaling of type {shown(kind)} is not supported; supported: default, linear, llama3"
            )
        factor = positive(block, "factor")
        if kind == "linear":
            return cls(kind, factor)
        low, high = positive(block, "low_freq_factor"), positive(block, "high_freq_factor")
        if low >= high:
            raise wrong("high_freq_factor", high, f"above low_freq_factor = {low}")
        return cls(kind, factor, low, high, count(block, "original_max_position_embeddings"))


def inverse_frequencies(head_dim: int, base: float, scaling: RopeScaling) -> np.ndarray:
    """float32 [head_dim / 2], rounded as transformers rounds them."""
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    inverse = (1.0 / np.power(np.float64(base), exponent.astype(np.float64)).astype(np.float32)).astype(np.float32)
    if scaling.kind == "linear":
        return inverse / np.float32(scaling.factor)
    if scaling.kind == "llama3":
        return _llama3(inverse, scaling)
    return inverse


def _llama3(inverse: np.ndarray, s: RopeScaling) -> np.ndarray:
    """Llama 3.1: low frequencies divided by the factor, high ones kept, a linear ramp between."""
    wavelength = 2 * math.pi / inverse
    ramp = (s.original_context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    ramp = np.clip(ramp, 0.0, 1.0).astype(np.float32)
    return ((1 - ramp) * inverse / np.float32(s.factor) + ramp * inverse).astype(np.float32)


def rope_table(inverse: np.ndarray, context: int) -> np.ndarray:
    """float32 [context, 4, head_dim / 2] of each position's angles (rounded to float32): cos, sin, -sin, cos.

    That is the rotation matrix column by column, so that `rope` is one elementwise expression without a concatenation.
    """
    angle = (np.arange(context, dtype=np.float32)[:, None] * inverse[None, :]).astype(np.float64)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([cos, sin, -sin, cos], axis=1).astype(np.float32)


def rope(x: jax.Array, table: jax.Array, positions: jax.Array) -> jax.Array:
    """x float32 [T, heads, head_dim] rotated to `positions` int32 [T], by a `rope_table`."""
    t, heads, head_dim = x.shape
    matrix = jnp.take(table, positions, axis=0, mode="clip").reshape(t, 1, 2, 2, head_dim // 2)
    halves = x.reshape(t, heads, 2, head_dim // 2)
    rotated = halves[:, :, 0:1] * matrix[:, :, 0] + halves[:, :, 1:2] * matrix[:, :, 1]
    return rotated.reshape(t, heads, head_dim)
