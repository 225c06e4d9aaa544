"""Named points inside a model, so that two evaluations can be compared state by state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

from ...custom_kernels.ops.activations import float32

_recorded: ContextVar[list[tuple[str, jax.Array]] | None] = ContextVar("recorded", default=None)


def probe(x: jax.Array, name: str) -> jax.Array:
    """The identity. Inside `recording()`, at trace time, it also notes (name, x in float32).

    Names that every family uses: "embedding", "layers.<i>.attention" and "layers.<i>.mlp" (the residual stream after
    that part was added to it). x: [T, hidden].
    """
    states = _recorded.get()
    if states is not None:
        states.append((name, float32(x)))
    return x


@contextmanager
def recording() -> Iterator[list[tuple[str, jax.Array]]]:
    """The states that are probed inside the `with`, in order of execution."""
    states: list[tuple[str, jax.Array]] = []
    token = _recorded.set(states)
    try:
        yield states
    finally:
        _recorded.reset(token)
