"""The quantized weight formats that `strixhlo.quantized_matmul` reads, by name.

| formats                              | file                | found in                                        |
|--------------------------------------|---------------------|-------------------------------------------------|
| q4_0 ... q8_0, q2_k ... q6_k         | formats_gguf.py     | GGUF, repacked                                  |
| mxfp4, nvfp4, mxfp8, fp8_*           | formats_float.py    | gpt-oss, MLX, compressed-tensors, ModelOpt, HF  |
| affine<bits>_g<group>                | formats_affine.py   | MLX; AWQ and GPTQ by conversion                 |

A weight of N rows and K columns is stored as named arrays ("parts"); which ones, and what they mean, is the format's
text. `parts` gives their shapes and dtypes in operand order, codes first; `dequantize` is the definition of the format
and the oracle of every kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import jax
import numpy as np

from .formats_affine import AFFINE_FORMATS
from .formats_float import FLOAT_FORMATS
from .formats_gguf import GGUF_FORMATS


class WeightFormat(Protocol):
    """How the parts of one quantized format become weights."""

    @property
    def name(self) -> str:
        """The key in FORMATS."""

    def parts(self, n: int, k: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Name -> (shape, dtype) of every part of an [n, k] weight, in operand order, codes first.

        Raises ValueError when the format has no weight of k columns. The dtype of an affine format's scale and bias is
        the one that they usually have: float16, bfloat16 and float32 arrays are all allowed.
        """

    def dequantize(self, parts: Mapping[str, jax.Array]) -> jax.Array:
        """The weights in float32 [n, k]."""

    def take_rows(self, parts: Mapping[str, jax.Array], rows: jax.Array) -> dict[str, jax.Array]:
        """The parts of a weight that has only these rows (int32 [t], clipped to the weight), for `dequantize`."""


FORMATS: dict[str, WeightFormat] = {**GGUF_FORMATS, **FLOAT_FORMATS, **AFFINE_FORMATS}


def dequantize(fmt: WeightFormat, parts: Mapping[str, jax.Array]) -> jax.Array:
    """The weights in float32 [n, k]."""
    return fmt.dequantize(parts)


def dequantize_rows(fmt: WeightFormat, parts: Mapping[str, jax.Array], rows: jax.Array) -> jax.Array:
    """Rows int32 [t] of a weight [n, k] -> float32 [t, k]; only they are dequantized."""
    return fmt.dequantize(fmt.take_rows(parts, rows))
