"""The types of a KV pool's elements: float32, float16, bfloat16, and `fp8`, which is E4M3 in int8 arrays (their bits).

E4M3 "fn" (OCP 8-bit floating point, 1.0): 4 exponent bits with bias 7, no infinity, 0x7F and 0xFF are NaN, 448 is the
largest number. Keys and values are rounded to nearest even without a scale; what is larger than 448 becomes 448, as
other engines' unscaled fp8 caches do; NaN stays NaN.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .formats_float import decode_e4m3

FP8 = "fp8"
STORED = {"i8": FP8, "f16": "f16", "bf16": "bf16", "f32": "f32"}  # an array's dtype -> the type of its elements
ARRAY = {kind: array for array, kind in STORED.items()}
BYTES = {"fp8": 1, "f16": 2, "bf16": 2, "f32": 4}
_LARGEST = 0x43E00000  # the bits of 448.0
_SMALLEST_NORMAL = 121 << 23  # the bits of 2^-6
_STEP = 16384.0  # adding it leaves a multiple of 2^-9, the step of E4M3's subnormals


def pool_values(pool: jax.Array) -> jax.Array:
    """The elements of a pool, or of rows of one, in float32; same shape."""
    if pool.dtype == jnp.int8:
        return decode_e4m3(pool.astype(jnp.int32) & 255)
    return pool.astype(jnp.float32)


def pool_elements(values: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """float32 values rounded to elements of a pool of that dtype; same shape."""
    return encode_e4m3(values) if dtype == jnp.int8 else values.astype(dtype)


def encode_e4m3(values: jax.Array) -> jax.Array:
    """float32 -> int8, the bits of the nearest E4M3 number."""
    bits = jax.lax.bitcast_convert_type(values, jnp.int32)
    magnitude = bits & 0x7FFFFFFF
    clipped = jnp.minimum(magnitude, _LARGEST)
    normal = (clipped - (120 << 23) + 0x7FFFF + ((clipped >> 20) & 1)) >> 20
    shifted = jax.lax.bitcast_convert_type(clipped, jnp.float32) + jnp.float32(_STEP)
    subnormal = jax.lax.bitcast_convert_type(shifted, jnp.int32) - (141 << 23)
    code = jnp.where(clipped < _SMALLEST_NORMAL, subnormal, normal)
    code = jnp.where(magnitude > 0x7F800000, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).astype(jnp.int8)
