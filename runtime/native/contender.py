"""What `compare` asks of each of its two sides: token ids in, logits, tokens and seconds out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

Precision = Literal["float32", "reduced"]


@dataclass(frozen=True)
class TopLogprobs:
    """The N likeliest tokens after each of T positions, where an engine gives no more: ids int32 [T, N] (-1: none) and
    natural log-probabilities float64 [T, N] (-inf: none), likeliest first."""

    ids: np.ndarray
    logprobs: np.ndarray

    def dense(self, vocabulary: int) -> np.ndarray | None:
        """Float64 [T, vocabulary], where every position has every token; None else."""
        if self.ids.shape[1] != vocabulary or not (np.sort(self.ids, axis=1) == np.arange(vocabulary)).all():
            return None
        found = np.empty(self.logprobs.shape)
        np.put_along_axis(found, self.ids, self.logprobs, axis=1)
        return found


@dataclass(frozen=True)
class Timing:
    """Seconds from the prompt to its first token, and of the decode steps after it."""

    first_token: float
    decode: float


class Contender(Protocol):
    """One engine with one model loaded. All ids are of the bundle's tokenizer.

    precision: "float32" where activations and sums are float32, "reduced" where the engine rounds them further.
    vocab_size: of its model; None where that is not known.
    """

    name: str
    vocab_size: int | None
    precision: Precision

    def encode(self, text: str) -> list[int] | None:
        """The ids that the engine itself makes of a plain prompt; None where it has no tokenizer."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """The ids that it makes of a conversation, up to the reply; None where it has no template."""

    def logits(self, ids: Sequence[int]) -> np.ndarray | TopLogprobs:
        """After each of T ids: float32 [T, vocabulary] (logits or log-probabilities), or the best few."""

    def greedy(self, ids: Sequence[int], n: int) -> list[int]:
        """The n tokens that follow by greedy choice; fewer when the engine stops at an end of text."""

    def run(self, prompt: Sequence[int], n: int) -> Timing:
        """Time a fresh prefill of `prompt` and n greedy decode steps after its first token."""

    def close(self) -> None:
        """Free the model."""
