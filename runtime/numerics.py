"""How far two evaluations of one model are from each other: logits, log-probabilities and greedy tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import StrixhloError

CHUNK_BYTES = 32 << 20  # of float64 log-probabilities at a time


@dataclass(frozen=True)
class LogitComparison:
    """`ours` against `theirs` over T positions of one text, the whole vocabulary, in float64.

    Deltas are between log-probabilities, that is between logits after each row's constant is taken out, so that an
    engine that returns only log-probabilities can be compared with one that returns logits. KL is KL(theirs || ours)
    in nats; 99% of the positions have at most p99_kl. Perplexities are exp of the mean negative log-probability of the
    targets.
    """

    positions: int
    vocabulary: int
    mean_abs_delta: float
    max_abs_delta: float
    mean_kl: float
    p99_kl: float
    max_kl: float
    top1_agreement: float
    perplexity_ours: float | None = None
    perplexity_theirs: float | None = None


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float64 log-probabilities [..., V] of logits (or log-probabilities) [..., V]."""
    shifted = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):  # a row of only -inf has no distribution: NaN, without a warning
        shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def kl_divergence(theirs: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """KL(theirs || ours) in nats [...] of two arrays of log-probabilities [..., V]."""
    weight = np.exp(theirs)
    with np.errstate(invalid="ignore"):  # -inf minus -inf, where the weight is 0
        terms = np.where(weight > 0, weight * (theirs - ours), 0.0)
    return np.maximum(terms.sum(axis=-1), 0.0)  # rounding can take a zero divergence below zero


def compare_logits(ours: np.ndarray, theirs: np.ndarray, targets: Sequence[int] | None = None) -> LogitComparison:
    """Compare two [T, V] arrays of logits or log-probabilities; see LogitComparison.

    targets: the T token ids that follow the T positions, for the perplexities; those below 0 are left out.
    Raises StrixhloError when the shapes differ or a value is NaN.
    """
    if ours.ndim != 2 or ours.shape != theirs.shape or 0 in ours.shape:
        raise StrixhloError(
            f"compare: logits have shapes {ours.shape} and {theirs.shape}; both must be [tokens, vocabulary]"
        )
    positions, vocabulary = ours.shape
    following = None if targets is None else _checked_targets(targets, positions, vocabulary)
    kl = np.empty(positions)
    mean_delta, max_delta = np.empty(positions), np.empty(positions)
    agree = np.empty(positions, bool)
    nll = np.zeros((2, positions))
    for rows in _row_chunks(positions, vocabulary):
        mine, other = log_softmax(ours[rows]), log_softmax(theirs[rows])
        if np.isnan(mine).any() or np.isnan(other).any():
            raise StrixhloError(f"compare: NaN among the logits of positions {rows.start} to {rows.stop - 1}")
        kl[rows] = kl_divergence(other, mine)
        agree[rows] = mine.argmax(axis=1) == other.argmax(axis=1)
        if following is not None:
            column = np.maximum(following[rows], 0)[:, None]
            nll[0, rows] = -np.take_along_axis(mine, column, 1)[:, 0]
            nll[1, rows] = -np.take_along_axis(other, column, 1)[:, 0]
        both_impossible = np.isneginf(mine) & np.isneginf(other)
        delta = np.abs(np.subtract(mine, other, where=~both_impossible, out=np.zeros_like(mine)))
        mean_delta[rows], max_delta[rows] = delta.mean(axis=1), delta.max(axis=1)
    counted = None if following is None else following >= 0
    return LogitComparison(
        positions=positions,
        vocabulary=vocabulary,
        mean_abs_delta=float(mean_delta.mean()),
        max_abs_delta=float(max_delta.max()),
        mean_kl=float(kl.mean()),
        p99_kl=float(np.quantile(kl, 0.99, method="inverted_cdf")),
        max_kl=float(kl.max()),
        top1_agreement=float(agree.mean()),
        perplexity_ours=None if counted is None else math.exp(nll[0, counted].mean()),
        perplexity_theirs=None if counted is None else math.exp(nll[1, counted].mean()),
    )


def _checked_targets(targets: Sequence[int], positions: int, vocabulary: int) -> np.ndarray:
    following = np.asarray(targets, np.int64)
    if following.shape != (positions,) or (following >= vocabulary).any() or (following < 0).all():
        raise StrixhloError(f"compare: {positions} target ids below {vocabulary} are needed, got {following.size}")
    return following


def _row_chunks(positions: int, vocabulary: int) -> Iterator[slice]:
    rows = max(1, CHUNK_BYTES // (8 * vocabulary))
    for start in range(0, positions, rows):
        yield slice(start, min(start + rows, positions))


def first_divergence(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token in which two sequences differ, as far as both go; None: in none."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def top_two_gap(logits: np.ndarray) -> np.ndarray:
    """The largest minus the second largest of logits [..., V], V at least 2: float64 [...]."""
    second, first = np.moveaxis(np.partition(logits, -2, axis=-1)[..., -2:].astype(np.float64), -1, 0)
    return first - second
