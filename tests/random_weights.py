"""Random weights of the formats whose codes are streams, as their kernels' tests need them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from strixhlo.custom_kernels.ops.formats import FORMATS, WeightFormat
from strixhlo.custom_kernels.ops.formats_gguf import GgufFormat

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
SCALES = np.array([6e-8, 3e-5, 0.01, -0.7, 1.5, 300.0, -60000.0, 0.0], np.float16)
E8M0 = np.array([1, 60, 100, 126, 127, 128, 150], np.uint8)


def split(name: str) -> tuple[WeightFormat, tuple[str, ...]]:
    """affine4_g64_f16_f32 -> the format, dtypes of scale and bias."""
    if not name.startswith("affine"):
        return FORMATS[name], ()
    bits, group, scale, bias = name.split("_")
    return FORMATS[f"{bits}_{group}"], (scale, bias)


def e4m3(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    bits = rng.integers(0, 256, shape, dtype=np.uint8)
    return np.where(bits & 127 == 127, 0x7E, bits).astype(np.uint8).view(np.int8)


def random_parts(name: str, n: int, k: int, seed: int) -> dict[str, np.ndarray]:
    """Finite weights of every code, with extreme scales among the ordinary ones."""
    fmt, dtypes = split(name)
    rng = np.random.default_rng(seed)
    parts = {}
    for part, (shape, dtype) in fmt.parts(n, k).items():
        if part in ("scale", "bias") and dtypes:
            parts[part] = rng.choice(SCALES, shape).astype(DTYPES[dtypes[part == "bias"]])
        elif part == "scale" and name in ("mxfp4", "mxfp8"):
            parts[part] = rng.choice(E8M0, shape).view(np.int8)
        elif dtype.kind == "f":
            parts[part] = rng.choice(SCALES, shape).astype(dtype) if part != "global_scale" else np.float32([0.013])
        elif dtype == np.int8 and not isinstance(fmt, GgufFormat) and (part == "scale" or fmt.bits == 8):
            parts[part] = e4m3(rng, shape)
        else:
            limit = 2 ** (8 * dtype.itemsize - 1)
            parts[part] = rng.integers(-limit, limit, shape, dtype=np.int64).astype(dtype)
    return parts
