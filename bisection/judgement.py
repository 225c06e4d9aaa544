"""Whether one custom op of a program, and what lies before it, does what a fresh trace of the checkpoint says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..bundle import Build
from ..custom_kernels.ops import fused_matmul, quantized_matmul
from ..custom_kernels.ops.cache_types import pool_values
from ..custom_kernels.ops.formats import FORMATS
from ..custom_kernels.ops.rope_and_append import operand_names, rows_in_pool
from .observation import Chunk
from .observed_program import LAYER, ObservedOp
from .reference_steps import Evaluation, Step

EXACT = 2e-3  # float32 in another order of sums
SIXTEEN_BIT = 1e-2  # products of float16 or bfloat16, which the GPUs' matrix units make
EIGHT_BIT = 1e-2  # against activations that the reference rounds to 8 bits too, where some round the other way
NEARLY_EQUAL = 0.02  # of the tokens
EXPERTS = ("moe_gate_up", "moe_down")
RUN = 32  # columns that share a scale when activations are rounded
OPERANDS = {
    "attention": ("q", "k_pool", "v_pool", "block_table", "positions", "sinks"),
    "argmax": ("logits",),
}


@dataclass(frozen=True)
class Finding:
    """Where a program first computes something else. error: the largest relative error of a row (integers: the share of
    rows that differ), None where text and structure differ and not a number. weights: of the bundle that are not the
    checkpoint's."""

    layer: int | None
    op: str
    what: str
    error: float | None
    tolerance: float | None
    weights: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = "" if self.layer is None else f"layer {self.layer}, "
        numbers = "" if self.error is None else f": relative error {self.error:.2g}, {self.tolerance:g} is allowed"
        guilty = f"; not the checkpoint's: {', '.join(self.weights)}" if self.weights else ""
        return f"{where}{self.op}: {self.what}{numbers}{guilty}"


def tolerance(op: str, build: Build) -> float:
    """Of an op's results on a target."""
    if "matmul" not in op and op not in EXPERTS:
        return EXACT
    if build.target.partition(":")[0] != "cpu":
        return SIXTEEN_BIT
    return EIGHT_BIT if rounds(op, build) else EXACT


def rounds(op: str, build: Build) -> bool:
    """Whether the op rounds its first operand to 8 bits, where it has a kernel that does."""
    return build.activations == "int8" and (("matmul" in op and op != "dense_matmul") or op in EXPERTS)


def evaluations(build: Build) -> dict[str, Evaluation]:
    """Of the ops whose kernels round their input to 8 bits: their definitions with the rounding in its place."""
    if build.activations != "int8":
        return {}

    def taken(format: str, x: jax.Array) -> jax.Array:
        return rounded(x) if format in FORMATS else x

    return {
        "quantized_matmul": lambda x, *parts, **a: (quantized_matmul.reference(rounded(x), *parts, **a),),
        "fused_matmul": lambda *operands, **a: fused_matmul.evaluate(taken, *operands, **a),
    }


def rounded(x: jax.Array) -> jax.Array:
    """x float32 [..., K], each RUN columns rounded to multiples of their largest magnitude / 127, as the CPU's kernels
    do before a quantized matmul; x itself where K is no multiple of RUN."""
    if x.shape[-1] % RUN:
        return x
    runs = x.reshape(*x.shape[:-1], -1, RUN)
    scale = jnp.max(jnp.abs(runs), axis=-1, keepdims=True) / 127
    return (jnp.round(runs * (1 / jnp.where(scale > 0, scale, 1))) * scale).reshape(x.shape)


@dataclass(frozen=True)
class Judge:
    """changed: which of some parameters are not the checkpoint's. slack: factor on the results' tolerances, where not
    every op is observed and errors of several add up."""

    build: Build
    changed: Callable[[Sequence[str]], tuple[str, ...]]
    slack: float = 1.0

    def op(self, op: ObservedOp, step: Step, chunk: Chunk) -> Iterator[Finding | tuple[ObservedOp, float]]:
        """Findings of one op in the order of its execution, and its errors."""
        for name, ours in op.attributes.items():
            theirs = step.attributes.get(name)
            if not _equal(ours, theirs):
                yield Finding(op.layer, op.label, f"its {name} is {ours}, which should be {theirs}", None, None)
        for i, (operand, source) in enumerate(zip(op.operands, step.pool_from, strict=True)):
            label = _operand(op, i)
            if operand.pool_from != source:
                yield Finding(op.layer, op.label, f"{label} is not the KV pool as the op before left it", None, None)
            elif operand.output is not None:
                error = row_error(chunk.values[operand.output], np.asarray(step.operands[i]), chunk)
                yield op, error
                if not error <= EXACT:
                    weights = self.changed(operand.reads)
                    between = _between(op, weights or operand.reads)
                    yield Finding(op.layer, between, f"{label} of {op.label} is wrong", error, EXACT, weights)
        most = tolerance(op.op, self.build) * self.slack
        for error in self._result_errors(op, step, chunk):
            yield op, error
            if not error <= most:
                weights = self.changed(op.weights)
                what = "its result is wrong" if weights else "its result is wrong, its operands and weights are right"
                yield Finding(op.layer, op.label, what, error, most, weights)

    def _result_errors(self, op: ObservedOp, step: Step, chunk: Chunk) -> Iterator[float]:
        if op.op == "moe_route" and op.results[0] is not None:
            yield from _routing_errors(op, step, chunk)
            return
        rows = _rows_of_experts(op, chunk)
        seen = [(i, name) for i, name in enumerate(op.results) if name is not None]
        errors = [row_error(chunk.values[name], np.asarray(step.results[i]), chunk, rows) for i, name in seen]
        if rounds(op.op, self.build) and any(not e <= EIGHT_BIT for e in errors):  # unless it has no such kernel
            exact = step.unchanged()
            again = [row_error(chunk.values[name], np.asarray(exact[i]), chunk, rows) for i, name in seen]
            errors = [min(pair) for pair in zip(errors, again, strict=True)]
        yield from errors
        if op.op == "rope_and_append":
            width = op.attributes["kv_heads"] * op.attributes["head_dim"]
            for pool, expected in zip(("k_pool", "v_pool"), step.results[1:], strict=True):
                ours, theirs = chunk.values[pool], np.asarray(expected)
                rows = _appended_rows(op, step, chunk, ours.shape[1])
                a, b = (p.reshape(-1, p.shape[1], width)[op.attributes["layer"], rows] for p in (ours, theirs))
                yield _rows(*(np.asarray(pool_values(jnp.asarray(p))) for p in (a, b)))  # fp8 is held in int8


def _appended_rows(op: ObservedOp, step: Step, chunk: Chunk, pool_rows: int) -> np.ndarray:
    """rope_and_append: the rows of the pools that it writes to, by the program's own block table and positions."""
    table, positions = (
        step.operands[i] if name is None else jnp.asarray(chunk.values[name])
        for i, name in ((i, op.operands[i].output) for i in (2, 3))
    )
    rows = np.asarray(rows_in_pool(table, positions, op.attributes["block_size"], pool_rows))
    return rows[rows < pool_rows]


def _rows_of_experts(op: ObservedOp, chunk: Chunk) -> np.ndarray | None:
    """moe_gate_up: its result's rows that belong to an expert; the others hold anything. Other ops: None."""
    if op.op != "moe_gate_up" or op.operands[1].output is None or op.operands[3].output is None:
        return None
    expert, offsets = chunk.values[op.operands[1].output], chunk.values[op.operands[3].output]
    return np.flatnonzero(expert < len(offsets) - 1)


def _routing_errors(op: ObservedOp, step: Step, chunk: Chunk) -> Iterator[float]:
    """Experts whose scores are equal but for rounding may change places, in few tokens, and the rest with them."""
    ours = [chunk.values[name] for name in op.results if name is not None]
    theirs = [np.asarray(r) for r in step.results]
    same = (ours[0] == theirs[0]).all(axis=1)
    yield 0.0 if (~same).mean() <= NEARLY_EQUAL else float((~same).mean())
    yield row_error(ours[1], theirs[1], chunk, np.flatnonzero(same))  # weights
    if same.all():
        yield from (row_error(a, b, chunk, np.arange(len(a))) for a, b in zip(ours[2:], theirs[2:], strict=True))


def row_error(ours: np.ndarray, expected: np.ndarray, chunk: Chunk, rows: np.ndarray | None = None) -> float:
    """The largest relative error of a row: |ours - expected| / |expected|, rows that are nearly zero over a thousandth
    of the usual norm. Integers: the share of rows that differ. Rows of padding do not count, or
    only `rows` do."""
    if ours.shape != expected.shape:
        return math.inf
    if rows is not None:
        ours, expected = ours[rows], expected[rows]
    elif len(ours) == len(chunk.inputs[0]):
        ours, expected = ours[: chunk.count], expected[: chunk.count]
    return _rows(ours, expected)


def _rows(ours: np.ndarray, expected: np.ndarray) -> float:
    if not len(ours):
        return 0.0
    if expected.dtype.kind in "iu":
        return float((ours != expected).reshape(len(ours), -1).any(axis=1).mean())
    a, b = ours.astype(np.float64).reshape(len(ours), -1), expected.astype(np.float64).reshape(len(ours), -1)
    delta = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, a - b)  # rows that nobody reads may hold anything
    b = np.where(np.isnan(b), 0.0, b)
    norm = np.sqrt((b * b).sum(axis=1))
    error = np.sqrt((delta * delta).sum(axis=1)) / (norm + 1e-3 * np.sqrt((norm * norm).mean()) + 1e-30)
    return math.inf if np.isnan(error).any() else float(error.max())


def _operand(op: ObservedOp, i: int) -> str:
    if op.attributes.get("added") and i == len(op.operands) - 1:
        return "residual"
    names = OPERANDS.get(op.op, ("its input",))
    if op.op == "rope_and_append":
        names = operand_names(op.attributes)
    return names[i] if i < len(names) else f"operand {i}"


def _between(op: ObservedOp, reads: Sequence[str]) -> str:
    """What to call the computation before an op, by the parameters that it reads."""
    if any("rope" in name for name in reads):
        return f"{op.label}, rope"
    own = [m[2] for name in reads if (m := LAYER.search(name)) and int(m[1]) == op.layer]
    nearest = own[0] if own else reads[0] if reads else ""
    name = nearest.rpartition(".weight")[0] or nearest
    return f"{op.label}, {name}" if name else op.label


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        return isinstance(a, int | float) and isinstance(b, int | float) and math.isclose(a, b, rel_tol=1e-6)
    return bool(a == b)
