"""Normalization: RMSNorm (Zhang and Sennrich, arXiv:1910.07467), LayerNorm (Ba et al., arXiv:1607.06450)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from .weights import Weights


def rms_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """x float32 [..., n] over its root mean square, times weight float32 [n]."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def layer_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """x float32 [..., n] less its mean, over its standard deviation, times weight float32 [n]."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + epsilon) * weight


@dataclass(frozen=True)
class Norm:
    """The norm that a family uses everywhere.

    offset: added to the weight (Gemma's 1). bias: a bias is added, stored beside the weight.
    """

    epsilon: float
    kind: Literal["rms", "layer"] = "rms"
    offset: float = 0.0
    bias: bool = False

    def shapes(self, name: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of its tensors; name: "model.norm"."""
        yield f"{name}.weight", shape
        if self.bias:
            yield f"{name}.bias", shape

    def __call__(self, x: jax.Array, w: Weights, name: str) -> jax.Array:
        """x float32 [..., n], normalized over n by the weight `name`.weight, of shape [n] or x's last dimensions."""
        weight = w[f"{name}.weight"].dense
        if self.offset:
            weight = weight + self.offset
        y = (rms_norm if self.kind == "rms" else layer_norm)(x, weight, self.epsilon)
        return y + w[f"{name}.bias"].dense if self.bias else y
