"""Drafts by a small model with the same tokenizer, which reads along.

It chooses as the request itself does, with the random numbers of the very steps, so its draft is right whenever the two
models' distributions put the same token there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

from ..errors import StrixhloError
from .batch_engine import BatchEngine
from .speculation import Choose


class DraftModel:
    """Owns the blocks of the small model's KV pool; every sequence that is drafted for takes its own."""

    def __init__(self, engine: BatchEngine, vocab_size: int) -> None:
        """vocab_size: the large model's; one of the two may be padded."""
        self.engine, self.vocab_size = engine, vocab_size
        self.free = list(range(engine.blocks))

    def begin(self) -> DraftSequence:
        """Reads along with a new sequence."""
        return DraftSequence(self)


class DraftSequence:
    """What the small model has read of one sequence, which only ever grows."""

    rest = 64  # it then reads what it missed in one chunk

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self._read: list[int] = []  # ids in the small model's KV cache, at the end perhaps refused drafts
        self._sure = 0  # of them are known to be the sequence's
        self._blocks: list[list[int]] = [[] for _ in model.engine.windows]

    def offer(self, ids: Sequence[int]) -> int:
        """As many as a step has rows, once all but a few ids are read; until then a chunk of them is."""
        engine = self._model.engine
        most = engine.decode_sizes[-1]
        known = self._known(ids)
        if max(ids[known:]) >= engine.vocab_size or not self._reserve(len(ids) + most):
            return 0
        left = len(ids) - known
        if left > most:
            size = min(left - 1, engine.chunk_rows(left))
            engine.prefill(ids[known : known + size], known, self._blocks, "tokens")
            self._read = list(ids[: known + size])
            return 0
        return most

    def propose(self, ids: Sequence[int], count: int, choose: Choose) -> list[int]:
        """Up to `count` tokens, one decode step of the small model for each but the first, and one to catch up."""
        drafted: list[int] = []
        logits = self._append(ids[self._known(ids) :])
        while True:
            drafted.append(choose(self._fitted(logits), drafted))
            if len(drafted) == count or drafted[-1] >= self._model.engine.vocab_size:
                return drafted
            logits = self._append(drafted[-1:])

    def close(self) -> None:
        """Give the blocks back."""
        self._model.free += [block for own in self._blocks for block in own]
        self._blocks, self._read, self._sure = [[] for _ in self._blocks], [], 0

    def _known(self, ids: Sequence[int]) -> int:
        """How many of ids are read; the last one counts as not, since its logits are wanted. Forgets the others."""
        n = self._sure
        while n < min(len(self._read), len(ids) - 1) and self._read[n] == ids[n]:
            n += 1
        self._sure = n
        del self._read[n:]
        return n

    def _append(self, tokens: Sequence[int]) -> np.ndarray:
        """Read some tokens; logits float32 [vocabulary] after the last."""
        first = len(self._read)
        rows = self._model.engine.decode(tokens, range(first, first + len(tokens)), [self._blocks] * len(tokens))
        self._read += tokens
        return rows[-1]

    def _fitted(self, logits: np.ndarray) -> np.ndarray:
        size = self._model.vocab_size
        if logits.size >= size:
            return logits[:size]
        return np.concatenate([logits, np.full(size - logits.size, -np.inf, np.float32)])

    def _reserve(self, length: int) -> bool:
        """Blocks for so many positions; False where context or pool are too small."""
        engine, free = self._model.engine, self._model.free
        if length > engine.context:
            return False
        for own in self._blocks:
            while len(own) * engine.block_size < length:
                if not free:
                    return False
                own.append(free.pop())
        return True


def check_same_tokens(tokenizer: Tokenizer, draft: Tokenizer) -> None:
    """StrixhloError where the two models' ids stand for different texts."""
    if tokenizer.get_vocab(with_added_tokens=True) != draft.get_vocab(with_added_tokens=True):
        raise StrixhloError("the draft model has another vocabulary; choose one of the same model family for --draft")
