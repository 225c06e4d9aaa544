"""What a comparison keeps of single positions, for its pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .native.contender import TopLogprobs
from .numerics import log_softmax

BEST = 4  # of each position
AT_RANDOM = 4
MOST = 2000  # pairs


@dataclass(frozen=True)
class LogitTrace:
    """kl: of each position, in nats. ours, theirs: log-probabilities of the same tokens, some of each position."""

    kl: tuple[float, ...]
    ours: tuple[float, ...]
    theirs: tuple[float, ...]


def logit_trace(ours: np.ndarray, theirs: np.ndarray | TopLogprobs, kl: np.ndarray) -> LogitTrace:
    """ours: logits [T, V]. Of each position their likeliest tokens and some at random, of all positions MOST pairs."""
    rng = np.random.default_rng(0)
    pairs: list[tuple[float, float]] = []
    positions = sorted(rng.permutation(len(ours))[: MOST // (BEST + AT_RANDOM)].tolist())
    for t in positions:
        mine = log_softmax(ours[t])
        if isinstance(theirs, TopLogprobs):
            known = theirs.ids[t] >= 0
            tokens, other = theirs.ids[t][known][: BEST + AT_RANDOM], theirs.logprobs[t][known][: BEST + AT_RANDOM]
        else:
            row = log_softmax(theirs[t])
            best = np.argpartition(row, -min(BEST, len(row)))[-BEST:]
            tokens = np.concatenate([best, rng.integers(0, len(row), AT_RANDOM)])
            other = row[tokens]
        pairs += zip(mine[tokens].tolist(), other.tolist(), strict=True)
    finite = [(a, b) for a, b in pairs if np.isfinite(a) and np.isfinite(b)]
    return LogitTrace(tuple(kl.tolist()), tuple(a for a, _ in finite), tuple(b for _, b in finite))
