"""Normalization with the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import jax

from ...custom_kernels.ops.activations import float32
from ...custom_kernels.ops.add_normed import add_normed
from ...custom_kernels.ops.fused_matmul import InputNorm
from ...custom_kernels.ops.norm import layer_norm, rms_norm
from .weights import Weights


@dataclass(frozen=True)
class Normed:
    """x [T, n], and the norm that it is to get: a matmul does it on its way in (linear.py)."""

    x: jax.Array
    norm: InputNorm

    @property
    def value(self) -> jax.Array:
        """x, normalized: [T, n] of its type."""
        norm, weight = self.norm, self.norm.weight + self.norm.offset
        if not norm.layer:
            return rms_norm(self.x, weight, norm.epsilon)
        y = layer_norm(float32(self.x), weight, norm.epsilon)
        return (y if norm.bias is None else y + norm.bias).astype(self.x.dtype)

    def __len__(self) -> int:
        return len(self.x)


Input = jax.Array | Normed


def plain(x: Input) -> jax.Array:
    """The input as an array, for what is no matmul."""
    return x.value if isinstance(x, Normed) else x


@dataclass(frozen=True)
class Norm:
    """The norm that a family uses everywhere.

    offset: added to the weight (Gemma's 1). bias: a bias is added, stored beside the weight.
    """

    epsilon: float
    kind: Literal["rms", "layer"] = "rms"
    offset: float = 0.0
    bias: bool = False

    def shapes(self, name: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of its tensors; name: "model.norm"."""
        yield f"{name}.weight", shape
        if self.bias:
            yield f"{name}.bias", shape

    def __call__(self, x: jax.Array, w: Weights, name: str) -> jax.Array:
        """x [..., n], normalized in float32 over n by the weight `name`.weight, of shape [n] or x's last dimensions."""
        weight = w[f"{name}.weight"].dense
        if self.offset:
            weight = weight + self.offset
        y = (rms_norm if self.kind == "rms" else layer_norm)(float32(x), weight, self.epsilon)
        return (y + w[f"{name}.bias"].dense if self.bias else y).astype(x.dtype)

    def added_to(
        self, base: jax.Array, x: jax.Array, w: Weights, name: str, factor: jax.Array | None = None
    ) -> jax.Array:
        """(base + the norm of x) * factor, all [T, n] of one type but factor float32 [1] (None: 1)."""
        if self.kind == "rms" and not self.bias:
            weight = w[f"{name}.weight"].dense
            return add_normed(base, x, weight, epsilon=self.epsilon, offset=self.offset, factor=factor)
        y = float32(base) + float32(self(x, w, name))
        return (y if factor is None else y * factor).astype(base.dtype)

    def before_matmul(self, x: jax.Array, w: Weights, name: str) -> Input:
        """The same for what goes into matmuls alone: those can do a norm themselves."""
        bias = w[f"{name}.bias"].dense if self.bias else None
        return Normed(x, InputNorm(w[f"{name}.weight"].dense, self.epsilon, self.offset, self.kind == "layer", bias))
