"""Normalization over the last axis: RMSNorm (arXiv:1910.07467) and LayerNorm (arXiv:1607.06450) without a bias."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .activations import float32


def rms_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """x [..., n] over its root mean square, times weight float32 [n]; computed in float32, of the type of x."""
    y = float32(x)
    return (y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + epsilon) * weight).astype(x.dtype)


def layer_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """x [..., n] less its mean, over its standard deviation, times weight float32 [n]; in float32, of the type of x."""
    y = float32(x)
    centred = y - jnp.mean(y, axis=-1, keepdims=True)
    y = centred * jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + epsilon) * weight
    return y.astype(x.dtype)
