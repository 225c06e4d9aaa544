"""Random activations, and how the CPU's kernels round them to 8 bits."""

from __future__ import annotations

import numpy as np

from strixhlo.custom_kernels.ops.formats_gguf import RUN


def activations(m: int, k: int) -> np.ndarray:
    rng = np.random.default_rng([m, k])
    return (rng.standard_normal((m, k)) * rng.choice([0.01, 1, 30], (m, 1)) + 0.1).astype(np.float32)


def quantize(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The definition of the 8-bit activations: xq, xs, xsum."""
    groups = x.reshape(x.shape[0], -1, RUN)
    most = np.abs(groups).max(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        xs = most / np.float32(127)
        xs[xs < np.finfo(np.float32).tiny] = 0
        inverse = np.where(xs > 0, np.float32(1) / xs, np.float32(0)).astype(np.float32)
        xq = np.rint(groups * inverse[..., None])
    broken = ~np.isfinite(most)
    xs[broken] = np.nan
    xq[broken] = 0
    xq = xq.astype(np.int8).reshape(x.shape)
    return xq, xs, xq.reshape(x.shape[0], -1, 16).sum(-1, dtype=np.int32)


def relative(y: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(y - reference) / max(np.linalg.norm(reference), 1e-30))
