"""Perplexity of a text: exp of the mean negative log-likelihood of its tokens, in windows as llama-perplexity has them.

Chunked (the default): the text is cut into windows of `ctx` tokens, each evaluated alone, and the tokens of a window's
second half but its first are scored, so that each has more than ctx / 2 before it. Strided: windows of `ctx` tokens
begin every `stride` tokens, and the last `stride` of each are scored, so that each has at least ctx - stride before it.
Where the tokenizer puts a BOS before a text, it takes the place of each window's first token.
Source: llama.cpp, tools/perplexity (README and perplexity.cpp: `perplexity`, and `perplexity_v2` for --ppl-stride).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import StrixhloError
from .engine import Engine

ROWS = 16  # whose log-likelihoods are computed at a time, in float64


@dataclass(frozen=True)
class Window:
    """Ids that are evaluated together; those from index `first` (at least 1) on are scored."""

    ids: tuple[int, ...]
    first: int


@dataclass(frozen=True)
class Perplexity:
    """Over `tokens` scored tokens. error: the standard error of the mean negative log-likelihood, carried over to the
    perplexity to first order, as llama-perplexity prints it; None for a single token."""

    value: float
    error: float | None
    nll: float  # mean, in nats
    tokens: int
    windows: int


def windows(
    ids: Sequence[int], ctx: int, *, stride: int | None = None, chunks: int | None = None, bos: int | None = None
) -> list[Window]:
    """The windows of a text; chunks: at most so many. StrixhloError for numbers that do not go together, and for a text
    that is shorter than a window."""
    if ctx < 4:
        raise StrixhloError(f"a window of {ctx} tokens is too short to score; give --ctx 4 or more")
    if stride is not None and not 0 < stride < ctx:
        raise StrixhloError(f"--stride {stride} is not possible with --ctx {ctx}; it is from 1 to {ctx - 1}")
    starts = range(0, len(ids) - ctx + 1, stride or ctx)[:chunks]
    if not starts:
        raise StrixhloError(f"the text has {len(ids)} tokens, fewer than one window of {ctx}; give a longer text")
    first = ctx // 2 + 1 if stride is None else ctx - stride
    head = () if bos is None else (bos,)
    return [Window((*head, *ids[start + len(head) : start + ctx]), first) for start in starts]


def perplexity(engine: Engine, parts: Sequence[Window], say: Callable[[str], None]) -> Perplexity:
    """Evaluate windows one after the other, each from an empty cache."""
    found: list[np.ndarray] = []
    for number, window in enumerate(parts, 1):
        found.append(window_nll(engine, window))
        so_far = summary(found)
        say(f"{number} of {len(parts)}: perplexity {so_far.value:.4f}")
    return summary(found)


def window_nll(engine: Engine, window: Window) -> np.ndarray:
    """Negative log-likelihoods of the scored ids of a window: float64 [len(ids) - first]."""
    before, scored = window.ids[: window.first - 1], window.ids[window.first - 1 : -1]
    engine.reset()
    if before:
        engine.prefill(before)
    return negative_log_likelihood(engine.score(scored), window.ids[window.first :])


def negative_log_likelihood(logits: np.ndarray, targets: Sequence[int]) -> np.ndarray:
    """Logits [T, V] and T ids that follow -> float64 [T]; StrixhloError where a row has no distribution."""
    found = np.empty(len(targets), np.float64)
    for start in range(0, len(targets), ROWS):
        rows = logits[start : start + ROWS].astype(np.float64)
        ids = np.asarray(targets[start : start + ROWS], np.int64)[:, None]
        largest = rows.max(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):
            total = np.log(np.exp(rows - largest).sum(axis=1)) + largest[:, 0]
        found[start : start + ROWS] = total - np.take_along_axis(rows, ids, 1)[:, 0]
    if np.isnan(found).any():
        raise StrixhloError("perplexity: the model's logits are not numbers; try another target or --dtype")
    return found


def summary(nlls: Sequence[np.ndarray]) -> Perplexity:
    """Over the negative log-likelihoods of all windows."""
    every = np.concatenate(nlls)
    mean = float(every.mean())
    value = math.exp(min(mean, 700.0))
    # The variance over all tokens divided by their number less one, as llama-perplexity has it.
    error = None if every.size < 2 else value * math.sqrt(every.var() / (every.size - 1))
    return Perplexity(value, error, mean, int(every.size), len(nlls))
