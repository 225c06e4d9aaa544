"""Prompt ids -> a stream of tokens and text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..errors import StrixhloError
from .detokenize import StopMatcher, StreamingDetokenizer
from .requests import Finished, Request
from .sampling import SamplingParams, fresh_seed
from .scheduler import Scheduler
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
    scheduler: Scheduler,
    tokenizer: BundleTokenizer,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    show: Callable[[str], None],
    ignore_eos: bool = False,
    skip_special_tokens: bool = True,
) -> Generation:
    """Generate after `prompt`; `show` gets the text as it becomes certain. Leaving it in any way ends the request."""
    seed = fresh_seed() if params.seed is None else params.seed
    out = Generation(seed=seed, prompt_tokens=len(prompt))
    detokenizer = StreamingDetokenizer(tokenizer.tokenizer, skip_special_tokens)
    stops = StopMatcher(params.stop)
    eos = frozenset() if ignore_eos else tokenizer.eos_ids
    began = time.perf_counter()
    handle = scheduler.submit(Request(tuple(prompt), replace(params, seed=seed), eos))
    try:
        for event in handle.events():
            if isinstance(event, Finished):
                if event.reason == "error":
                    raise StrixhloError(event.message)
                out.finish = event.reason
                break
            now = time.perf_counter()
            if not out.prefill_seconds:
                out.prefill_seconds, began = now - began, now
            if event.token in eos:
                continue
            out.tokens.append(Token(event.token, tokenizer.token(event.token), event.logprob, event.top_logprobs))
            out.decode_seconds = now - began
            _emit(out, stops.push(detokenizer.push(event.token)), show)
            if stops.matched is not None:
                out.finish = "stop"
                break
    finally:
        handle.cancel()
    if stops.matched is None:
        _emit(out, stops.push(detokenizer.finish()) + stops.finish(), show)
        out.finish = "stop" if stops.matched is not None else out.finish
    return out


def _emit(out: Generation, piece: str, show: Callable[[str], None]) -> None:
    if piece:
        out.text += piece
        show(piece)
