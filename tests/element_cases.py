"""Calls of every op with activations of 16 bits, which the tests of the GPU kernels run for each type of them.

How weights are decoded does not depend on it, so that few formats stand for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kernel_tolerances import ARRAYS
from moe_cases import DEFAULTS, problem, route_logits
from rope_and_append_cases import CASES as ROPE_CASES
from rope_and_append_cases import Call

from strixhlo.custom_kernels.gpu.launches import GFX1151
from strixhlo.custom_kernels.gpu.rules import gpu_rules
from strixhlo.custom_kernels.ops import (
    add_normed,
    attention,
    dense_matmul,
    fused_matmul,
    moe_matmul,
    moe_route,
    quantized_matmul,
    rope_and_append,
)
from strixhlo.custom_kernels.ops.activations import activation_operands
from strixhlo.custom_kernels.ops.formats import FORMATS
from strixhlo.custom_kernels.ops.launch import Lowering
from strixhlo.custom_kernels.ops.moe_matmul import part_names

REFERENCES = {
    "quantized_matmul": quantized_matmul.reference,
    "dense_matmul": dense_matmul.reference,
    "fused_matmul": fused_matmul.reference,
    "add_normed": add_normed.reference,
    "rope_and_append": rope_and_append.reference,
    "attention": attention.reference,
    "moe_route": moe_route.reference,
    "moe_gate_up": moe_matmul.reference_gate_up,
    "moe_down": moe_matmul.reference_down,
}
TYPES = {np.dtype(a): name for name, a in ARRAYS.items()} | {np.dtype(np.int32): "i32", np.dtype(np.int8): "i8"}
ROWS = (1, 3, 8, 9, 17, 70)
K = 224


@dataclass(frozen=True)
class OpCall:
    """A call of an op: its operands in order, activations among them in one type."""

    op: str
    attributes: Mapping[str, Any]
    operands: tuple[np.ndarray, ...]

    def of(self, dtype: str) -> OpCall:
        """The same with activations of that dtype."""
        which = activation_operands(self.op, self.attributes, len(self.operands))
        with np.errstate(over="ignore"):
            operands = (a.astype(ARRAYS[dtype]) if i in which else a for i, a in enumerate(self.operands))
            return OpCall(self.op, self.attributes, tuple(operands))

    def lowering(self) -> Lowering:
        """On the GPU."""
        types = [(a.shape, TYPES[a.dtype]) for a in self.operands]
        found = gpu_rules(GFX1151)[self.op](self.attributes, types)
        assert found
        return found

    def wanted(self) -> tuple[np.ndarray, ...]:
        """The reference's results in float32, of these very operands."""
        reference = jitted(self.op, tuple(sorted(self.attributes.items())))
        results = reference(*map(jnp.asarray, self.of("f32").operands))
        return tuple(map(np.asarray, results if isinstance(results, tuple) else (results,)))


@cache
def jitted(op: str, attributes: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """An op's reference, compiled once for all types of activations."""
    return jax.jit(partial(REFERENCES[op], **dict(attributes)))


def weights(format: str, n: int) -> tuple[np.ndarray, ...]:
    """The parts of a weight [n, K]: every code, ordinary scales."""
    rng = np.random.default_rng(n)
    if format in ARRAYS:
        return (rng.standard_normal((n, K)).astype(ARRAYS[format]),)
    parts = []
    for shape, dtype in FORMATS[format].parts(n, K).values():
        made = rng.integers(-(2**31), 2**31, shape) if dtype.kind == "i" else rng.standard_normal(shape) / 20
        parts.append(made.astype(dtype))
    return tuple(parts)


def numbers(*shape: int) -> np.ndarray:
    """float32."""
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def matmul(format: str, m: int, n: int = 67) -> OpCall:
    """Of m rows."""
    dense = format in ARRAYS
    attributes = {} if dense else {"format": format}
    return OpCall("dense_matmul" if dense else "quantized_matmul", attributes, (numbers(m, K), *weights(format, n)))


def fused(m: int, formats: tuple[str, ...], rows: tuple[tuple[int, int, int], ...], **changes: Any) -> OpCall:
    """rows: tensor, first row and number of each weight."""
    attributes = {"normed": False, "epsilon": 1e-5, "offset": 0.0, "biased": False, "activation": "", "limit": 0.0}
    attributes |= {"added": False, "scale": 0.5} | changes
    attributes |= {"formats": ",".join(formats), "rows": ",".join(":".join(map(str, r)) for r in rows)}
    sizes = (max(first + count for tensor, first, count in rows if tensor == t) for t in range(len(formats)))
    tensors = [part for format, n in zip(formats, sizes, strict=True) for part in weights(format, n)]
    further = [numbers(K)] if attributes["normed"] else []
    further += [numbers(n) for _, _, n in rows] if attributes["biased"] else []
    further += [numbers(m, rows[0][2])] if attributes["added"] else []
    summed = attributes.get("summed")
    further += [numbers(m, K) * 2, numbers(K)] if summed else []
    further += [np.float32([0.75])] if summed == "scaled" else []
    return OpCall("fused_matmul", attributes, (numbers(m, K), *tensors, *further))


def rope(case: str) -> OpCall:
    """A case of rope_and_append_cases over a float16 pool."""
    call = Call(ROPE_CASES[case], "f16")
    return OpCall("rope_and_append", call.attributes, tuple(call.operands.values()))


def attended(pool: str, head_dim: int, tokens: int, context: int, **changes: Any) -> OpCall:
    """Of two sequences, each `tokens` rows at the end of `context` positions, the last row of the second padding."""
    block, blocks, kv_heads, heads = 16, -(-context // 16), 2, 6
    attributes = {"layer": 1, "kv_heads": kv_heads, "block_size": block, "window": 0, "scale": 0.2, "softcap": 0.0}
    table = np.random.default_rng(0).permutation(2 * blocks).reshape(2, blocks).astype(np.int32)
    positions = np.arange(context - tokens, context, dtype=np.int32)[None].repeat(2, 0)
    positions[1, -1] = -1
    pools = [(numbers(2, 2 * blocks * block, kv_heads * head_dim) * s).astype(ARRAYS[pool]) for s in (1, 2)]
    q = numbers(2 * tokens, heads, head_dim)
    return OpCall("attention", attributes | changes, (q, *pools, table, positions.reshape(-1)))


def experts(op: str, format: str, tokens: int, biased: bool = False, normed: bool = False) -> OpCall:
    """One of the two matmuls of a mixture of experts."""
    v = problem(format, tokens, biased, "steps")
    names = part_names(format, *v["gate_values"].shape[1:])
    routed = ("expert", "order", "offsets", "tiles")
    attributes: dict[str, Any] = {"format": format, "k": 3, "biased": biased}
    if op == "moe_down":
        attributes |= {"added": biased, "scale": 0.5}
        v["residual"] = numbers(tokens, v["down_values"].shape[1])
        v["h"] = np.random.default_rng(1).standard_normal((v["order"].size, v["down_values"].shape[2]), np.float32)
        operands = (
            "h",
            "weights",
            "places",
            *routed,
            *(f"down.{p}" for p in names),
            *(("bias", "residual") if biased else ()),
        )
    else:
        attributes |= {"activation": "silu", "limit": 0.0, "normed": normed, "epsilon": 1e-5, "offset": 1.0}
        v["norm"] = numbers(v["x"].shape[1])
        operands = ("x", *routed, *(f"{w}.{p}" for w in ("gate", "up") for p in names))
        operands += ("gate_bias", "up_bias") if biased else ()
        operands += ("norm",) if normed else ()
    return OpCall(op, attributes, tuple(v[name] for name in operands))


def route(experts: int) -> OpCall:
    """Of 9 tokens, one of them padding; scores that 16 bits hold."""
    positions = np.where(np.arange(9) == 4, -1, np.arange(9)).astype(np.int32)
    return OpCall("moe_route", DEFAULTS | {"k": 4, "normalize": True}, (route_logits("steps", 9, experts), positions))


NORMED, SUM = {"normed": True}, {"summed": "sum", "sum_epsilon": 1e-4, "sum_offset": 1.0}
Q_K_V = ((0, 0, 35), (1, 0, 3), (2, 0, 17))
PAIR, ONE = ((0, 0, 35), (1, 0, 35)), ((0, 0, 67),)


@cache
def cases() -> dict[str, OpCall]:
    """By name. Each op with few rows and with many, and with each launch that it can have."""
    found = {f"q4_1, {m} rows": matmul("q4_1", m) for m in ROWS}
    found |= {f"f16, {m} rows": matmul("f16", m) for m in (2, 17)}
    found["one column"] = matmul("q4_1", 5, 1)
    for m in (2, 17):
        found[f"q, k, v, {m} rows"] = fused(m, ("q4_1",) * 3, Q_K_V, **NORMED, biased=True)
        found[f"gated, {m} rows"] = fused(m, ("q4_1",) * 2, PAIR, **NORMED, activation="silu")
        found[f"residual, {m} rows"] = fused(m, ("q4_1",), ONE, added=True)
        found[f"two formats, {m} rows"] = fused(m, ("q4_1", "f16"), ((0, 0, 9), (1, 0, 9)), activation="silu")
        found[f"sum, {m} rows"] = fused(m, ("q4_1",), ONE, **NORMED, **SUM)
    norm = (numbers(5, K), numbers(5, K) * 3, numbers(K), np.float32([0.75]))
    found["add_normed"] = OpCall("add_normed", {"epsilon": 1e-5, "offset": 1.0, "scaled": True}, norm)
    found |= {f"rope_and_append, {case}": rope(case) for case in ("decode", "norm", "layer norm of each head")}
    found["attention, one row"] = attended("f16", 64, 1, 40)
    found["attention, a window, a cap"] = attended("f32", 80, 1, 40, window=9, softcap=20.0)
    found["attention, a prompt"] = attended("f16", 64, 20, 40)
    found["attention, a long context"] = attended("f16", 64, 1, 5000)
    found |= {f"moe_route, {e} experts": route(e) for e in (60, 300)}
    for tokens in (1, 5, 43):
        for op in ("moe_gate_up", "moe_down"):
            found[f"{op}, {tokens} tokens"] = experts(op, "mxfp4", tokens, biased=tokens == 5)
    found |= {f"moe_gate_up, normed, {t} tokens": experts("moe_gate_up", "mxfp4", t, normed=True) for t in (1, 3)}
    found["moe_gate_up, too many parts"] = experts("moe_gate_up", "q5_k", 9, biased=True)
    return found


@cache
def symbols(dtype: str) -> tuple[str, ...]:
    """The kernels of all cases."""
    launches = (launch for call in cases().values() for launch in call.of(dtype).lowering().launches)
    return tuple(sorted({launch.symbol for launch in launches}))
