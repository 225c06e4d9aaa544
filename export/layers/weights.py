"""Weights as the traced functions see them: a dict of Hugging Face names, each a `Weight` of one or more arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import jax

from ...errors import StrixhloError

DENSE = "dense"  # the only part of a weight that is not quantized


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weight:
    """One weight: its arrays by part name, and the format that says what they mean (f32, f16, bf16, q4_1, ...)."""

    parts: Mapping[str, jax.Array]  # or, for tracing, jax.ShapeDtypeStruct
    format: str = field(metadata={"static": True})
    columns: int = field(metadata={"static": True})

    @property
    def dense(self) -> jax.Array:
        """The array of a weight that is not quantized, in float32."""
        if DENSE not in self.parts:
            raise StrixhloError(f"a quantized weight ({self.format}) stands where the model needs a plain one")
        return self.parts[DENSE].astype("float32")


class Weights(Mapping[str, Weight]):
    """The model's weights; says which one is missing, and remembers which ones were used. activations: the dtype of
    what goes from layer to layer (a key of custom_kernels/ops/activations.py's DTYPES)."""

    def __init__(self, weights: Mapping[str, Weight], activations: str = "f32") -> None:
        self._weights, self.activations = weights, activations
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Weight:
        if name not in self._weights:
            raise StrixhloError(f"the checkpoint has no tensor {name}, which this model family needs")
        self.used.add(name)
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, name: object) -> bool:
        return name in self._weights
