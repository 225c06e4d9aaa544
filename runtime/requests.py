"""Requests on one engine, one after the other: a bounded queue, streams of tokens, cancellation at the next token.

The interface is the scheduler's: `submit` gives a handle whose events are tokens and, last, how it finished.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..errors import StrixhloError
from .engine import Engine
from .sampling import SamplingParams, fresh_seed, logprob, sample, step_rng, top_logprobs


class QueueFull(StrixhloError):
    """Too many requests wait; try again later."""


@dataclass(frozen=True)
class Request:
    """Prompt ids, how to choose tokens, and the ids that end the text (none: go on to max_tokens)."""

    token_ids: tuple[int, ...]
    params: SamplingParams
    eos_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class TokenEvent:
    """One generated token; logprobs are natural logarithms, of the full vocabulary."""

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
    """One submitted request."""

    request: Request
    began: float = field(default_factory=time.time)
    generated: int = 0
    cancelled: bool = False
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


class SequentialScheduler:
    """Owns an engine, which only its thread uses. `close` cancels what runs and waits."""

    def __init__(self, engine: Engine, queue_size: int = 64) -> None:
        self._engine, self._queue_size = engine, queue_size
        self._waiting: deque[Handle] = deque()
        self._running: Handle | None = None
        self._change = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="scheduler", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Handle:
        """Queue a request. Raises QueueFull, and StrixhloError for a prompt that cannot be processed."""
        self._engine.check_prompt(request.token_ids)
        handle = Handle(request)
        with self._change:
            if self._closed:
                raise StrixhloError("the server is shutting down")
            self._waiting = deque(h for h in self._waiting if not self._dropped(h))
            if len(self._waiting) >= self._queue_size:
                raise QueueFull(f"{self._queue_size} requests wait already; try again later")
            self._waiting.append(handle)
            self._change.notify()
        return handle

    def state(self) -> tuple[list[Handle], int]:
        """(running, how many wait)."""
        with self._change:
            running = [self._running] if self._running else []
            return running, sum(not h.cancelled for h in self._waiting)

    def close(self) -> None:
        """Cancel everything and wait for the thread."""
        with self._change:
            self._closed = True
            for handle in [*self._waiting, *([self._running] if self._running else [])]:
                handle.cancel()
            self._change.notify()
        self._thread.join()

    @staticmethod
    def _dropped(handle: Handle) -> bool:
        if handle.cancelled:
            handle.put(Finished("cancelled"))
        return handle.cancelled

    def _loop(self) -> None:
        while True:
            with self._change:
                self._running = None
                self._change.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                handle = self._running = self._waiting.popleft()
            try:
                end = self._generate(handle)
            except StrixhloError as error:
                end = Finished("error", str(error))
            except Exception as error:  # one request's failure must neither hang its client nor stop the others
                end = Finished("error", f"internal error: {type(error).__name__}: {error}")
            handle.put(end)

    def _generate(self, handle: Handle) -> Finished:
        engine, params = self._engine, handle.request.params
        seed = fresh_seed() if params.seed is None else params.seed
        engine.reset()
        prompt = handle.request.token_ids
        logits = None
        for start in range(0, len(prompt), 512):  # so that a cancelled long prompt ends soon
            if handle.cancelled:
                return Finished("cancelled")
            logits = engine.prefill(prompt[start : start + 512])
        assert logits is not None
        while not handle.cancelled:
            token = sample(logits, params, step_rng(seed, handle.generated))
            if params.logprobs is None:
                handle.put(TokenEvent(token))
            else:
                best = tuple(top_logprobs(logits, params.logprobs))
                handle.put(TokenEvent(token, logprob(logits, token), best))
            if token in handle.request.eos_ids:
                return Finished("eos")
            if handle.generated == params.max_tokens or engine.length == engine.context:
                return Finished("length")
            logits = engine.decode(token)
        return Finished("cancelled")
