"""How a GGUF file says that its rotary embedding is scaled -> Hugging Face's `rope_scaling`.

Linear and YaRN scaling are metadata. Llama 3's scaling is a tensor: rope_freqs.weight, one float32 a frequency, by
which llama.cpp divides it. The converter computed it from four numbers, which are found again here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...errors import StrixhloError
from .gguf import GgufFile
from .gguf_metadata import integer, real, text


def rope_scaling(file: GgufFile, prefix: str, config: dict[str, Any]) -> dict[str, Any] | None:
    """`rope_scaling` of a configuration that already has head_dim, rope_theta and max_position_embeddings."""
    scaling = _from_metadata(file, prefix, config)
    if "rope_freqs.weight" not in file.tensors:
        return scaling
    if scaling is not None:
        raise StrixhloError(f"{file.path}: {prefix}rope.scaling together with rope_freqs.weight is not supported")
    original = integer(file, prefix + "rope.scaling.original_context_length", 8192)
    return _from_factors(file, config["rope_theta"], config["head_dim"], original)


def _from_metadata(file: GgufFile, prefix: str, config: dict[str, Any]) -> dict[str, Any] | None:
    factor = real(file, prefix + "rope.scaling.factor", 0.0) or real(file, prefix + "rope.scale_linear", 0.0)
    kind = text(file, prefix + "rope.scaling.type", "linear" if factor not in (0.0, 1.0) else "none")
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return None
    if kind not in ("linear", "yarn") or factor < 1.0:
        raise StrixhloError(f"{file.path}: {prefix}rope.scaling of type {kind!r} and factor {factor} is not supported")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    context = config["max_position_embeddings"]
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": integer(file, prefix + "rope.scaling.original_context_length", context),
        "beta_fast": real(file, prefix + "rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": real(file, prefix + "rope.scaling.yarn_beta_slow", 1.0),
    }


def llama3_factors(
    theta: float, head_dim: int, factor: float, low: float, high: float, original_context: float
) -> np.ndarray:
    """By what Llama 3 divides each of its head_dim/2 frequencies (float64), as in transformers' modeling_rope_utils."""
    wavelength = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original_context / wavelength - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / factor + smooth)


def _from_factors(file: GgufFile, theta: float, head_dim: int, original: int) -> dict[str, Any] | None:
    tensor = file.tensors["rope_freqs.weight"]
    if tensor.type != "F32" or tensor.shape != (head_dim // 2,):
        raise StrixhloError(f"{file.path}: rope_freqs.weight is not {head_dim // 2} float32 numbers")
    factors = file.raw(tensor).view("<f4").astype(np.float64)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise StrixhloError(f"{file.path}: rope_freqs.weight holds impossible numbers; download the file again")
    if (factors == 1.0).all():
        return None
    factor = float(f"{factors.max():.5g}")  # the converter rounded to float32
    for low, high in ((1.0, 4.0), *_fitted_bounds(factors, theta, head_dim, factor, original)):
        if np.allclose(llama3_factors(theta, head_dim, factor, low, high, original), factors, rtol=1e-5, atol=0.0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise StrixhloError(
        f"{file.path}: rope_freqs.weight is not a Llama 3 scaling; convert the model from safetensors instead"
    )


def _fitted_bounds(
    factors: np.ndarray, theta: float, head_dim: int, factor: float, original: int
) -> list[tuple[float, float]]:
    """(low, high) from two frequencies in the ramp, where smooth = (original / wavelength - low) / (high - low)."""
    smooth = (1.0 / factors - 1.0 / factor) / (1.0 - 1.0 / factor)
    inside = np.flatnonzero((smooth > 1e-4) & (smooth < 1.0 - 1e-4))
    if len(inside) < 2:
        return []
    turns = original / (2 * math.pi * theta ** (2 * inside / head_dim))
    slope, offset = np.polyfit(turns, smooth[inside], 1)
    if slope <= 0:
        return []
    low, high = -offset / slope, (1.0 - offset) / slope
    return [(round(float(low), 4), round(float(high), 4))]
