"""One short file per model family, read top to bottom. `FAMILIES` maps a config's model_type to its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from ...errors import StrixhloError
from ..config_values import required, shown
from ..layers.cache import Cache
from ..layers.weights import Weights
from . import gemma3, llama


class Model(Protocol):
    """What a family's file offers to the tracer."""

    @property
    def layers(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]: ...
    def tables(self, context: int) -> dict[str, np.ndarray]: ...
    def hidden_states(self, w: Weights, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]: ...
    def logits(self, w: Weights, hidden: jax.Array) -> jax.Array: ...


# model_type -> reads a config of that type.
FAMILIES: dict[str, Callable[[Mapping[str, Any]], Model]] = {
    "gemma3_text": gemma3.model,
    "llama": llama.model,
}


def model_from_config(config: Mapping[str, Any]) -> Model:
    """The family's model for a Hugging Face config; StrixhloError that names an unknown one."""
    kind = required(config, "model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise StrixhloError(f"model type {shown(kind)} is not supported; supported: {', '.join(sorted(FAMILIES))}")
    return FAMILIES[kind](config)
