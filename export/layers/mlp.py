"""Feed-forward layers: gated (Shazeer, arXiv:2002.05202) and plain, and their activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ...custom_kernels.ops.activations import float32
from ...custom_kernels.ops.fused_matmul import Residual
from ...errors import StrixhloError
from ..config_values import shown
from .linear import gated_halves, gated_projection, projection, projection_shapes, projections
from .norm import Input
from .weights import Weights


def relu_squared(x: jax.Array) -> jax.Array:
    """Primer's squared ReLU (So et al., arXiv:2109.08668)."""
    return jnp.square(jax.nn.relu(x))


gelu_tanh = partial(jax.nn.gelu, approximate=True)
gelu_erf = partial(jax.nn.gelu, approximate=False)
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu": gelu_erf,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": jax.nn.relu,
    "relu2": relu_squared,
}


# Those that a matmul does on its way out, by their name there.
FUSED = {"silu": "silu", "swish": "silu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu"}


def activation(config: Mapping[str, Any], key: str = "hidden_act", default: str = "silu") -> str:
    """The activation that a config names; an unknown one is an error that names it."""
    name = config.get(key, default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise StrixhloError(
            f"config.json: {key} = {shown(name)} is not supported; supported: {', '.join(sorted(ACTIVATIONS))}"
        )
    return name


def activated(x: Input, w: Weights, name: str, activation: str, bias: bool = False) -> jax.Array:
    """x [T, in] through the linear layer `name`, and one of ACTIVATIONS: [T, out] of the type of x."""
    fused = FUSED.get(activation, "")
    y = projection(x, w, name, bias, activation=fused)
    return y if fused else ACTIVATIONS[activation](float32(y)).astype(y.dtype)


@dataclass(frozen=True)
class Mlp:
    """Gated or plain. `fused`: gate and up are one tensor, gate's rows first.

    Names are relative to the layer: "mlp" is the module, then those of its linear layers.
    """

    hidden: int
    intermediate: int
    activation: str
    gated: bool = True
    fused: bool = False
    bias: bool = False
    module: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"  # also the name of the fused tensor
    down: str = "down_proj"

    def shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of its tensors; prefix: "model.layers.0."."""
        p = f"{prefix}{self.module}."
        if self.gated and not self.fused:
            yield from projection_shapes(p + self.gate, self.intermediate, self.hidden, self.bias)
        yield from projection_shapes(p + self.up, self.intermediate * (2 if self.fused else 1), self.hidden, self.bias)
        yield from projection_shapes(p + self.down, self.hidden, self.intermediate, self.bias)

    def __call__(
        self,
        w: Weights,
        prefix: str,
        x: Input,
        positions: jax.Array | None = None,  # noqa: ARG002
        residual: Residual | None = None,
    ) -> jax.Array:
        """x [T, hidden] -> [T, hidden], added to the residual where there is one."""
        p = f"{prefix}{self.module}."
        return projection(self._inner(w, p, x), w, p + self.down, self.bias, residual)

    def _inner(self, w: Weights, p: str, x: Input) -> jax.Array:
        """[T, intermediate], of the type of x."""
        fused = FUSED.get(self.activation, "")
        if not self.gated:
            return activated(x, w, p + self.up, self.activation, self.bias)
        if self.fused:
            if fused and not self.bias:
                return gated_halves(x, w, p + self.up, fused)
            both = projection(x, w, p + self.up, self.bias)
            return self._activated(both[:, : self.intermediate], both[:, self.intermediate :])
        if fused:
            return gated_projection(x, w, p + self.gate, p + self.up, fused, self.bias)
        gate, up = projections(x, w, (p + self.gate, p + self.up), self.bias)
        return self._activated(gate, up)

    def _activated(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        return (ACTIVATIONS[self.activation](float32(gate)) * float32(up)).astype(gate.dtype)


@dataclass(frozen=True)
class XieluMlp:
    """Apertus' plain MLP with xIELU (Huang and Schlag, arXiv:2411.13010), whose slopes and constants are weights."""

    hidden: int
    intermediate: int

    def shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of its tensors."""
        yield from projection_shapes(f"{prefix}mlp.up_proj", self.intermediate, self.hidden)
        yield from projection_shapes(f"{prefix}mlp.down_proj", self.hidden, self.intermediate)
        yield f"{prefix}mlp.act_fn.alpha_p", (1,)
        yield f"{prefix}mlp.act_fn.alpha_n", (1,)
        yield f"{prefix}mlp.act_fn.beta", ()
        yield f"{prefix}mlp.act_fn.eps", ()

    def __call__(
        self,
        w: Weights,
        prefix: str,
        x: Input,
        positions: jax.Array | None = None,  # noqa: ARG002
        residual: Residual | None = None,
    ) -> jax.Array:
        """x [T, hidden] -> [T, hidden], added to the residual where there is one."""
        projected = projection(x, w, f"{prefix}mlp.up_proj")
        up = float32(projected)
        a = f"{prefix}mlp.act_fn."
        beta, eps = w[a + "beta"].dense, w[a + "eps"].dense
        positive = jax.nn.softplus(w[a + "alpha_p"].dense)
        negative = beta + jax.nn.softplus(w[a + "alpha_n"].dense)
        low = (jnp.expm1(jnp.minimum(up, eps)) - up) * negative + beta * up
        inner = jnp.where(up > 0, positive * up * up + beta * up, low)
        return projection(inner.astype(projected.dtype), w, f"{prefix}mlp.down_proj", residual=residual)
