"""`strixhlo.quantized_matmul`: y[m, n] = sum over k of x[m, k] * weight[n, k], the weight in a low-bit format.

Operands: x [M, K] (float32, float16 or bfloat16: activations.py); then the parts of the weight in the order of
`WeightFormat.parts`. Result: [M, N] of the type of x.
Attribute: `format`, a key of `FORMATS`. Nothing is updated in place.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from .activations import alike, float32
from .formats import FORMATS, dequantize

NAME = "strixhlo.quantized_matmul"


def reference(x: jax.Array, *parts: jax.Array, format: str) -> jax.Array:
    """The semantics in plain jnp: float32 weights, float32 accumulation."""
    fmt = FORMATS[format]
    names = fmt.parts(parts[0].shape[0], x.shape[1])
    weight = dequantize(fmt, dict(zip(names, parts, strict=True)))
    return jnp.einsum("mk,nk->mn", float32(x), weight, precision=jax.lax.Precision.HIGHEST).astype(x.dtype)


_composite = jax.lax.composite(reference, name=NAME)


def quantized_matmul(x: jax.Array, parts: Mapping[str, jax.Array], format: str) -> jax.Array:
    """x [M, K], parts of an [N, K] weight -> [M, N] of the type of x."""
    alike(x)
    names = FORMATS[format].parts(parts["codes"].shape[0], x.shape[1])  # jax.jit sorts the keys of a dict
    return _composite(x, *(parts[name] for name in names), format=format)
