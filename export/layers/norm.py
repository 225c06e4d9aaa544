"""RMS normalization."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rms_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """x float32 [..., n] over its root mean square, times weight float32 [n] (Zhang and Sennrich, arXiv:1910.07467)."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight
