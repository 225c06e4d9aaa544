"""GGUF's formats, their blocks taken apart: how integer codes become weights.

    weight[n, k] = (code[n, k] - zero) * scale[n, k // group] + minimum[n, k // group]

`scale` and `minimum` are float16 per group or, for two-level formats (GGUF K-quants), an int8 per group times a
float16 per `super_group` weights. GGUF's K-quants subtract their minimum: repacked, the super-minimum is negated.

A weight of N rows and K columns is stored as planar arrays ("parts"), each row contiguous, K a multiple of 32 (of 256
for two-level formats). Codes of 4 bits and more are packed in runs of 32 weights:

| part        | dtype | shape                  | holds                                                              |
|-------------|-------|------------------------|--------------------------------------------------------------------|
| codes       | int8  | N, K/2 (K for 8 bit)   | byte i of a run: weight i in the low nibble, i+16 in the high one  |
| high        | int32 | N, K/32 * (bits - 4)   | 5, 6 bit: per run one word per bit plane (bit 4, 5), bit i: weight i |
| scale       | float16 or int8 | N, K/group   |                                                                    |
| super_scale | float16 | N, K/super_group     | two-level formats                                                  |
| minimum     | float16 or int8 | N, K/group   | formats with a minimum                                             |
| super_minimum | float16 | N, K/super_group   | two-level formats with a minimum                                   |

8-bit codes are signed and in natural order. Codes of 2 and 3 bits are int32 [N, K*bits/32], a stream of bits
(bit_stream.py). Source of the formats: ggml-quants (block_q4_0 ... block_q6_K).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from .bit_stream import pack_stream, unpack_stream

RUN = 32  # weights packed together


@dataclass(frozen=True)
class GgufFormat:
    """How integer codes of one quantized format become weights; see the module's text."""

    name: str
    bits: int
    group: int
    zero: int = 0
    minimum: bool = False
    super_group: int = 0  # 0: one-level float16 scales

    def parts(self, n: int, k: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Name -> (shape, dtype) of every stored part of an [n, k] weight, in operand order."""
        if k % (self.super_group or RUN):
            raise ValueError(f"{self.name}: {k} columns are not a multiple of {self.super_group or RUN}")
        int8, half = np.dtype(np.int8), np.dtype(np.float16)
        per_group: np.dtype = int8 if self.super_group else half
        parts: dict[str, tuple[tuple[int, ...], np.dtype]] = {"codes": ((n, k if self.bits == 8 else k // 2), int8)}
        if self.bits < 4:
            parts["codes"] = ((n, k * self.bits // 32), np.dtype(np.int32))
        if self.bits in (5, 6):
            parts["high"] = ((n, k // RUN * (self.bits - 4)), np.dtype(np.int32))
        parts["scale"] = ((n, k // self.group), per_group)
        if self.super_group:
            parts["super_scale"] = ((n, k // self.super_group), half)
        if self.minimum:
            parts["minimum"] = ((n, k // self.group), per_group)
            if self.super_group:
                parts["super_minimum"] = ((n, k // self.super_group), half)
        return parts

    def dequantize(self, parts: Mapping[str, jax.Array]) -> jax.Array:
        """See `WeightFormat.dequantize`."""
        codes = unpack_codes(parts, self.bits)
        n, k = codes.shape
        grouped = (codes - self.zero).astype(jnp.float32).reshape(n, k // self.group, self.group)
        weight = grouped * _per_group(parts, "scale", self.group, self.super_group)[..., None]
        if self.minimum:
            weight = weight + _per_group(parts, "minimum", self.group, self.super_group)[..., None]
        return weight.reshape(n, k)

    def take_rows(self, parts: Mapping[str, jax.Array], rows: jax.Array) -> dict[str, jax.Array]:
        """See `WeightFormat.take_rows`."""
        return {name: jnp.take(part, rows, axis=0, mode="clip") for name, part in parts.items()}


GGUF_FORMATS: dict[str, GgufFormat] = {
    f.name: f
    for f in (
        GgufFormat("q4_0", bits=4, group=32, zero=8),
        GgufFormat("q4_1", bits=4, group=32, minimum=True),
        GgufFormat("q5_0", bits=5, group=32, zero=16),
        GgufFormat("q5_1", bits=5, group=32, minimum=True),
        GgufFormat("q8_0", bits=8, group=32),
        GgufFormat("q2_k", bits=2, group=16, minimum=True, super_group=256),
        GgufFormat("q3_k", bits=3, group=16, zero=4, super_group=256),
        GgufFormat("q4_k", bits=4, group=32, minimum=True, super_group=256),
        GgufFormat("q5_k", bits=5, group=32, minimum=True, super_group=256),
        GgufFormat("q6_k", bits=6, group=16, zero=32, super_group=256),
    )
}


def pack_codes(codes: np.ndarray, bits: int) -> dict[str, np.ndarray]:
    """uint8 or int8 codes [n, k] (0 .. 2**bits - 1; signed for 8 bit) -> the `codes` and `high` parts."""
    n, k = codes.shape
    if bits == 8:
        return {"codes": codes.astype(np.int8, copy=False)}
    if bits < 4:
        return {"codes": pack_stream(codes, bits)}
    runs = codes.astype(np.uint8, copy=False).reshape(n, k // RUN, RUN)
    low = (runs[:, :, :16] & 15) | ((runs[:, :, 16:] & 15) << 4)
    parts = {"codes": low.reshape(n, k // 2).view(np.int8)}
    if bits > 4:
        planes = [np.packbits((runs >> bit) & 1, axis=-1, bitorder="little").view("<i4") for bit in range(4, bits)]
        parts["high"] = np.concatenate(planes, axis=-1).reshape(n, -1)
    return parts


def unpack_codes(parts: Mapping[str, jax.Array], bits: int) -> jax.Array:
    """The `codes` and `high` parts -> int32 codes [n, k]."""
    if bits < 4:
        return unpack_stream(parts["codes"], bits)
    codes = parts["codes"].astype(jnp.int32)
    if bits == 8:
        return codes
    n = codes.shape[0]
    # Elementwise all through, and with iotas for arrays: a concatenation, a sum and a constant would each cost a
    # dispatch where the compiler's own code looks up an embedding.
    nibble = 4 * jnp.arange(2, dtype=jnp.int32)[:, None]
    runs = (codes & 255).reshape(n, -1, 1, 16)
    unpacked = ((runs >> nibble) & 15).reshape(n, -1, RUN)
    for plane in range(bits - 4):
        words = parts["high"].reshape(n, -1, bits - 4)[:, :, plane, None]
        unpacked = unpacked | (((words >> jnp.arange(RUN, dtype=jnp.int32)) & 1) << (4 + plane))
    return unpacked.reshape(n, -1)


def _per_group(parts: Mapping[str, jax.Array], name: str, group: int, super_group: int) -> jax.Array:
    """float32 scales or minima [n, k / group]."""
    value = parts[name].astype(jnp.float32)
    if super_group:
        value = value * jnp.repeat(parts[f"super_{name}"].astype(jnp.float32), super_group // group, axis=1)
    return value
