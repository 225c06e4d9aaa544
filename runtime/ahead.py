"""A greedy step that is started before the tokens of the one before it have been read: the device has chosen them, and
need not wait for the host. A step too many, where a token ends its sequence, writes behind the sequence's end, as a
refused draft does, and before whatever else is queued for these blocks."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, field

import numpy as np

from .batch_engine import BatchEngine, Step
from .sequence import Sequence


@dataclass(frozen=True)
class _Flying:
    """A step under way: the sequences of its rows, and at which position each is."""

    step: Step
    sequences: list[Sequence]
    positions: list[int]


@dataclass
class Ahead:
    """Of one scheduler: at most one step is under way between its rounds."""

    engine: BatchEngine
    _flying: _Flying | None = field(default=None, init=False)

    def flying(self, ready: Several[Sequence]) -> list[Sequence]:
        """Those of `ready` whose next token is under way: they come before the others. What has ended or given its
        blocks back meanwhile is forgotten."""
        if self._flying is None:
            return []
        rows = zip(self._flying.sequences, self._flying.positions, strict=True)
        found = [s for s, position in rows if s in ready and s.decoding and s.filled == position]
        if not found:
            self._flying = None
        return found

    def outputs(self, ready: list[Sequence], further: bool) -> list[np.ndarray]:
        """The next token of each, as `BatchEngine.decode` gives it, of the step that is under way or one that begins
        here; ready: what `flying` said, or any where that is nothing. further: start the next step too, if it is
        possible, for which there are positions."""
        now = self._flying or self._started(ready, [s.ids[-1] for s in ready], 0)
        self._flying = None
        if further and now.sequences == ready:
            self._flying = self._started(ready, now.step, 1)
        tokens = now.step.read()
        return [tokens[now.sequences.index(s)] for s in ready]

    def forget(self) -> None:
        """What is under way is of no interest any more."""
        self._flying = None

    def _started(self, ready: list[Sequence], tokens: list[int] | Step, beyond: int) -> _Flying:
        positions = [s.filled + beyond for s in ready]
        step = self.engine.start(tokens, positions, [s.blocks for s in ready], "tokens")
        return _Flying(step, list(ready), positions)


def goes_on(sequence: Sequence, context: int) -> bool:
    """There will be a step after the next, unless the next one's token ends the sequence. context: of a sequence."""
    handle = sequence.handle
    more = handle.generated + 1 < handle.request.params.max_tokens and len(sequence.ids) + 1 <= context
    return more and not handle.cancelled
