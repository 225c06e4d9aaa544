"""What goes into the scheduler and comes out: a request; a handle whose events are tokens and, last, how it ended."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..errors import StrixhloError
from .sampling import SamplingParams


class QueueFull(StrixhloError):
    """Too many requests wait; try again later."""


@dataclass(frozen=True)
class Request:
    """Prompt ids, how to choose tokens, and the ids that end the text (none: go on to max_tokens). prompt_logprobs: how
    many of the best log-probabilities to report with each of the prompt's own tokens (None: none of it is scored)."""

    token_ids: tuple[int, ...]
    params: SamplingParams
    eos_ids: frozenset[int] = frozenset()
    prompt_logprobs: int | None = None


@dataclass(frozen=True)
class TokenEvent:
    """One token, generated or of a prompt that is scored; logprobs are natural logarithms, of the full vocabulary."""

    token: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Finished:
    """The end of a stream. reason: eos, length, cancelled or error (`message` says which)."""

    reason: str
    message: str = ""


@dataclass
class Handle:
    """One submitted request. prompt_scores: of the prompt's tokens but the first, whole before the first event, where
    the request asks for them."""

    request: Request
    began: float = field(default_factory=time.time)
    generated: int = 0
    cached: int = 0  # prompt ids that the prefix cache held
    cancelled: bool = False
    prompt_scores: list[TokenEvent] = field(default_factory=list)
    _events: queue.SimpleQueue[TokenEvent | Finished] = field(default_factory=queue.SimpleQueue)

    def events(self) -> Iterator[TokenEvent | Finished]:
        """Tokens as they come; ends after Finished."""
        while True:
            event = self._events.get()
            yield event
            if isinstance(event, Finished):
                return

    def cancel(self) -> None:
        """End it before its next token; may be called from any thread, and again."""
        self.cancelled = True

    def put(self, event: TokenEvent | Finished) -> None:
        """For the scheduler: hand an event to the reader."""
        self.generated += isinstance(event, TokenEvent)
        self._events.put(event)
