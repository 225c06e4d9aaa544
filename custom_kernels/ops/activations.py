"""The types of activations: what goes from op to op. float32, float16 or bfloat16, one type in a whole program.

Every op computes in float32, whatever the type of its operands, and rounds its result once, to nearest even. Weights of
norms, biases, tables and logits are float32 in all programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

DTYPES = {"f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16}


def float32(x: jax.Array) -> jax.Array:
    """The same numbers in float32."""
    return x.astype(jnp.float32)


def alike(x: jax.Array, *others: jax.Array) -> None:
    """TypeError unless all are activations of one type."""
    if x.dtype not in DTYPES.values() or any(other.dtype != x.dtype for other in others):
        raise TypeError(f"activations of one type are needed, not {', '.join(str(a.dtype) for a in (x, *others))}")


def activation_operands(op: str, attributes: Mapping[str, Any], operands: int) -> tuple[int, ...]:
    """Which operands of a call are activations; op: "quantized_matmul", operands: how many there are."""
    if op == "rope_and_append":
        return (4,) if attributes["fused"] else (4, 5, 6)
    if op == "embedding":
        return ()
    if op == "add_normed":
        return 0, 1
    if op == "add_gated":
        return 0, 1, 2
    if op == "fused_matmul":  # the residual and the base of a sum stand at the end, before what belongs to the sum
        after = {"": 0, "sum": 2, "scaled": 3}[attributes.get("summed", "")]
        residual = (operands - after - 1,) if attributes["added"] else ()
        return (0, *residual, *((operands - after,) if after else ()))
    if op == "moe_down" and attributes.get("added", False):
        return 0, operands - 1
    return (0,)


def activation_results(op: str, attributes: Mapping[str, Any]) -> tuple[int, ...]:
    """Which results are."""
    if op == "fused_matmul" and attributes.get("summed", ""):
        return 0, 1
    return () if op in ("argmax", "moe_route") else (0,)
