"""Prompt ids -> a stream of tokens and text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .detokenize import StopMatcher, StreamingDetokenizer
from .engine import Engine
from .sampling import SamplingParams, fresh_seed, logprob, sample, step_rng, top_logprobs
from .tokenizer import BundleTokenizer


@dataclass(frozen=True)
class Token:
    """One generated token; logprobs are natural logarithms over the full vocabulary."""

    id: int
    text: str
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class Generation:
    """What came out, and how long it took (seconds)."""

    seed: int
    prompt_tokens: int
    tokens: list[Token] = field(default_factory=list)
    text: str = ""
    finish: str = "length"  # length, eos, or stop
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.prefill_seconds

    @property
    def decode_rate(self) -> float | None:
        """Generated tokens per second after the first, which the prefill gave; None for a single token."""
        return (len(self.tokens) - 1) / self.decode_seconds if self.decode_seconds else None


def generate(
    engine: Engine,
    tokenizer: BundleTokenizer,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    show: Callable[[str], None],
    ignore_eos: bool = False,
) -> Generation:
    """Generate after `prompt` on an engine that holds no sequence yet; `show` gets the text as it becomes certain."""
    seed = fresh_seed() if params.seed is None else params.seed
    out = Generation(seed=seed, prompt_tokens=len(prompt))
    detokenizer, stops = StreamingDetokenizer(tokenizer.tokenizer), StopMatcher(params.stop)
    began = time.perf_counter()
    logits = engine.prefill(prompt)
    out.prefill_seconds = time.perf_counter() - began
    began = time.perf_counter()
    token = sample(logits, params, step_rng(seed, 0))
    while True:
        if token in tokenizer.eos_ids and not ignore_eos:
            out.finish = "eos"
            break
        out.tokens.append(_token(token, logits, tokenizer, params))
        _emit(out, stops.push(detokenizer.push(token)), show)
        if stops.matched is not None:
            out.finish = "stop"
            break
        if len(out.tokens) == params.max_tokens or engine.length == engine.context:
            break
        if params.temperature == 0 and params.logprobs is None:
            token = engine.decode_greedy(token)  # the logits stay on the device
        else:
            logits = engine.decode(token)
            token = sample(logits, params, step_rng(seed, len(out.tokens)))
        out.decode_seconds = time.perf_counter() - began
    if stops.matched is None:
        _emit(out, stops.push(detokenizer.finish()) + stops.finish(), show)
    return out


def _emit(out: Generation, piece: str, show: Callable[[str], None]) -> None:
    if piece:
        out.text += piece
        show(piece)


def _token(token: int, logits: np.ndarray, tokenizer: BundleTokenizer, params: SamplingParams) -> Token:
    text = tokenizer.token(token)
    if params.logprobs is None:
        return Token(token, text)
    return Token(token, text, logprob(logits, token), tuple(top_logprobs(logits, params.logprobs)))
