"""Gemma 4's mixture (26B-A4B): experts beside the dense MLP of a layer, with norms of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import jax

from ...custom_kernels.ops.add_normed import add_normed
from ...custom_kernels.ops.fused_matmul import InputNorm
from ...custom_kernels.ops.moe_route import Routing, moe_route
from ...errors import StrixhloError
from ..config_keys import Config
from ..config_values import count, shown, wrong
from ..layers.linear import projection, projection_shapes
from ..layers.moe import Experts
from ..layers.norm import Input, Norm, Normed, plain
from ..layers.weights import Weights

GELU = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")
NORMS = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")


@dataclass(frozen=True)
class Gemma4Experts(Experts):
    """Router and experts see the residual stream, each through a norm of its own; norm: the layer's."""

    norm: Norm = field(default_factory=lambda: Norm(1e-6))

    def shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of its tensors; prefix: "model.layers.0."."""
        yield from projection_shapes(f"{prefix}router.proj", self.experts, self.hidden)
        yield f"{prefix}router.scale", (self.hidden,)
        yield f"{prefix}router.per_expert_scale", (self.experts,)
        yield from self.expert_shapes(prefix)
        for name in NORMS:
            yield from self.norm.shapes(prefix + name, self.hidden)

    def beside(self, w: Weights, p: str, x: jax.Array, dense: jax.Array, positions: jax.Array) -> jax.Array:
        """The residual stream x and what the dense MLP gave, both [T, hidden] -> the sum of both parts."""
        after_dense, after, before = (p + name for name in NORMS)
        mixed = self.mix(w, p, self.norm.before_matmul(x, w, before), self.route(w, p, x, positions))
        weight, of_dense = (w[f"{name}.weight"].dense for name in (after, after_dense))
        epsilon, offset = self.norm.epsilon, self.norm.offset
        return add_normed(dense, mixed, weight, epsilon=epsilon, offset=offset, base_weight=of_dense)

    def route(self, w: Weights, p: str, x: Input, positions: jax.Array) -> Routing:
        """Which experts x [T, hidden] goes to."""
        seen = Normed(plain(x), InputNorm(w[f"{p}router.scale"].dense, self.norm.epsilon))
        return moe_route(
            projection(seen, w, f"{p}router.proj"),
            positions,
            k=self.k,
            scoring="softmax",
            normalize=True,
            logit_scale=self.hidden**-0.5,
            factors=w[f"{p}router.per_expert_scale"].dense,
        )


def gemma4_experts(config: Config, hidden: int, norm: Norm, activation: str) -> Gemma4Experts:
    """The mixture of a configuration whose enable_moe_block is true."""
    experts, k = count(config, "num_experts"), count(config, "top_k_experts")
    if k > experts:
        raise wrong("top_k_experts", k, f"at most num_experts = {experts}")
    if activation not in GELU:
        raise StrixhloError(f"config.json: hidden_activation = {shown(activation)} is not supported for experts")
    size = count(config, "moe_intermediate_size")
    return Gemma4Experts(hidden, size, experts, k, activation="gelu", norm=norm)
