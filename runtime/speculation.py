"""Speculative decoding: tokens that are cheap to guess are drafted, and checked together in one decode step.

A decode entry takes rows of any sequences, so a drafted token is one more row: same block table, next position. Each
row's logits are those of a step of its own (decode kernels are batch-invariant), the next token is chosen from them as
ever, with the request's own random numbers, and a draft counts only where it is that very token. So a stream is the
same with and without speculation, bit for bit: exact in distribution without the rejection rule of Leviathan et al.
(2023). Keys and values of refused drafts lie behind the sequence's end and are overwritten.

Drafts are worth their rows only sometimes: `plan` weighs what they are likely to give, from how often this sequence's
drafts were right lately, against what steps of more rows were measured to take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..errors import StrixhloError

Choose = Callable[[np.ndarray, list[int]], int]  # (a draft model's logits, tokens drafted so far) -> the next token
NEWEST = 0.1  # weight of the newest observation in an average
FIRST_RATE = 0.5  # of drafts that are right, before any was checked; an unused rate drifts back to it
DRIFT = 0.01
ROW_SECONDS = 0.05  # of a step's time, assumed for each row more until it is measured
FORGET = 200  # steps after which a time that was not seen again counts as unknown


class Drafter(Protocol):
    """Guesses of one sequence's next tokens. rest: for how many steps it is not asked once its drafts are not worth
    their rows, where the asking itself costs something: a model reads along."""

    rest: int

    def offer(self, ids: Sequence[int]) -> int:
        """How many it can propose behind these ids."""
        ...

    def propose(self, ids: Sequence[int], count: int, choose: Choose) -> list[int]:
        """`count` tokens at most, of an offer that was not zero."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


@dataclass
class Drafts:
    """A sequence's drafter, and which share of its tokens is right."""

    drafter: Drafter
    rate: float = FIRST_RATE
    resting: int = 0  # steps

    def offer(self, ids: Sequence[int], room: int) -> int:
        """How many tokens may be drafted, `room` at most."""
        if room < 1:
            return 0
        if self.resting:
            self.resting -= 1
            return 0
        return min(room, self.drafter.offer(ids))

    def unused(self) -> None:
        """An offer was not worth its rows: it is made again later, at a rate nearer to the first."""
        self.resting = self.drafter.rest
        self.rate += (1 - (1 - DRIFT) ** (1 + self.resting)) * (FIRST_RATE - self.rate)

    def checked(self, drafted: int, accepted: int) -> None:
        """Learn from a step: the first `accepted` of its drafts were right, the next, if there was one, was not."""
        for right in [1.0] * accepted + [0.0] * (accepted < drafted):
            self.rate += NEWEST * (right - self.rate)


@dataclass
class StepTimes:
    """Seconds of decode steps by their rows; of sizes not yet seen an optimistic guess, so that they are tried."""

    _average: dict[int, float] = field(default_factory=dict)
    _seen: dict[int, int] = field(default_factory=dict)
    _steps: int = 0

    def observe(self, rows: int, seconds: float) -> None:
        """One step of that size."""
        self._steps += 1
        self._seen[rows] = self._steps
        self._average[rows] = self._average.get(rows, seconds) + NEWEST * (seconds - self._average.get(rows, seconds))
        for size in [s for s, at in self._seen.items() if self._steps - at > FORGET]:
            del self._average[size], self._seen[size]

    def expected(self, rows: int) -> float:
        """Seconds of a step; relative ones where no size was seen."""
        if rows in self._average:
            return self._average[rows]
        known = max((size for size in self._average if size < rows), default=None)
        base, more = (1.0, rows) if known is None else (self._average[known], rows - known)
        return base * (1 + ROW_SECONDS * more)


def plan(
    rates: Sequence[float],
    offers: Sequence[int],
    sizes: Sequence[int],
    step_seconds: Callable[[int], float],
    draft_seconds: float,
) -> list[int]:
    """How many tokens to draft for each sequence, so that the most tokens come per second.

    rates: chance that a draft is right; offers: drafts at most; sizes: rows of the entries, ascending; draft_seconds:
    what one draft takes.
    """
    counts = [0] * len(rates)
    best, rows, tokens = list(counts), len(rates), float(len(rates))
    if not rows or rows > sizes[-1]:
        return counts
    fastest = tokens / step_seconds(_entry(sizes, rows))
    while rows < sizes[-1]:
        gains = [r ** (c + 1) if c < o else 0.0 for r, c, o in zip(rates, counts, offers, strict=True)]
        gain = max(gains)
        if gain <= 0:
            break
        counts[gains.index(gain)] += 1
        rows, tokens = rows + 1, tokens + gain
        speed = tokens / (step_seconds(_entry(sizes, rows)) + draft_seconds * sum(counts))
        if speed > fastest:
            fastest, best = speed, list(counts)
    return best


def _entry(sizes: Sequence[int], rows: int) -> int:
    return next(s for s in sizes if s >= rows)


@dataclass(frozen=True)
class Candidate:
    """A sequence about to be decoded: its ids, how many drafts it has room for, its state, how it chooses."""

    ids: Sequence[int]
    room: int
    drafts: Drafts
    choose: Choose


class Speculation:
    """What a scheduler drafts. begin: a drafter for a new sequence. adaptive: only where it is measured to help."""

    def __init__(self, begin: Callable[[], Drafter], *, adaptive: bool = True) -> None:
        self._begin, self._adaptive = begin, adaptive
        self._times = StepTimes()
        self._draft_seconds = 0.0
        self.drafted = self.accepted = 0

    def new(self) -> Drafts:
        """For a sequence that begins to be decoded."""
        return Drafts(self._begin())

    def propose(self, candidates: Sequence[Candidate], sizes: Sequence[int]) -> list[list[int]]:
        """Drafts for each, perhaps none. sizes: rows of the decode entries, ascending."""
        offers = [c.drafts.offer(c.ids, c.room) for c in candidates]
        if not any(offers):
            return [[] for _ in candidates]
        step_seconds = self._times.expected if self._adaptive else lambda _rows: 1.0
        rates = [c.drafts.rate for c in candidates]
        counts = plan(rates, offers, sizes, step_seconds, self._draft_seconds if self._adaptive else 0.0)
        result = []
        for candidate, count, offer in zip(candidates, counts, offers, strict=True):
            if offer and not count:
                candidate.drafts.unused()
            result.append(self._drafted(candidate, count) if count else [])
        return result

    def _drafted(self, candidate: Candidate, count: int) -> list[int]:
        began = time.perf_counter()
        tokens: list[int] = []
        with suppress(StrixhloError):  # a draft is a guess: without it the step is one as ever
            tokens = candidate.drafts.drafter.propose(candidate.ids, count, candidate.choose)
        self._draft_seconds += NEWEST * ((time.perf_counter() - began) / count - self._draft_seconds)
        return tokens

    def stepped(self, rows: int, sizes: Sequence[int], seconds: float) -> None:
        """A decode call took so long."""
        if rows <= sizes[-1]:
            self._times.observe(_entry(sizes, rows), seconds)

    def checked(self, drafts: Drafts, drafted: int, accepted: int) -> None:
        """What became of a sequence's drafts."""
        self.drafted += drafted
        self.accepted += accepted
        drafts.checked(drafted, accepted)


def closed(drafts: Iterable[Drafts | None]) -> None:
    """Close what there is."""
    for one in drafts:
        if one is not None:
            one.drafter.close()
