"""`strixhlo.add_gated`: what a gated shared expert adds to the residual stream (Qwen2-MoE).

  y[m, n] = base[m, n] + scale * sigmoid(logits[m, column]) * x[m, n]

Operands: base, x [M, N], logits [M, L] (activations.py). Attributes: column, scale. Result: [M, N] of the type of x.
The compiler makes it a part of the `moe_down` that adds to the result, where there is one (compile/fuse_experts.py).
"""

from __future__ import annotations

import jax

from .activations import alike, float32

NAME = "strixhlo.add_gated"


def reference(base: jax.Array, x: jax.Array, logits: jax.Array, *, column: int, scale: float) -> jax.Array:
    """The semantics in plain jnp."""
    gate = jax.nn.sigmoid(float32(logits[:, column : column + 1]))
    return (float32(base) + scale * (gate * float32(x))).astype(x.dtype)


_composite = jax.lax.composite(reference, name=NAME)


def add_gated(base: jax.Array, x: jax.Array, logits: jax.Array, *, column: int, scale: float = 1.0) -> jax.Array:
    """base, x [M, N], logits [M, L] -> [M, N]. See the module's text."""
    alike(base, x, logits)
    return _composite(base, x, logits, column=column, scale=scale)
