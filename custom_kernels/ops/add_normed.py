"""`strixhlo.add_normed`: what a layer with a norm after its attention or MLP adds to the residual stream.

  y[m, k] = (base[m, k] + rms_norm(x)[m, k]) * factor

Operands: base, x [M, K] (activations.py); weight float32 [K], to which `offset` is added; with `scaled`, factor
float32 [1]; with `based`, the weight float32 [K] of such a norm of base, which comes first.
Attributes: epsilon, offset (of both norms), scaled; based, absent where not. Result: [M, K] of the type of x.
The compiler makes it a part of the `fused_matmul` that takes the result, where there is one (compile/fuse_sums.py).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .activations import alike, float32
from .norm import rms_norm

NAME = "strixhlo.add_normed"


def reference(base: jax.Array, x: jax.Array, weight: jax.Array, *factor: jax.Array, **attributes: Any) -> jax.Array:
    """The semantics in plain jnp."""
    if attributes.get("based", False):
        base_weight = factor[-1] + jnp.float32(attributes["offset"])
        base = rms_norm(float32(base), base_weight, attributes["epsilon"])
    y = float32(base) + rms_norm(float32(x), weight + jnp.float32(attributes["offset"]), attributes["epsilon"])
    return (y * factor[0] if attributes["scaled"] else y).astype(x.dtype)


_composite = jax.lax.composite(reference, name=NAME)


def add_normed(
    base: jax.Array,
    x: jax.Array,
    weight: jax.Array,
    *,
    epsilon: float,
    offset: float = 0.0,
    factor: jax.Array | None = None,
    base_weight: jax.Array | None = None,
) -> jax.Array:
    """base, x [M, K], weight and base_weight float32 [K], factor float32 [1] -> [M, K]. See the module's text."""
    alike(base, x)
    further = tuple(of for of in (factor, base_weight) if of is not None)
    how = {"based": True} if base_weight is not None else {}
    return _composite(base, x, weight, *further, epsilon=epsilon, offset=offset, scaled=factor is not None, **how)
