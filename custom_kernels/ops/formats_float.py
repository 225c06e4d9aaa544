"""Formats whose codes are small floating-point numbers: weight[n, k] = element(code[n, k]) * scale of its block.

| format      | element | codes (int8)  | scale                                    | block              |
|-------------|---------|---------------|------------------------------------------|--------------------|
| mxfp4       | E2M1    | N, K/2        | int8 [N, K/32], E8M0                     | 32 columns         |
| nvfp4       | E2M1    | N, K/2        | int8 [N, K/16], E4M3; times global_scale | 16 columns         |
| mxfp8       | E4M3    | N, K          | int8 [N, K/32], E8M0                     | 32 columns         |
| fp8_tensor  | E4M3    | N, K          | float32 [1, 1]                           | the tensor         |
| fp8_channel | E4M3    | N, K          | float32 [N, 1]                           | a row              |
| fp8_block128| E4M3    | N, K          | float32 [ceil(N/128), ceil(K/128)]       | 128 rows x columns |

`global_scale` is float32 [1]. Byte i of E2M1 codes holds column 2 i in the low nibble, 2 i + 1 in the high one. K is a
multiple of 32. E8M0 is 2^(bits - 127), 255 is NaN; E4M3 has no infinity, 0x7F and 0xFF are NaN.
Sources: OCP Microscaling Formats 1.0 (E2M1, E4M3, E8M0, mxfp4, mxfp8); NVIDIA's description of NVFP4; the
`weight_block_size` of DeepSeek-V3's checkpoints (fp8_block128).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from .bit_stream import unpack_bytes

ALIGN = 32  # columns are a multiple of this
BLOCK = 128  # rows and columns of a block of fp8_block128


def _float(bits: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def decode_e2m1(codes: jax.Array) -> jax.Array:
    """int32 codes 0 .. 15 -> float32: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives."""
    magnitude = codes & 7
    value = jnp.where(magnitude < 2, magnitude.astype(jnp.float32) * 0.5, _float((magnitude << 22) + (126 << 23)))
    return jnp.where(codes & 8, -value, value)


def decode_e4m3(codes: jax.Array) -> jax.Array:
    """int32 codes 0 .. 255 (the bits of an E4M3 "fn" number) -> float32."""
    magnitude = codes & 127
    value = jnp.where(magnitude < 8, magnitude.astype(jnp.float32) * 2.0**-9, _float((magnitude << 20) + (120 << 23)))
    return jnp.where(magnitude == 127, jnp.float32(jnp.nan), jnp.where(codes & 128, -value, value))


def scaled_by_e8m0(values: jax.Array, bits: jax.Array) -> jax.Array:
    """values float32 times 2^(bits - 127); bits int32 0 .. 255 of the same shape.

    2^-127 is subnormal, which XLA takes for zero: below 1 the scale is made twice as large and the values halved.
    """
    small = bits < 128
    scale = jnp.where(bits == 255, jnp.float32(jnp.nan), _float((bits + small) << 23))
    return jnp.where(small, values * 0.5, values) * scale


@dataclass(frozen=True)
class FloatFormat:
    """One row of the module's table. block: (rows, columns) that share a scale; 0: all of them."""

    name: str
    element: str  # e2m1, e4m3
    scale: str  # e8m0, e4m3, f32
    block: tuple[int, int]

    @property
    def bits(self) -> int:
        """Of a code."""
        return 4 if self.element == "e2m1" else 8

    def parts(self, n: int, k: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """See `WeightFormat.parts`."""
        if k % ALIGN:
            raise ValueError(f"{self.name}: {k} columns are not a multiple of {ALIGN}")
        rows, columns = self.block
        blocks = (-(-n // rows) if rows else 1, -(-k // columns) if columns else 1)
        parts: dict[str, tuple[tuple[int, ...], np.dtype]] = {
            "codes": ((n, k * self.bits // 8), np.dtype(np.int8)),
            "scale": (blocks, np.dtype(np.float32 if self.scale == "f32" else np.int8)),
        }
        if self.scale == "e4m3":
            parts["global_scale"] = ((1,), np.dtype(np.float32))
        return parts

    def dequantize(self, parts: Mapping[str, jax.Array]) -> jax.Array:
        """See `WeightFormat.dequantize`."""
        codes = unpack_bytes(parts["codes"], self.bits)
        values = decode_e2m1(codes) if self.element == "e2m1" else decode_e4m3(codes)
        n, k = values.shape
        if self.scale == "f32":
            return values * self._per_weight(parts["scale"], n, k)
        bits = jnp.repeat(parts["scale"].astype(jnp.int32) & 255, self.block[1], axis=1)
        if self.scale == "e8m0":
            return scaled_by_e8m0(values, bits)
        return values * (decode_e4m3(bits) * parts["global_scale"].reshape(1, 1))

    def _per_weight(self, scale: jax.Array, n: int, k: int) -> jax.Array:
        """float32 scales of blocks -> [n, k] (or what broadcasts to it)."""
        rows, columns = self.block
        if rows > 1 and scale.shape[0] != n:  # not taken row by row
            scale = jnp.repeat(scale, rows, axis=0)[:n]
        return jnp.repeat(scale, columns, axis=1)[:, :k] if columns else scale

    def take_rows(self, parts: Mapping[str, jax.Array], rows: jax.Array) -> dict[str, jax.Array]:
        """See `WeightFormat.take_rows`."""
        taken = dict(parts) | {"codes": jnp.take(parts["codes"], rows, axis=0, mode="clip")}
        if self.block[0]:
            last = parts["codes"].shape[0] - 1
            taken["scale"] = jnp.take(parts["scale"], jnp.clip(rows, 0, last) // self.block[0], axis=0, mode="clip")
        return taken


FLOAT_FORMATS: dict[str, FloatFormat] = {
    f.name: f
    for f in (
        FloatFormat("mxfp4", "e2m1", "e8m0", (1, 32)),
        FloatFormat("nvfp4", "e2m1", "e4m3", (1, 16)),
        FloatFormat("mxfp8", "e4m3", "e8m0", (1, 32)),
        FloatFormat("fp8_tensor", "e4m3", "f32", (0, 0)),
        FloatFormat("fp8_channel", "e4m3", "f32", (1, 0)),
        FloatFormat("fp8_block128", "e4m3", "f32", (BLOCK, BLOCK)),
    )
}
