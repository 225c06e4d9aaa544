"""`strixhlo.embedding`: rows of a weight, times a factor.

  y[t, k] = weight[tokens[t], k] * scale

Operands: tokens int32 [T] (numbers outside of the weight's rows count as its first or last); the parts of a weight
[N, K] in the order of `WeightFormat.parts` (of one that is not quantized its array). Attributes: format, a key of
FORMATS or a dtype ("f16"); columns (K); scale; dtype, of the result ("f32", "f16", "bf16").
Result: activations (activations.py) [T, K], computed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from .activations import DTYPES
from .formats import FORMATS, dequantize_rows
from .moe_matmul import part_names

NAME = "strixhlo.embedding"


def operand_names(attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a call with these attributes."""
    return ("tokens", *part_names(attributes["format"], 1, attributes["columns"]))


def reference(tokens: jax.Array, *parts: jax.Array, **attributes: Any) -> jax.Array:
    """The semantics in plain jnp; only the rows that are asked for are decoded."""
    if attributes["format"] in FORMATS:
        named = dict(zip(operand_names(attributes)[1:], parts, strict=True))
        rows = dequantize_rows(FORMATS[attributes["format"]], named, tokens)
    else:
        rows = jnp.take(parts[0], tokens, axis=0, mode="clip").astype(jnp.float32)
    return (rows * jnp.float32(attributes["scale"])).astype(DTYPES[attributes["dtype"]])


_composite = jax.lax.composite(reference, name=NAME)


def embedding(
    tokens: jax.Array, parts: Mapping[str, jax.Array], format: str, columns: int, scale: float, dtype: str
) -> jax.Array:
    """tokens int32 [T] -> [T, columns] of `dtype`. See the module's text."""
    operands = (parts[name] for name in part_names(format, 1, columns))
    return _composite(tokens, *operands, format=format, columns=columns, scale=float(scale), dtype=dtype)
