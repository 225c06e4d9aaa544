"""`strixhlo.quantized_matmul`: y[m, n] = sum over k of x[m, k] * weight[n, k], the weight in a low-bit format.

Operands: x float32 [M, K]; then the parts of the weight in the order of `WeightFormat.parts`. Result: float32 [M, N].
Attribute: `format`, a key of `FORMATS`. Nothing is updated in place.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from .formats import FORMATS, dequantize

NAME = "strixhlo.quantized_matmul"


def reference(x: jax.Array, *parts: jax.Array, format: str) -> jax.Array:
    """The semantics in plain jnp: float32 weights, float32 accumulation."""
    fmt = FORMATS[format]
    names = fmt.parts(parts[0].shape[0], x.shape[1])
    weight = dequantize(fmt, dict(zip(names, parts, strict=True)))
    return jnp.einsum("mk,nk->mn", x, weight, precision=jax.lax.Precision.HIGHEST)


_composite = jax.lax.composite(reference, name=NAME)


def quantized_matmul(x: jax.Array, parts: Mapping[str, jax.Array], format: str) -> jax.Array:
    """x float32 [M, K], parts of an [N, K] weight -> float32 [M, N]."""
    names = FORMATS[format].parts(parts["codes"].shape[0], x.shape[1])  # jax.jit sorts the keys of a dict
    return _composite(x, *(parts[name] for name in names), format=format)
