"""Our own side of a comparison: an engine over a compiled bundle."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import StrixhloError
from ..engine import Engine
from ..tokenizer import BundleTokenizer
from .contender import Precision, Timing


class CompiledBundle:
    """A `Contender`. Prompts are prefilled in chunks and tokens decoded one by one, as `run` does it."""

    def __init__(self, engine: Engine, tokenizer: BundleTokenizer | None, name: str = "strixhlo") -> None:
        self.engine, self.name, self._tokenizer = engine, name, tokenizer
        self.vocab_size: int | None = engine.vocab_size
        program = engine.program
        exact = program.bundle.manifest.activations == program.build.activations == "f32"
        self.precision: Precision = "float32" if exact else "reduced"

    def encode(self, text: str) -> list[int] | None:
        """See `Contender`."""
        return self._tokenizer.encode(text) if self._tokenizer else None

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """See `Contender`."""
        if self._tokenizer is None or self._tokenizer.chat_template is None:
            return None
        return self._tokenizer.encode_chat(messages)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """float32 [T, vocabulary], from the score entry: many rows at a time."""
        self.engine.reset()
        return self.engine.score(ids)

    def decoded_logits(self, ids: Sequence[int], decoded: int) -> np.ndarray:
        """float32 [decoded, vocabulary] after the last `decoded` ids: prefill before them, then token by token."""
        if not 0 < decoded < len(ids):
            raise StrixhloError(f"cannot decode {decoded} of {len(ids)} tokens")
        self.engine.reset()
        self.engine.prefill(ids[:-decoded])
        return np.stack([self.engine.decode(i) for i in ids[-decoded:]])

    def greedy(self, ids: Sequence[int], n: int) -> list[int]:
        """See `Contender`; goes on after an end-of-text token."""
        self.engine.reset()
        tokens = [int(self.engine.prefill(ids).argmax())]
        while len(tokens) < n:
            tokens.append(int(self.engine.decode(tokens[-1]).argmax()))
        return tokens

    def run(self, prompt: Sequence[int], n: int) -> Timing:
        """See `Contender`."""
        if len(prompt) + n > self.engine.context:
            raise StrixhloError(f"{len(prompt)} + {n} tokens do not fit into the context of {self.engine.context}")
        self.engine.reset()
        began = time.perf_counter()
        token = int(self.engine.prefill(prompt).argmax())
        first = time.perf_counter()
        for _ in range(n):
            token = int(self.engine.decode(token).argmax())
        return Timing(first - began, time.perf_counter() - first)

    def close(self) -> None:
        """Let go of the engine, then of its program."""
        self.engine.close()
        self.engine.program.close()
