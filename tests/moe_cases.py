"""Mixture-of-experts problems that the kernel tests of every target share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from strixhlo.custom_kernels.ops.formats import FORMATS, dequantize
from strixhlo.custom_kernels.ops.formats_gguf import GGUF_FORMATS
from strixhlo.custom_kernels.ops.moe_matmul import GLOBAL, activate, part_names
from strixhlo.custom_kernels.ops.moe_route import RESULTS
from strixhlo.custom_kernels.ops.moe_route import reference as route_reference

DENSE_DTYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}

# attributes of moe_route, experts
ROUTES: dict[str, tuple[dict, int]] = {
    "softmax": ({"k": 2, "scoring": "softmax", "normalize": False}, 8),
    "softmax, normalized": ({"k": 8, "scoring": "softmax", "normalize": True, "scale": 1.5}, 60),
    "softmax of the selected": ({"k": 4, "scoring": "selected"}, 32),
    "sigmoid, groups": ({"k": 4, "scoring": "sigmoid", "normalize": True, "groups": 4, "group_k": 2, "scale": 2.5}, 32),
    "softmax, groups by their best": ({"k": 3, "groups": 8, "group_k": 3, "group_top": 1}, 40),
    "512 experts, top 10": ({"k": 10, "normalize": True}, 512),
    "sigmoid, one expert": ({"k": 1, "scoring": "sigmoid"}, 16),
    "all 16 of 16": ({"k": 16, "scoring": "selected"}, 16),
    "factors of the weights": ({"k": 3, "normalize": True, "factored": True, "logit_scale": 0.125}, 40),
    "sigmoid of the selected": ({"k": 1, "scoring": "selected_sigmoid"}, 33),
    "sparse mixer": ({"k": 2, "scoring": "sparsemixer", "jitter": 0.2}, 16),
}
DEFAULTS = {
    "scoring": "softmax", "normalize": False, "scale": 1.0, "groups": 1, "group_k": 1, "group_top": 2, "biased": False,
}  # fmt: skip
# Each one program, not one for each of its ops.
_routed = jax.jit(route_reference, static_argnames=(*DEFAULTS, "k"))
_dequantized = jax.jit(lambda format, parts: dequantize(FORMATS[format], parts), static_argnums=0)


def route_logits(kind: str, tokens: int, experts: int) -> np.ndarray:
    """Router logits: random, all equal, in few steps (many equal scores), or all tokens to the same experts."""
    rng = np.random.default_rng([tokens, experts])
    if kind == "equal":
        return np.full((tokens, experts), 0.25, np.float32)
    if kind == "steps":
        return rng.integers(-2, 3, (tokens, experts)).astype(np.float32)
    if kind == "one":
        return np.broadcast_to(np.arange(experts, dtype=np.float32)[::-1] * 0.1, (tokens, experts)).copy()
    return rng.standard_normal((tokens, experts), np.float32) * 3


@cache
def jitted_reference(case: str) -> tuple[dict, Callable[..., tuple[jax.Array, ...]]]:
    """Attributes of a case of ROUTES, and moe_route's reference with them, compiled."""
    attributes = DEFAULTS | ROUTES[case][0] | {"biased": case.startswith(("sigmoid,", "512", "factors"))}
    return attributes, jax.jit(lambda *o: route_reference(*o, **attributes))


@cache
def routing(case: str, kind: str, tokens: int) -> tuple[dict, list[np.ndarray], dict[str, np.ndarray]]:
    """Attributes, operands and the reference's results."""
    attributes, reference = jitted_reference(case)
    experts = ROUTES[case][1]
    positions = np.arange(tokens, dtype=np.int32)
    positions[2::5] = -1
    operands = [route_logits(kind, tokens, experts), positions]
    if attributes["biased"]:
        operands.append(np.linspace(-0.4, 0.5, experts, dtype=np.float32))
    return attributes, operands, dict(zip(RESULTS, map(np.asarray, reference(*operands)), strict=True))


@dataclass(frozen=True)
class ExpertWeights:
    """All experts' rows of one weight: its parts by name, and its values float32 [E, N, K]."""

    parts: dict[str, np.ndarray]
    values: np.ndarray


def expert_weights(format: str, experts: int, n: int, k: int, seed: int, narrow: bool = False) -> ExpertWeights:
    """Random experts in any format: ordinary scales, every code. narrow: float32 scales and biases are bfloat16."""
    rng = np.random.default_rng(seed)
    if format in DENSE_DTYPES:
        stored = rng.standard_normal((experts * n, k), np.float32).astype(DENSE_DTYPES[format])
        return ExpertWeights({"dense": stored}, stored.astype(np.float32).reshape(experts, n, k))
    parts = {}
    for name, (shape, dtype) in FORMATS[format].parts(experts * n, k).items():
        if np.issubdtype(dtype, np.integer):
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            if name == "scale" and format.startswith(("mx", "nv")):
                low, high = (118, 124) if format.startswith("mx") else (40, 70)  # E8M0, E4M3 near one
            parts[name] = rng.integers(low, high, shape, dtype=np.int64, endpoint=True).astype(dtype)
            if name == "codes" and "fp8" in format:
                parts[name][parts[name] & 127 == 127] = 0  # E4M3's NaN
        else:
            parts[name] = (rng.standard_normal(shape) * 0.05).astype(ml_dtypes.bfloat16 if narrow else dtype)
    values = np.asarray(_dequantized(format, {p: jnp.asarray(v) for p, v in parts.items()}))
    values = values.reshape(experts, n, k)
    if GLOBAL in parts:  # a scale for each expert, as far apart as checkpoints have them
        factors = np.geomspace(0.25, 3.0, experts, dtype=np.float32) if experts > 1 else np.float32([1.0])
        values = values * factors[:, None, None]
        parts[GLOBAL] = parts[GLOBAL] * factors
    return ExpertWeights(parts, values)


def named(prefix: str, format: str, weight: ExpertWeights) -> dict[str, np.ndarray]:
    """The parts under the names that launches use; bfloat16 as its bits."""
    n, k = weight.values.shape[1:]
    arrays = {f"{prefix}.{name}": weight.parts[name] for name in part_names(format, n, k)}
    return {name: a.view(np.int16) if a.dtype == ml_dtypes.bfloat16 else a for name, a in arrays.items()}


def problem(
    format: str,
    tokens: int,
    biased: bool,
    kind: str = "random",
    shape: tuple[int, int] = (96, 64),
    narrow: bool = False,
    experts: int = 8,
    k: int = 3,
) -> dict[str, np.ndarray]:
    """Operands of both matmuls by the names that launches use: experts of which a token takes k, some rows padding.
    shape: columns of x and of h, 256 each where the format asks for it."""
    columns, inner = (256, 256) if format in GGUF_FORMATS and GGUF_FORMATS[format].super_group else shape
    rng = np.random.default_rng(tokens)
    positions = np.arange(tokens, dtype=np.int32)
    positions[3::7] = -1
    attributes = DEFAULTS | {"k": k, "normalize": True}
    results = _routed(jnp.asarray(route_logits(kind, tokens, experts)), jnp.asarray(positions), **attributes)
    values = {name: np.asarray(value) for name, value in zip(RESULTS, results, strict=True)}
    values["x"] = rng.standard_normal((tokens, columns), np.float32)
    weights = {
        name: expert_weights(format, experts, *sizes, seed=seed, narrow=narrow)
        for seed, (name, sizes) in enumerate(
            {"gate": (inner, columns), "up": (inner, columns), "down": (columns, inner)}.items()
        )
    }
    for name, weight in weights.items():
        values |= named(name, format, weight)
        values[f"{name}_values"] = weight.values
        width = weight.values.shape[1]
        values[f"{name}_bias"] = rng.standard_normal((experts, width), np.float32) * np.float32(biased)
    values["bias"] = values["down_bias"]
    return values


@cache
def of_512_experts(format: str, tokens: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A problem of 512 experts of which a token takes ten, and what its matmuls must give."""
    name = format.removesuffix("_bf16_bf16")
    v = problem(name, tokens, False, shape=(64, 64), narrow=name != format, experts=512, k=10)
    return v, expected(v, "silu", 0.0)


def expected(
    v: dict[str, np.ndarray],
    activation: str,
    limit: float,
    input_of: Callable[[np.ndarray], np.ndarray] = lambda x: x,
) -> np.ndarray:
    """What a problem's two matmuls must give, in float64."""
    y = np.zeros((len(v["x"]), v["down_values"].shape[1]))
    experts = len(v["down_values"])
    for t, ids in enumerate(v["ids"]):
        for e, weight in zip(ids, v["weights"][t], strict=True):
            if e == experts:
                continue
            x = input_of(v["x"][t].astype(np.float64))
            gate, up = (v[f"{n}_values"][e].astype(np.float64) @ x + v[f"{n}_bias"][e] for n in ("gate", "up"))
            h = np.asarray(activate(jnp.float32(gate), jnp.float32(up), activation, limit)).astype(np.float64)
            h = input_of(h)
            y[t] += weight * (v["down_values"][e].astype(np.float64) @ h + v["down_bias"][e])
    return y
