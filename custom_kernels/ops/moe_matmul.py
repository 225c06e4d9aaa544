"""`strixhlo.moe_gate_up` and `strixhlo.moe_down`: the two matmuls of a mixture of experts, over `moe_route`'s order.

The weights of all experts are one weight of E * N rows: expert e's row n is row e * N + n, each part as the format
stores it for that many rows; but nvfp4's global_scale is [E], one of each expert. A weight that is not quantized has
one part, and its dtype is the format's name.

Activations (x, h, y) are float32, float16 or bfloat16 (activations.py), of one type.
moe_gate_up: x [T, K]; expert, order int32 [P], offsets int32 [E + 1], tiles int32 (of `moe_route`); the parts
of gate, then of up; where `biased`, gate and up biases float32 [E, N]. Result h [P, N]: sorted row s is
activation(gate, up) of token order[s] // k and expert[s]; rows of no expert hold anything. Where `normed` the last
operand is the weight of an RMSNorm float32 [K], which x gets first; where `weighed` the router's weights float32 [T, k]
come after it, by which each pair's row of x is multiplied (Llama 4).
moe_down: h [P, K]; weights float32 [T, k], places int32 [T, k], expert, order, offsets, tiles; the parts of
down; where `biased`, its bias float32 [E, N]; where `added`, the residual [T, N], of the type of h. Result y [T, N]:
the weighted sum over each token's experts, times the attribute scale and on top of the residual where there is one.

Attributes: format, k, biased, of moe_down added and scale, and of moe_gate_up activation: "silu" (silu(gate) * up),
"gelu" (of the tanh kind) or "clamped" (gpt-oss: g = min(gate, limit), u = up within +-limit, g * sigmoid(1.702 g) *
(u + 1)) with its limit; normed, and the norm's epsilon and offset (added to its weight); weighed, absent where not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from .activations import alike, float32
from .formats import FORMATS, dequantize
from .moe_route import Routing
from .norm import rms_norm

GATE_UP, DOWN = "strixhlo.moe_gate_up", "strixhlo.moe_down"
DENSE, GLOBAL = "dense", "global_scale"
ALPHA = 1.702
ACTIVATIONS = ("silu", "gelu", "clamped")


def part_names(format: str, rows: int, k: int) -> tuple[str, ...]:
    """The parts of a weight [rows, k] in operand order."""
    return tuple(FORMATS[format].parts(rows, k)) if format in FORMATS else (DENSE,)


def scaled_together(names: Sequence[str], types: Sequence[tuple[tuple[int, ...], str]], experts: int) -> bool:
    """Whether an nvfp4 weight has not a global scale for each expert, as kernels take it: bundles of older versions.
    types: the parts' shapes and dtypes, first of all."""
    return any(name == GLOBAL and shape != (experts,) for name, (shape, _) in zip(names, types, strict=False))


def activate(gate: jax.Array, up: jax.Array, activation: str, limit: float) -> jax.Array:
    """What becomes of the two matmuls' results; see the module's text."""
    if activation == "silu":
        return jax.nn.silu(gate) * up
    if activation == "gelu":
        return jax.nn.gelu(gate, approximate=True) * up
    gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return gate * jax.nn.sigmoid(ALPHA * gate) * (up + 1.0)


def _rows_of_experts(
    x: jax.Array, expert: jax.Array, experts: int, n: int, parts: Sequence[jax.Array], format: str
) -> jax.Array:
    """x float32 [P, K], row s times the weight of expert[s] -> [P, N]; one expert's weight decoded at a time."""
    names = part_names(format, n, x.shape[1])

    def row(operands: tuple[jax.Array, jax.Array]) -> jax.Array:
        one, e = operands
        own = {
            name: jnp.take(part.reshape(experts, part.shape[0] // experts, -1), e, axis=0, mode="clip")
            for name, part in zip(names, parts, strict=True)
        }
        weight = dequantize(FORMATS[format], own) if format in FORMATS else own[DENSE].astype(jnp.float32)
        return jnp.einsum("k,nk->n", one, weight, precision=jax.lax.Precision.HIGHEST)

    return jax.lax.map(row, (x, expert))


def reference_gate_up(
    x: jax.Array,
    expert: jax.Array,
    order: jax.Array,
    offsets: jax.Array,
    tiles: jax.Array,  # noqa: ARG001
    *weights: jax.Array,
    format: str,
    k: int,
    activation: str,
    limit: float,
    biased: bool,
    normed: bool = False,
    epsilon: float = 0.0,
    offset: float = 0.0,
    weighed: bool = False,
) -> jax.Array:
    """The semantics in plain jnp."""
    dtype, x = x.dtype, float32(x)
    if weighed:
        weights, by = weights[:-1], weights[-1]
    if normed:
        x, weights = rms_norm(x, weights[-1] + offset, epsilon), weights[:-1]
    experts = offsets.shape[0] - 1
    n = weights[0].shape[0] // experts
    count = len(part_names(format, n, x.shape[1]))
    rows = jnp.take(x, order // k, axis=0, mode="clip")
    if weighed:
        rows = rows * jnp.take(by.reshape(-1), order, mode="clip")[:, None]
    gate = _rows_of_experts(rows, expert, experts, n, weights[:count], format)
    up = _rows_of_experts(rows, expert, experts, n, weights[count : 2 * count], format)
    if biased:
        gate = gate + jnp.take(weights[2 * count], expert, axis=0, mode="clip")
        up = up + jnp.take(weights[2 * count + 1], expert, axis=0, mode="clip")
    return activate(gate, up, activation, limit).astype(dtype)


def reference_down(
    h: jax.Array,
    weights: jax.Array,
    places: jax.Array,
    expert: jax.Array,
    order: jax.Array,  # noqa: ARG001
    offsets: jax.Array,
    tiles: jax.Array,  # noqa: ARG001
    *parts: jax.Array,
    format: str,
    k: int,  # noqa: ARG001
    biased: bool,
    added: bool = False,
    scale: float = 1.0,
) -> jax.Array:
    """The semantics in plain jnp."""
    experts = offsets.shape[0] - 1
    n = parts[0].shape[0] // experts
    count = len(part_names(format, n, h.shape[1]))
    down = _rows_of_experts(float32(h), expert, experts, n, parts[:count], format)
    if biased:
        down = down + jnp.take(parts[count], expert, axis=0, mode="clip")
    down = jnp.where((expert < experts)[:, None], down, 0.0)  # rows of no expert hold anything, and 0 * NaN is NaN
    of_token = jnp.take(down, places, axis=0, mode="clip")  # [T, k, N]
    y = (of_token * weights[..., None]).sum(axis=1)
    return (float32(parts[-1]) + scale * y if added else y).astype(h.dtype)


_gate_up = jax.lax.composite(reference_gate_up, name=GATE_UP)
_down = jax.lax.composite(reference_down, name=DOWN)


def moe_gate_up(
    x: jax.Array,
    routing: Routing,
    gate: Mapping[str, jax.Array],
    up: Mapping[str, jax.Array],
    biases: Sequence[jax.Array] = (),
    *,
    format: str,
    activation: str = "silu",
    limit: float = 0.0,
    norm: jax.Array | None = None,
    epsilon: float = 0.0,
    offset: float = 0.0,
    weighed: bool = False,
) -> jax.Array:
    """x [T, K], parts of gate and up [E * N, K], biases () or two float32 [E, N] -> h [P, N], sorted.

    norm: the weight float32 [K] of an RMSNorm that x gets first, with its epsilon and the offset of its weight.
    weighed: x is multiplied by the router's weights, which `moe_down` must not do again.
    """
    alike(x)
    names = part_names(format, next(iter(gate.values())).shape[0], x.shape[1])
    return _gate_up(
        x,
        routing.expert,
        routing.order,
        routing.offsets,
        routing.tiles,
        *(part[name] for part in (gate, up) for name in names),
        *biases,
        *(() if norm is None else (norm,)),
        *((routing.weights,) if weighed else ()),
        format=format,
        k=routing.ids.shape[1],
        activation=activation,
        limit=limit,
        biased=bool(biases),
        normed=norm is not None,
        epsilon=epsilon,
        offset=offset,
        **({"weighed": True} if weighed else {}),
    )


def moe_down(
    h: jax.Array,
    routing: Routing,
    down: Mapping[str, jax.Array],
    biases: Sequence[jax.Array] = (),
    *,
    format: str,
    residual: jax.Array | None = None,
    scale: float = 1.0,
) -> jax.Array:
    """h [P, K] of `moe_gate_up`, parts of down [E * N, K], biases () or one float32 [E, N] -> y [T, N].

    residual: [T, N], of the type of h, what `scale` times the experts' sum is added to.
    """
    alike(h, *(() if residual is None else (residual,)))
    names = part_names(format, next(iter(down.values())).shape[0], h.shape[1])
    return _down(
        h,
        routing.weights,
        routing.places,
        routing.expert,
        routing.order,
        routing.offsets,
        routing.tiles,
        *(down[name] for name in names),
        *biases,
        *(() if residual is None else (residual,)),
        format=format,
        k=routing.ids.shape[1],
        biased=bool(biases),
        added=residual is not None,
        scale=scale,
    )
