"""Random weights of every quantized format, as the kernel tests want them: ordinary values with odd ones among them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np

from strixhlo.custom_kernels.ops.bit_stream import pack_stream
from strixhlo.custom_kernels.ops.formats import FORMATS, dequantize
from strixhlo.custom_kernels.ops.formats_affine import BITS, AffineFormat
from strixhlo.custom_kernels.ops.formats_float import FloatFormat
from strixhlo.custom_kernels.ops.formats_gguf import GGUF_FORMATS, GgufFormat, pack_codes

REALS = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class Case:
    """A format, and for affine ones the types of scales and biases (keys of REALS)."""

    format: str
    scale: str = "f32"
    bias: str = "f32"

    @property
    def dtypes(self) -> dict[str, str]:
        return {"scale": self.scale, "bias": self.bias}

    @property
    def columns(self) -> tuple[int, ...]:
        fmt = FORMATS[self.format]
        if isinstance(fmt, AffineFormat):
            return (fmt.group, 1152)  # 36 runs
        if isinstance(fmt, GgufFormat) and fmt.super_group:
            return 256, 768
        return (96, 576) if isinstance(fmt, FloatFormat) else (32, 96, 480, 576)  # 3 and 18 runs

    @property
    def rows(self) -> int:
        return 150 if self.format == "fp8_block128" else 67

    @property
    def integer(self) -> bool:
        """Whether a kernel for 8-bit activations exists."""
        return "fp8" not in self.format


CASES = {name: Case(name) for name, fmt in FORMATS.items() if not isinstance(fmt, AffineFormat)}
for _bits in BITS:
    for _group, _scale, _bias in ((32, "f32", "f32"), (64, "bf16", "bf16"), (128, "f16", "f32")):
        CASES[f"affine{_bits}_g{_group}"] = Case(f"affine{_bits}_g{_group}", _scale, _bias)
GGUF_CASES = {name: CASES[name] for name in GGUF_FORMATS}


def random_scales(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Mostly ordinary scales, with zeros, subnormal (as float16) ones and large ones among them."""
    scales = rng.standard_normal(shape) * 0.01
    kind = rng.integers(0, 40, shape)
    scales = np.where(kind == 0, 0.0, np.where(kind == 1, scales * 2.0**-14, np.where(kind == 2, scales * 100, scales)))
    return scales.astype(dtype)


def _codes(rng: np.random.Generator, case: Case, n: int, k: int) -> dict[str, np.ndarray]:
    """The packed codes of a weight whose rows from the second on have every code (E4M3: but NaN)."""
    fmt = FORMATS[case.format]
    signed = isinstance(fmt, GgufFormat) and fmt.bits == 8
    low, high = (-128, 128) if signed else (0, 1 << fmt.bits)
    codes = rng.integers(low, high, (n, k))
    every = np.resize(np.arange(low, high), (-(-(high - low) // k), k))
    codes[1 : 1 + len(every)] = every
    if isinstance(fmt, GgufFormat):
        return pack_codes(codes.astype(np.int8), fmt.bits)
    if isinstance(fmt, AffineFormat):
        return {"codes": pack_stream(codes, fmt.bits)}
    if fmt.element == "e2m1":
        return {"codes": (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8).view(np.int8)}
    codes[codes & 127 == 127] = 0
    return {"codes": codes.astype(np.uint8).view(np.int8)}


def _scale(rng: np.random.Generator, case: Case, part: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    fmt = FORMATS[case.format]
    if isinstance(fmt, AffineFormat):
        return random_scales(rng, shape, REALS[case.dtypes[part]])
    if isinstance(fmt, FloatFormat) and dtype == np.int8:  # E8M0 around one; E4M3 of any size, without NaN
        return rng.integers(*((115, 131) if fmt.scale == "e8m0" else (0, 126)), shape).astype(np.int8)
    if dtype == np.int8:
        return rng.integers(-128, 128, shape).astype(np.int8)
    return random_scales(rng, shape, dtype) if part != "global_scale" else np.full(1, 0.00731, np.float32)


@lru_cache(maxsize=256)
def random_weight(case: Case, k: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Parts of a random [case.rows, k] weight with every code in it, and its values in float64."""
    fmt, n = FORMATS[case.format], case.rows
    rng = np.random.default_rng([k, len(case.format), *case.format.encode()])
    packed = _codes(rng, case, n, k)
    parts = {}
    for part, (shape, dtype) in fmt.parts(n, k).items():
        made = packed[part] if part in packed else _scale(rng, case, part, shape, dtype)
        parts[part] = np.ascontiguousarray(made).reshape(shape)
    return parts, np.asarray(dequantize(fmt, parts)).astype(np.float64)


def first_rows(case: Case, parts: dict[str, np.ndarray], n: int, k: int) -> dict[str, np.ndarray]:
    """The parts of a weight that is the first n rows of another."""
    return {name: parts[name][: shape[0]] for name, (shape, _) in FORMATS[case.format].parts(n, k).items()}
