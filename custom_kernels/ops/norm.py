"""Normalization over the last axis: RMSNorm (arXiv:1910.07467) and LayerNorm (arXiv:1607.06450) without a bias."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rms_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """x float32 [..., n] over its root mean square, times weight float32 [n]."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def layer_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """x float32 [..., n] less its mean, over its standard deviation, times weight float32 [n]."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + epsilon) * weight
