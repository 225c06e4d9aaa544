"""A mixture of experts in place of an MLP (Shazeer et al., arXiv:1701.06538): a router, gated experts, a shared one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax

from ...custom_kernels.ops.moe_matmul import moe_down, moe_gate_up
from ...custom_kernels.ops.moe_route import moe_route
from ...errors import StrixhloError
from .linear import linear, projection, projection_shapes
from .mlp import Mlp
from .weights import Weights


@dataclass(frozen=True)
class Experts:
    """Each token goes to `k` of the experts, and the results are added, weighted.

    scoring, normalize: see `moe_route`. activation, limit: see `moe_gate_up`. bias: each expert's matrices have one,
    [experts, N] together. router: the name of its linear layer, which may have a bias. shared: an MLP that every token
    goes through as well, times sigmoid of the linear layer `shared_gate`. The experts' weights are stacked: expert e's
    row n of a matrix [N, K] is row e * N + n of the tensor.
    """

    hidden: int
    intermediate: int
    experts: int
    k: int
    scoring: str = "softmax"
    normalize: bool = False
    activation: str = "silu"
    limit: float = 0.0
    bias: bool = False
    router: str = "gate"
    router_bias: bool = False
    shared: Mlp | None = None
    shared_gate: str = "shared_expert_gate"
    module: str = "mlp"

    def shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of its tensors; prefix: "model.layers.0."."""
        p = f"{prefix}{self.module}."
        yield from projection_shapes(p + self.router, self.experts, self.hidden, self.router_bias)
        sizes = {"gate_proj": (self.intermediate, self.hidden), "up_proj": (self.intermediate, self.hidden)}
        for name, (rows, columns) in (sizes | {"down_proj": (self.hidden, self.intermediate)}).items():
            yield from projection_shapes(f"{p}experts.{name}", self.experts * rows, columns)
            if self.bias:
                yield f"{p}experts.{name}.bias", (self.experts, rows)
        if self.shared:
            yield from self.shared.shapes(prefix)
            yield from projection_shapes(p + self.shared_gate, 1, self.hidden)

    def __call__(self, w: Weights, prefix: str, x: jax.Array, positions: jax.Array | None = None) -> jax.Array:
        """x float32 [T, hidden] -> float32 [T, hidden]; positions int32 [T]: -1 for rows that go to no expert."""
        assert positions is not None
        p = f"{prefix}{self.module}."
        gate, up, down = (w[f"{p}experts.{name}.weight"] for name in ("gate_proj", "up_proj", "down_proj"))
        if gate.format != up.format:
            raise StrixhloError(f"{p}experts: gate_proj is {gate.format} and up_proj {up.format}; they must be alike")
        routing = moe_route(
            projection(x, w, p + self.router, self.router_bias),
            positions,
            k=self.k,
            scoring=self.scoring,
            normalize=self.normalize,
        )
        names = ("gate_proj", "up_proj", "down_proj") if self.bias else ()
        biases = [w[f"{p}experts.{name}.bias"].dense for name in names]
        h = moe_gate_up(
            x,
            routing,
            gate.parts,
            up.parts,
            biases[:2],
            format=gate.format,
            activation=self.activation,
            limit=self.limit,
        )
        mixed = moe_down(h, routing, down.parts, biases[2:], format=down.format)
        if not self.shared:
            return mixed
        share = jax.nn.sigmoid(linear(x, w[f"{p}{self.shared_gate}.weight"]))
        return mixed + share * self.shared(w, prefix, x)
