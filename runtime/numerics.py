"""How far two evaluations of one model are from each other: logits, log-probabilities and greedy tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from ..errors import StrixhloError

CHUNK_BYTES = 32 << 20  # of float64 log-probabilities at a time


@dataclass(frozen=True)
class LogitComparison:
    """`ours` against `theirs` over T positions of one text, the whole vocabulary, in float64.

    Deltas are between log-probabilities, that is between logits after each row's constant is taken out, so that an
    engine that returns only log-probabilities can be compared with one that returns logits. relative_error: root of
    the summed squared deltas over that of their logits around each row's mean, which random models' faults show in too.
    KL is KL(theirs || ours) in nats; 99% of the positions have at most p99_kl. Perplexities are exp of the mean
    negative log-probability of the targets. top_n: how many of a position's tokens were compared, None: all.
    """

    positions: int
    vocabulary: int
    mean_abs_delta: float
    max_abs_delta: float
    relative_error: float
    mean_kl: float
    p99_kl: float
    max_kl: float
    top1_agreement: float
    perplexity_ours: float | None = None
    perplexity_theirs: float | None = None
    top_n: int | None = None


@dataclass(frozen=True)
class Positions:
    """What was measured at each of T positions, all float64 [T] but `agree` (bool): KL, mean and largest |delta|, the
    squared norms of the deltas and of their centred logits, and both negative log-probabilities of the target (NaN: no
    target)."""

    kl: np.ndarray
    mean_delta: np.ndarray
    max_delta: np.ndarray
    squared_delta: np.ndarray
    squared_norm: np.ndarray
    agree: np.ndarray
    nll_ours: np.ndarray
    nll_theirs: np.ndarray

    def summary(self, vocabulary: int, top_n: int | None = None) -> LogitComparison:
        """Over all positions."""
        norm = self.squared_norm.sum()
        return LogitComparison(
            positions=len(self.kl),
            vocabulary=vocabulary,
            mean_abs_delta=float(self.mean_delta.mean()),
            max_abs_delta=float(self.max_delta.max()),
            relative_error=math.sqrt(self.squared_delta.sum() / norm) if norm else 0.0,
            mean_kl=float(self.kl.mean()),
            p99_kl=float(np.quantile(self.kl, 0.99, method="inverted_cdf")),
            max_kl=float(self.kl.max()),
            top1_agreement=float(self.agree.mean()),
            perplexity_ours=_perplexity(self.nll_ours),
            perplexity_theirs=_perplexity(self.nll_theirs),
            top_n=top_n,
        )


def _perplexity(nll: np.ndarray) -> float | None:
    known = nll[~np.isnan(nll)]
    return math.exp(min(known.mean(), 700.0)) if known.size else None


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
    """Compare two [T, V] arrays of logits or log-probabilities; see LogitComparison and compare_positions."""
    return compare_positions(ours, theirs, targets).summary(ours.shape[1])


def compare_positions(ours: np.ndarray, theirs: np.ndarray, targets: Sequence[int] | None = None) -> Positions:
    """Compare two [T, V] arrays of logits or log-probabilities, position by position.

    targets: the T token ids that follow the T positions, for the perplexities; those below 0 are left out.
    Raises StrixhloError when the shapes differ or a value is NaN.
    """
    if ours.ndim != 2 or ours.shape != theirs.shape or 0 in ours.shape:
        raise StrixhloError(
            f"compare: logits have shapes {ours.shape} and {theirs.shape}; both must be [tokens, vocabulary]"
        )
    positions, vocabulary = ours.shape
    following = None if targets is None else _checked_targets(targets, positions, vocabulary)
    columns = {f.name: np.full(positions, np.nan) for f in fields(Positions)}
    columns["agree"] = np.empty(positions, bool)
    for rows in _row_chunks(positions, vocabulary):
        mine, other = log_softmax(ours[rows]), log_softmax(theirs[rows])
        if np.isnan(mine).any() or np.isnan(other).any():
            raise StrixhloError(f"compare: NaN among the logits of positions {rows.start} to {rows.stop - 1}")
        columns["kl"][rows] = kl_divergence(other, mine)
        columns["agree"][rows] = mine.argmax(axis=1) == other.argmax(axis=1)
        if following is not None:
            column, known = np.maximum(following[rows], 0)[:, None], following[rows] >= 0
            for name, values in (("nll_ours", mine), ("nll_theirs", other)):
                columns[name][rows] = np.where(known, -np.take_along_axis(values, column, 1)[:, 0], np.nan)
        both_impossible = np.isneginf(mine) & np.isneginf(other)
        delta = np.abs(np.subtract(mine, other, where=~both_impossible, out=np.zeros_like(mine)))
        columns["mean_delta"][rows], columns["max_delta"][rows] = delta.mean(axis=1), delta.max(axis=1)
        columns["squared_delta"][rows] = (delta * delta).sum(axis=1)
        centred = np.where(np.isneginf(other), 0.0, other)
        centred -= centred.mean(axis=1, keepdims=True)
        columns["squared_norm"][rows] = (centred * centred).sum(axis=1)
    return Positions(**columns)


def compare_top(ours: np.ndarray, ids: np.ndarray, logprobs: np.ndarray, targets: Sequence[int]) -> Positions:
    """Our [T, V] logits against an engine's N best tokens: ids int [T, N] (-1: none), log-probabilities [T, N].

    KL is between the two distributions over these N tokens and one more outcome, all others; deltas are over the N.
    Perplexities are over the positions whose target [T] is among the N.
    """
    mine = log_softmax(ours)
    if ids.shape != logprobs.shape or len(ids) != len(mine) or np.isnan(mine).any() or (ids >= mine.shape[1]).any():
        raise StrixhloError(f"compare: {ids.shape} best tokens cannot be held against logits of shape {mine.shape}")
    known = ids >= 0
    if not known.any(axis=1).all():
        raise StrixhloError("compare: the engine gave no log-probabilities for a position")
    p = np.where(known, np.exp(logprobs), 0.0)
    q = np.where(known, np.exp(np.take_along_axis(mine, np.maximum(ids, 0), 1)), 0.0)
    rest_p, rest_q = np.clip(1 - p.sum(1), 1e-12, 1), np.clip(1 - q.sum(1), 1e-12, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * (np.log(p) - np.log(np.maximum(q, 1e-45))), 0.0)
        delta = np.where(known, np.abs(np.log(np.maximum(q, 1e-45)) - logprobs), 0.0)
    count = known.sum(axis=1)
    centred = np.where(known, logprobs, 0.0)
    centred = np.where(known, centred - (centred.sum(1) / count)[:, None], 0.0)
    target = np.asarray(targets, np.int64)[:, None]
    listed = known & (ids == target)
    has = listed.any(axis=1)
    return Positions(
        kl=np.maximum(terms.sum(1) + rest_p * (np.log(rest_p) - np.log(rest_q)), 0.0),
        mean_delta=delta.sum(1) / count,
        max_delta=delta.max(1),
        squared_delta=(delta * delta).sum(1),
        squared_norm=(centred * centred).sum(1),
        agree=mine.argmax(1) == np.take_along_axis(ids, np.where(known, logprobs, -np.inf).argmax(1)[:, None], 1)[:, 0],
        nll_ours=np.where(has, -np.take_along_axis(mine, target, 1)[:, 0], np.nan),
        nll_theirs=np.where(has, -np.where(listed, logprobs, 0.0).sum(axis=1), np.nan),
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
