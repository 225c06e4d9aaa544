"""Rotary position embedding (Su et al., arXiv:2104.09864), in Hugging Face's half-split layout and in the original one.

The cosines and sines are a table that is made at export, in double precision, and stored as a weight: the compiler's
own float32 sine is off by 1e-4 at position 4,000, and by 4e-3 at 130,000.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ...custom_kernels.ops.activations import float32
from ...custom_kernels.ops.rope import rope
from ..config_values import positive
from .rope_scaling import RopeScaling
from .weights import Weights

TABLE = "rope.table"
UNSCALED = RopeScaling()


@dataclass(frozen=True)
class Rope:
    """One rotary embedding of a model, which may have several.

    dims: how many leading values of each head are rotated, the rest passes. table: the weight that holds its angles.
    interleaved: values 2i and 2i+1 are a pair; otherwise i and i + dims/2.
    """

    dims: int
    base: float
    scaling: RopeScaling = UNSCALED
    table: str = TABLE
    interleaved: bool = False

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], head_dim: int, base: float = 10000.0, *, interleaved: bool = False
    ) -> Rope:
        """The whole head rotated, as rope_theta (default: `base`) and rope_scaling say."""
        base = positive(config, "rope_theta", base)
        return cls(head_dim, base, RopeScaling.from_config(config), interleaved=interleaved)

    def angles(self, context: int) -> np.ndarray:
        """The `rope_table` of this embedding."""
        inverse = inverse_frequencies(self.dims, self.base, self.scaling, context)
        return rope_table(inverse, context, self.scaling.magnitude_in(context))

    def __call__(self, x: jax.Array, w: Weights, positions: jax.Array) -> jax.Array:
        """x [T, heads, head_dim] rotated in float32 to `positions` int32 [T]."""
        return rope(float32(x), w[self.table].dense, positions, self.interleaved).astype(x.dtype)


def inverse_frequencies(dims: int, base: float, scaling: RopeScaling, context: int = 0) -> np.ndarray:
    """float32 [dims / 2], rounded as transformers rounds them. context: how many positions will be used."""
    exponent = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    inverse = (1.0 / np.power(np.float64(base), exponent.astype(np.float64)).astype(np.float32)).astype(np.float32)
    return scaling.scaled(inverse, base, context)


def rope_table(inverse: np.ndarray, context: int, magnitude: float = 1.0) -> np.ndarray:
    """float32 [context, 4, dims / 2] of each position's angles (rounded to float32): cos, sin, -sin, cos.

    That is the rotation matrix column by column, so that `rope` is one elementwise expression without a concatenation.
    magnitude: a factor on all of them, by which some scalings lengthen q and k.
    """
    angle = (np.arange(context, dtype=np.float32)[:, None] * inverse[None, :]).astype(np.float64)
    cos, sin = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    return np.stack([cos, sin, -sin, cos], axis=1).astype(np.float32)
