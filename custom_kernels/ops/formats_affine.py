"""MLX's affine formats: weight[n, k] = code[n, k] * scale[n, k // group] + bias[n, k // group], codes unsigned.

| part  | dtype                        | shape          |
|-------|------------------------------|----------------|
| codes | int32                        | N, K*bits/32   |
| scale | float16, bfloat16 or float32 | N, K/group     |
| bias  | float16, bfloat16 or float32 | N, K/group     |

Codes are a stream of bits (bit_stream.py) exactly as MLX stores it (uint32 there). Scales may be negative. AWQ and GPTQ
weights, scale * (code - zero), are converted with the bias in float32, which holds -scale * zero exactly.
Source: `mlx.core.quantize`, mode "affine".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from .bit_stream import unpack_stream

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)


@dataclass(frozen=True)
class AffineFormat:
    """Codes of `bits` bits, a scale and a bias for each `group` columns; see the module's text."""

    bits: int
    group: int

    @property
    def name(self) -> str:
        return f"affine{self.bits}_g{self.group}"

    def parts(self, n: int, k: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """See `WeightFormat.parts`."""
        if k % self.group:
            raise ValueError(f"{self.name}: {k} columns are not a multiple of {self.group}")
        grouped = ((n, k // self.group), np.dtype(np.float32))
        return {"codes": ((n, k * self.bits // 32), np.dtype(np.int32)), "scale": grouped, "bias": grouped}

    def dequantize(self, parts: Mapping[str, jax.Array]) -> jax.Array:
        """See `WeightFormat.dequantize`."""
        codes = unpack_stream(parts["codes"], self.bits).astype(jnp.float32)
        n, k = codes.shape
        scale, bias = (parts[name].astype(jnp.float32)[..., None] for name in ("scale", "bias"))
        return (codes.reshape(n, k // self.group, self.group) * scale + bias).reshape(n, k)

    def take_rows(self, parts: Mapping[str, jax.Array], rows: jax.Array) -> dict[str, jax.Array]:
        """See `WeightFormat.take_rows`."""
        return {name: jnp.take(part, rows, axis=0, mode="clip") for name, part in parts.items()}


AFFINE_FORMATS: dict[str, AffineFormat] = {f.name: f for f in (AffineFormat(b, g) for b in BITS for g in GROUPS)}
