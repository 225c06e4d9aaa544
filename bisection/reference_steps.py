"""A fresh trace of the checkpoint's score entry, evaluated by JAX op by op along a program that was observed.

Each custom op's operands are computed from what the program's earlier ops gave, its results from what the program's op
took. So every op, and everything between two, is judged alone, and errors do not add up from layer to layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from ..compile.lower import PREFIX
from ..export.jax_model import JaxModel, loaded
from ..export.layers.weights import Weight
from ..export.trace import entry_function

# (an op's operands and attributes) -> its results
Evaluation = Callable[..., Sequence[jax.Array]]
Given = Callable[[int], tuple[Sequence[np.ndarray | None], Sequence[np.ndarray | None]]]


@dataclass(frozen=True)
class Step:
    """One custom op as it should be: operands made of the program's earlier results, results made of the program's
    operands. pool_from: for operands that are KV pools, the op that made them (-1: the entry's own), None for others.
    unchanged: the results without `Reference`'s own evaluations.
    """

    index: int
    op: str
    attributes: Mapping[str, Any]
    operands: tuple[jax.Array, ...]
    results: tuple[jax.Array, ...]
    pool_from: tuple[int | None, ...]
    unchanged: Callable[[], tuple[jax.Array, ...]]


class Reference:
    """The score entry of a checkpoint's model with `rows` rows. Weights are read as they are needed."""

    def __init__(self, model: JaxModel, rows: int, evaluations: Mapping[str, Evaluation]) -> None:
        """evaluations: of ops that the target that is looked at computes otherwise than their definition says."""
        self._evaluations = evaluations
        inputs = [jax.ShapeDtypeStruct(s, jnp.int32) for s in ((rows,), (1,), (1,), model.table().shape)]
        pools = [jax.ShapeDtypeStruct(p.shape, p.dtype) for p in model.pools]
        weights = {name: stored.traced() for name, stored in model.stored.items()}
        entry = entry_function("score", rows, model.model, model.kv, set(), activations=model.activations)
        self._closed = jax.make_jaxpr(entry)(weights, *inputs, *pools)
        leaves, _ = jax.tree_util.tree_flatten_with_path(weights)
        places = [(path[0].key, path[-1].key) for path, _ in leaves]
        arguments = self._closed.jaxpr.invars
        self._weights = dict(zip(arguments, places, strict=False))
        self._inputs = arguments[len(places) :]
        self._weight: Callable[[str], Weight] = lru_cache(maxsize=4)(lambda name: loaded(model.stored[name]))
        composites = [e for e in self._closed.jaxpr.eqns if e.primitive.name == "composite"]
        self.names = [e.params["name"].removeprefix(PREFIX) for e in composites]
        self.operands = [len(e.invars) for e in composites]
        self._last = {v: i for i, e in enumerate(self._closed.jaxpr.eqns) for v in e.invars if not _is_literal(v)}

    def steps(self, inputs: Sequence[np.ndarray], pools: Sequence[Any], given: Given) -> Iterator[Step]:
        """inputs: tokens, start, count, block table. given: op -> the program's operands and results, None for those
        that were not observed. The last step, "outputs", has the entry's logits as its operand."""
        jaxpr = self._closed.jaxpr
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, self._closed.consts, strict=True))
        env |= {v: jnp.asarray(a) for v, a in zip(self._inputs, [*inputs, *pools], strict=True)}
        made: dict[Any, int] = dict.fromkeys(self._inputs[-2:], -1)
        count = 0
        for i, eqn in enumerate(jaxpr.eqns):
            values = [self._read(env, v) for v in eqn.invars]
            if eqn.primitive.name == "composite":
                takes, gives = given(count)
                actual = [v if a is None else jnp.asarray(a) for v, a in zip(values, takes, strict=True)]
                inner = eqn.params["jaxpr"]
                name = eqn.params["name"].removeprefix(PREFIX)
                run = partial(jax.core.eval_jaxpr, inner.jaxpr, inner.consts)
                attributes = _attributes(eqn)
                own = self._evaluations.get(name)
                results = own(*actual, **attributes) if own else run(*actual)
                sources = tuple(None if _is_literal(v) else made.get(v) for v in eqn.invars)
                unchanged = partial(_results, run, actual)
                yield Step(count, name, attributes, tuple(values), tuple(results), sources, unchanged)
                if any(s is not None for s in sources):
                    shape = self._inputs[-1].aval.shape
                    made |= {v: count for v in eqn.outvars if v.aval.shape == shape}
                results = [r if g is None else jnp.asarray(g) for r, g in zip(results, gives, strict=True)]
                count += 1
            else:
                results = eqn.primitive.bind(*values, **eqn.params)
                results = results if eqn.primitive.multiple_results else [results]
            env |= zip(eqn.outvars, results, strict=True)
            for v in {v for v in eqn.invars if not _is_literal(v)}:
                if self._last[v] == i and v not in jaxpr.outvars:
                    env.pop(v, None)
        yield Step(count, "outputs", {}, (self._read(env, jaxpr.outvars[0]),), (), (None,), tuple)

    def _read(self, env: Mapping[Any, Any], v: Any) -> Any:
        if _is_literal(v):
            return v.val
        if v in self._weights:
            name, part = self._weights[v]
            return self._weight(name).parts[part]
        return env[v]


def _results(run: Callable[..., Sequence[Any]], operands: Sequence[Any]) -> tuple[jax.Array, ...]:
    return tuple(run(*operands))


def _is_literal(v: Any) -> bool:
    return isinstance(v, jax.extend.core.Literal)


def _attributes(eqn: Any) -> dict[str, Any]:
    return {name: jax.tree_util.tree_unflatten(tree, leaves) for name, leaves, tree in eqn.params["attributes"]}
