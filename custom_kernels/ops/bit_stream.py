"""Codes of 2 to 8 bits as one stream of bits: 32-bit words, the first code in the lowest bits of the first word.

MLX packs its affine formats so (`mlx.core.quantize`); codes of 3, 5 and 6 bits cross the words' borders.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def pack_stream(codes: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned codes [n, k] below 2**bits, k a multiple of 32 -> int32 [n, k * bits / 32]."""
    n, k = codes.shape
    planes = np.unpackbits(codes.astype(np.uint8).reshape(n, k, 1), axis=-1, bitorder="little", count=bits)
    return np.packbits(planes.reshape(n, k * bits), axis=-1, bitorder="little").view("<i4")


def unpack_stream(words: jax.Array, bits: int) -> jax.Array:
    """int32 [n, k * bits / 32] -> int32 codes [n, k]."""
    n = words.shape[0]
    if 32 % bits == 0:
        shifts = jnp.arange(32 // bits, dtype=jnp.int32) * bits
        return ((words[..., None] >> shifts) & ((1 << bits) - 1)).reshape(n, -1)
    stream = (words[..., None] >> jnp.arange(32, dtype=jnp.int32)) & 1
    return (stream.reshape(n, -1, bits) << jnp.arange(bits, dtype=jnp.int32)).sum(axis=-1)


def unpack_bytes(codes: jax.Array, bits: int) -> jax.Array:
    """int8 [n, k * bits / 8] of 4 or 8 bit codes, the first code in the low bits -> int32 codes [n, k]."""
    codes = codes.astype(jnp.int32) & 255
    if bits == 8:
        return codes
    nibble = 4 * jnp.arange(2, dtype=jnp.int32)
    return ((codes[..., None] >> nibble) & 15).reshape(codes.shape[0], -1)
