"""A mixture of experts in place of an MLP (Shazeer et al., arXiv:1701.06538): a router, gated experts, a shared one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from ...custom_kernels.ops.add_gated import add_gated
from ...custom_kernels.ops.fused_matmul import Residual
from ...custom_kernels.ops.layer_norm import layer_norm
from ...custom_kernels.ops.moe_matmul import moe_down, moe_gate_up
from ...custom_kernels.ops.moe_route import Routing, moe_route
from ...errors import StrixhloError
from .linear import joined_projections, projection, projection_shapes
from .mlp import Mlp
from .norm import Input, Normed
from .weights import Weights


@dataclass(frozen=True)
class Experts:
    """Each token goes to `k` of the experts, and the results are added, weighted.

    scoring, normalize, scale, groups, group_k, group_top, jitter: see `moe_route`. correction: the tensor, of shape
    [*correction_lead, experts], that is added to the scores for the choice ("": none). activation, limit: see
    `moe_gate_up`. bias: each expert's matrices have one, [experts, N] together. router: the name of its linear layer,
    which may have a bias, but not beside a `shared_gate`. shared: an MLP that every token goes through as well, times
    sigmoid of the linear layer `shared_gate` ("": as it is). The experts' weights are stacked: expert e's row n of a
    matrix [N, K] is row e * N + n of the tensor.
    """

    hidden: int
    intermediate: int
    experts: int
    k: int
    scoring: str = "softmax"
    normalize: bool = False
    scale: float = 1.0
    groups: int = 1
    group_k: int = 1
    group_top: int = 2
    jitter: float = 0.0
    correction: str = ""
    correction_lead: tuple[int, ...] = ()
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
        if self.correction:
            yield p + self.correction, (*self.correction_lead, self.experts)
        yield from self.expert_shapes(p)
        if self.shared:
            yield from self.shared.shapes(prefix)
            if self.shared_gate:
                yield from projection_shapes(p + self.shared_gate, 1, self.hidden)

    def expert_shapes(self, p: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of the experts alone; p: "model.layers.0.mlp."."""
        sizes = {"gate_proj": (self.intermediate, self.hidden), "up_proj": (self.intermediate, self.hidden)}
        for name, (rows, columns) in (sizes | {"down_proj": (self.hidden, self.intermediate)}).items():
            yield from projection_shapes(f"{p}experts.{name}", self.experts * rows, columns)
            if self.bias:
                yield f"{p}experts.{name}.bias", (self.experts, rows)

    def __call__(
        self,
        w: Weights,
        prefix: str,
        x: Input,
        positions: jax.Array | None = None,
        residual: Residual | None = None,
    ) -> jax.Array:
        """x [T, hidden] -> [T, hidden], added to the residual where there is one; positions int32 [T]:
        -1 for rows that go to no expert."""
        assert positions is not None
        p = f"{prefix}{self.module}."
        if not (self.shared and self.shared_gate):
            return self.mix(w, p, x, self.route(w, p, x, positions), self._with_shared(w, prefix, x, residual))
        logits = joined_projections(x, w, (p + self.router, p + self.shared_gate))
        shared, scale = self.shared(w, prefix, x), residual.scale if residual else 1.0
        base = residual.x if residual else jnp.zeros_like(shared)
        total = add_gated(base, shared, logits, column=self.experts, scale=scale)
        return self.mix(w, p, x, self._chosen(w, p, logits, positions), Residual(total, scale))

    def _with_shared(self, w: Weights, prefix: str, x: Input, residual: Residual | None) -> Residual | None:
        """What the experts' sum is added to: the residual and what the shared one gives."""
        if not self.shared:
            return residual
        return Residual(self.shared(w, prefix, x, residual=residual), residual.scale if residual else 1.0)

    def route(self, w: Weights, p: str, x: Input, positions: jax.Array) -> Routing:
        """Which experts x [T, hidden] goes to; p: "model.layers.0.mlp."."""
        return self._chosen(w, p, projection(x, w, p + self.router, self.router_bias), positions)

    def _chosen(self, w: Weights, p: str, logits: jax.Array, positions: jax.Array) -> Routing:
        return moe_route(
            logits,
            positions,
            w[p + self.correction].dense.reshape(-1) if self.correction else None,
            k=self.k,
            scoring=self.scoring,
            normalize=self.normalize,
            scale=self.scale,
            groups=self.groups,
            group_k=self.group_k,
            group_top=self.group_top,
            experts=self.experts,
            jitter=self.jitter,
        )

    def mix(
        self,
        w: Weights,
        p: str,
        x: Input,
        routing: Routing,
        residual: Residual | None = None,
        weighed: bool = False,
    ) -> jax.Array:
        """x [T, hidden] through its experts, and their weighted sum, added to the residual where there is one. weighed:
        the weights are of what the experts are given, in place of what they give."""
        gate, up, down = (w[f"{p}experts.{name}.weight"] for name in ("gate_proj", "up_proj", "down_proj"))
        if gate.format != up.format:
            raise StrixhloError(f"{p}experts: gate_proj is {gate.format} and up_proj {up.format}; they must be alike")
        names = ("gate_proj", "up_proj", "down_proj") if self.bias else ()
        biases = [w[f"{p}experts.{name}.bias"].dense for name in names]
        parts = (gate.parts, up.parts, biases[:2])
        how: dict[str, Any] = {"format": gate.format, "activation": self.activation, "limit": self.limit}
        if isinstance(x, Normed) and x.norm.layer:
            norm = x.norm
            x = layer_norm(x.x, norm.weight, norm.bias, epsilon=norm.epsilon, offset=norm.offset)
        if isinstance(x, Normed):
            how |= {"norm": x.norm.weight, "epsilon": x.norm.epsilon, "offset": x.norm.offset}
            x = x.x
        h = moe_gate_up(x, routing, *parts, weighed=weighed, **how)
        if weighed:
            routing = replace(routing, weights=jnp.ones_like(routing.weights))
        added: dict[str, Any] = {"residual": residual.x, "scale": residual.scale} if residual else {}
        return moe_down(h, routing, down.parts, biases[2:], format=down.format, **added)
