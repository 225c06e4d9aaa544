"""The `jax` side of a comparison: the checkpoint through the traced functions and jax.jit, without IREE."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from ..export.jax_model import JaxModel
from ..runtime.native.contender import Precision, Timing


class JaxNative:
    """A `Contender` over a `JaxModel`. Custom ops run their references, so it is slow and computes in float32,
    rounding to the model's type of activations between them."""

    name = "jax"

    def __init__(self, model: JaxModel) -> None:
        self._model = model
        self.precision: Precision = "float32" if model.activations == "f32" else "reduced"
        self.vocab_size: int | None = model.model.vocab_size

    def encode(self, _text: str) -> list[int] | None:
        """No tokenizer of its own."""
        return None

    def encode_chat(self, _messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """No template of its own."""
        return None

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """float32 [T, vocabulary]."""
        self._model.reset()
        return self._model.score(ids)

    def greedy(self, ids: Sequence[int], n: int) -> list[int]:
        """See `Contender`; goes on after an end-of-text token."""
        return self._generate(ids, n)[0]

    def run(self, prompt: Sequence[int], n: int) -> Timing:
        """See `Contender`."""
        return self._generate(prompt, n + 1)[1]

    def close(self) -> None:
        """Drop the model."""
        del self._model

    def _generate(self, ids: Sequence[int], n: int) -> tuple[list[int], Timing]:
        self._model.reset()
        began = time.perf_counter()
        tokens = [int(self._model.prefill(ids).argmax())]
        first = time.perf_counter()
        while len(tokens) < n:
            tokens.append(int(self._model.decode(tokens[-1]).argmax()))
        return tokens, Timing(first - began, time.perf_counter() - first)
