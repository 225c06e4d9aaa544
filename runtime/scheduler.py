"""Continuous batching: requests join and leave between steps, one prefill chunk and one decode step at a time.

Each round computes at most one chunk of one prompt (round robin over the prompts) and one token of every sequence that
generates, so a long prompt holds the others up by one chunk. When the pool is full the youngest sequence gives its
blocks back and is computed again later, prompt and generated tokens, so the oldest always ends.

A stream is the same alone and in any batch, bit for bit: decode kernels are batch-invariant, chunks depend on the
request alone, random numbers on (seed, step). Only prefix reuse and preemption change which chunk computes a position,
and with it the order of sums: there tokens are the same up to a gap of the top two logits below the kernels' rounding.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import numpy as np
from tokenizers import Tokenizer

from ..errors import StrixhloError
from .ahead import Ahead, goes_on
from .batch_engine import BatchEngine
from .constraint import Constraint, Constraints
from .dry import Breakers
from .kv_cache import GONE, BlockPool
from .penalties import adjusted, check_bias
from .requests import Finished, Handle, QueueFull, Request, TokenEvent
from .sampling import broken_logits, fresh_seed, logprob, sample, step_rng, top_logprobs
from .sequence import Sequence
from .speculation import Candidate, Speculation, closed
from .token_bytes import CanonicalBytes

_T = TypeVar("_T")


class Scheduler:
    """Owns an engine, which only its thread uses. `close` cancels what runs and waits for the thread."""

    def __init__(
        self,
        engine: BatchEngine,
        tokenizer: Tokenizer | None = None,
        *,
        eos_ids: Collection[int] = (),
        parallel: int = 8,
        queue_size: int = 64,
        speculation: Speculation | None = None,
    ) -> None:
        """tokenizer and eos_ids: for structured output, and to find cached prefixes by text; parallel: sequences at a
        time; queue_size: that may wait."""
        self.speculation = speculation
        self.engine, self._parallel, self._queue_size = engine, parallel, queue_size
        texts = CanonicalBytes(tokenizer, engine.vocab_size)
        self.pool = BlockPool(engine.blocks, engine.block_size, texts, engine.windows)
        self._ahead = Ahead(engine)
        self._breakers = Breakers(texts)
        self._constraints = Constraints(tokenizer, engine.vocab_size, eos_ids) if tokenizer else None
        self.computed = self.reused = self.preempted = 0  # prompt tokens prefilled, found in the cache; preemptions
        self._waiting: deque[tuple[Handle, Constraint | None]] = deque()
        self._paused: deque[Sequence] = deque()  # preempted, oldest first
        self._running: list[Sequence] = []  # oldest first
        self._turn: deque[Sequence] = deque()  # whose prompt is next
        self._jobs: deque[Callable[[], None]] = deque()
        self._change = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="scheduler", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Handle:
        """Queue a request. Raises QueueFull, and StrixhloError for a prompt that cannot be processed."""
        self.engine.check_prompt(request.token_ids)
        check_bias(request.params, self.engine.vocab_size)
        handle = Handle(request)
        constraint = None
        if request.params.constrained:
            if self._constraints is None:
                raise StrixhloError("structured output needs the model's tokenizer, which this scheduler lacks")
            constraint = self._constraints.create(request.params)
        with self._change:
            if self._closed:
                raise StrixhloError("the server is shutting down")
            self._drop_waiting()
            idle = max(0, self._parallel - len(self._running) - len(self._paused))  # those do not wait
            if len(self._waiting) >= self._queue_size + idle:
                raise QueueFull(f"{self._queue_size} requests wait already; try again later")
            self._waiting.append((handle, constraint))
            self._change.notify()
        return handle

    def between_steps(self, work: Callable[[], _T]) -> _T:
        """Run it on the thread that owns the engine and the pool, one such work a step; any thread may ask."""
        done: Future[_T] = Future()

        def job() -> None:
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)

        with self._change:
            if self._closed:
                raise StrixhloError("the server is shutting down")
            self._jobs.append(job)
            self._change.notify()
        return done.result()

    def state(self) -> tuple[list[Handle], int]:
        """(running, how many wait)."""
        with self._change:
            running = [s.handle for s in (*self._running, *self._paused)]
            return running, sum(not h.cancelled for h, _ in self._waiting)

    @property
    def pressed(self) -> bool:
        """Sequences were preempted and wait for blocks: nobody else may take any."""
        return bool(self._paused)

    def blocks(self) -> dict[str, int]:
        """Blocks of the KV pool: all, those that sequences hold, those that the prefix cache can find."""
        with self._change:
            return {"total": self.pool.blocks, "in_use": self.pool.in_use, "cached": self.pool.cached}

    def close(self) -> None:
        """Cancel everything and wait for the thread."""
        with self._change:
            self._closed = True
            for handle in [*(h for h, _ in self._waiting), *(s.handle for s in (*self._running, *self._paused))]:
                handle.cancel()
            self._change.notify()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(
                    lambda: self._waiting or self._running or self._paused or self._jobs or self._closed
                )
                self._drop_waiting()
                for sequence in [s for s in (*self._running, *self._paused) if s.handle.cancelled]:
                    self._end(sequence, Finished("cancelled"))
                if self._closed and not self._waiting and not self._jobs:
                    return
                self._admit()
                job = self._jobs.popleft() if self._jobs else None
            if job:
                job()
            self._step()

    def _drop_waiting(self) -> None:
        for handle in [h for h, _ in self._waiting if h.cancelled]:
            self._waiting = deque(w for w in self._waiting if w[0] is not handle)
            handle.put(Finished("cancelled"))

    def _admit(self) -> None:
        """Preempted sequences first, then new ones, while there is room for all that they hold so far."""
        while len(self._running) < self._parallel and (self._paused or self._waiting):
            length = len(self._paused[0].ids if self._paused else self._waiting[0][0].request.token_ids)
            if self._running and self.pool.available < self.pool.needed(length):
                return
            if self._paused:
                sequence = self._paused.popleft()
            else:
                handle, constraint = self._waiting.popleft()
                params, ids = handle.request.params, list(handle.request.token_ids)
                seed = fresh_seed() if params.seed is None else params.seed
                sequence = Sequence(handle, seed, ids, len(ids), constraint)
            self._running.append(sequence)
            self._turn.append(sequence)

    def _step(self) -> None:
        """One chunk of one prompt, then one token of every sequence that generates."""
        if self._turn:
            sequence = self._turn.popleft()
            self._guarded([sequence], partial(self._prefill, sequence))
        ready = [s for s in list(self._running) if s.decoding and s not in self._turn]
        ready = [s for s in ready if s in self._running and self._reserve(s, s.filled + 1)]
        ready = [s for s in ready if s in self._running]  # a later one's reservation may have preempted it
        first = self._ahead.flying(ready)
        if ready:
            self._guarded(first or ready, partial(self._decode, first or ready, others=bool(first) and first != ready))

    def _guarded(self, sequences: list[Sequence], work: Callable[[], None]) -> None:
        """A failure ends the requests concerned, and neither the thread nor the others."""
        try:
            work()
        except Exception as error:
            known = isinstance(error, StrixhloError)
            message = str(error) if known else f"internal error: {type(error).__name__}: {error}"
            for sequence in sequences:
                if sequence in self._running:
                    self._end(sequence, Finished("error", message))

    def _prefill(self, sequence: Sequence) -> None:
        engine = self.engine
        if sequence.scored:
            sequence.blocks = sequence.blocks or [[] for _ in engine.windows]
        elif not sequence.filled or len(self._running) > 1:
            self._reuse(sequence)
        left = len(sequence.ids) - sequence.filled
        end = sequence.filled + min(left, engine.score_rows if sequence.scored else engine.chunk_rows(left))
        if not self._reserve(sequence, end):
            return
        piece = sequence.ids[sequence.filled : end]
        last = end == len(sequence.ids)
        if sequence.scored:
            rows = engine.score(piece, sequence.filled, sequence.blocks)
            sequence.score_prompt(rows)
            output = rows[-1]
        else:
            fetch = ("tokens" if sequence.argmax else "logits") if last else None
            output = engine.prefill(piece, sequence.filled, sequence.blocks, fetch)
        self.computed += len(piece)
        sequence.filled = end
        self._register(sequence)
        if last:
            sequence.digests = []
            self._choose(sequence, output)
        else:
            self._turn.append(sequence)

    def _decode(self, ready: list[Sequence], others: bool) -> None:
        """One token of each, and as many more as drafts are right. others: wait for this step to be over."""
        drafts = self._drafts(ready)
        began = time.perf_counter()
        if self._ahead.flying(ready) or (self.engine.queues and not any(drafts) and all(s.argmax for s in ready)):
            further = not others and not any(drafts) and all(self._goes_on(s) for s in ready)
            outputs = self._ahead.outputs(ready, further)
            drafts, rows = [[] for _ in ready], len(ready)
        else:
            outputs = self._computed(ready, drafts)
            rows = len(outputs)
        if self.speculation:
            self.speculation.stepped(rows, self.engine.decode_sizes, time.perf_counter() - began)
        row = 0
        for sequence, draft in zip(ready, drafts, strict=True):
            own = outputs[row : row + 1 + len(draft)]
            row += len(own)
            self._guarded([sequence], partial(self._check, sequence, draft, own))

    def _computed(self, ready: list[Sequence], drafts: list[list[int]]) -> list[np.ndarray]:
        """What the device gives for the last token of each and for its drafts."""
        fetch = "tokens" if all(s.argmax for s in ready) else "logits"
        ids: list[int] = []
        positions: list[int] = []
        blocks: list[list[list[int]]] = []
        for sequence, draft in zip(ready, drafts, strict=True):
            ids += [sequence.ids[-1], *draft]
            positions += range(sequence.filled, sequence.filled + 1 + len(draft))
            blocks += [sequence.blocks] * (1 + len(draft))
        return self.engine.decode(ids, positions, blocks, fetch)

    def _goes_on(self, sequence: Sequence) -> bool:
        """A step after the next may be started already."""
        return goes_on(sequence, self.engine.context) and self._spare(sequence, 1) > 0

    def _drafts(self, ready: list[Sequence]) -> list[list[int]]:
        if not self.speculation:
            return [[] for _ in ready]
        candidates = []
        for s in ready:
            s.drafts = s.drafts or self.speculation.new()
            handle = s.handle
            room = min(handle.request.params.max_tokens - handle.generated - 1, self.engine.context - len(s.ids))
            candidates.append(Candidate(s.ids, room, s.drafts, partial(self._guess, s)))
        drafts = self.speculation.propose(candidates, self.engine.decode_sizes)
        return [draft[: self._spare(s, len(draft))] for s, draft in zip(ready, drafts, strict=True)]

    def _spare(self, sequence: Sequence, wanted: int) -> int:
        """For how many drafts there are positions; nobody is preempted for them."""
        size = self.engine.block_size
        for own in sequence.blocks:
            while len(own) * size < sequence.filled + 1 + wanted and (block := self.pool.allocate()) is not None:
                own.append(block)
        return min(map(len, sequence.blocks)) * size - sequence.filled - 1

    def _check(self, sequence: Sequence, draft: list[int], outputs: list[np.ndarray]) -> None:
        """Choose the next token from the first row's output, and go on to the next row where it was drafted."""
        accepted, drafts = 0, sequence.drafts
        for i, output in enumerate(outputs):
            sequence.filled += 1
            self._register(sequence)
            length = len(sequence.ids)
            self._choose(sequence, output)
            if len(sequence.ids) == length or i == len(draft) or sequence.ids[-1] != draft[i]:
                break
            accepted += 1
            if sequence not in self._running:
                break
        if self.speculation and drafts and draft:
            self.speculation.checked(drafts, len(draft), accepted)

    def _reuse(self, sequence: Sequence) -> None:
        """Take what the cache holds of the beginning; its ids replace the prompt's where only boundaries differ. Before
        every chunk, since another sequence may be computing the same prompt, as the choices of one request do."""
        if len(sequence.digests) != len(sequence.ids) - 1:
            sequence.digests = self.pool.text_digests(sequence.ids[:-1])
        match = self.pool.match(sequence.ids, self.engine.context, sequence.digests)
        first = not sequence.filled
        if not first and len(match.ids) <= sequence.filled:
            for found in match.blocks:
                self.pool.release(found)
            return
        for own in sequence.blocks:
            self.pool.release(own)
        generated = len(sequence.ids) - sequence.prompt_length
        sequence.ids = [*match.ids, *sequence.ids[match.replaced :]]
        sequence.digests = []
        sequence.prompt_length = len(sequence.ids) - generated
        sequence.blocks, sequence.chain = [list(own) for own in match.blocks], match.chain
        self.reused += len(match.ids) - sequence.filled
        sequence.filled, sequence.registered = len(match.ids), len(match.blocks[0])
        if first and not generated:  # later it is a preempted sequence that finds its own blocks
            sequence.handle.cached = match.replaced

    def _register(self, sequence: Sequence) -> None:
        size = self.engine.block_size
        while (sequence.registered + 1) * size <= sequence.filled:
            n = sequence.registered
            ids = sequence.ids[n * size : (n + 1) * size]
            sequence.chain = self.pool.register([own[n] for own in sequence.blocks], ids, sequence.chain)
            sequence.registered += 1

    def _reserve(self, sequence: Sequence, length: int) -> bool:
        """Blocks for `length` positions; preempts younger sequences, and where there is none, itself (False)."""
        self._free_unseen(sequence)
        for own in sequence.blocks:
            while len(own) * self.engine.block_size < length:
                block = self.pool.allocate()
                if block is None:
                    youngest = self._running[-1]
                    self._preempt(youngest)
                    if youngest is sequence:
                        return False
                else:
                    own.append(block)
        return True

    def _free_unseen(self, sequence: Sequence) -> None:
        """Give back the blocks that have left the window of their layers."""
        for own, window in zip(sequence.blocks, self.pool.windows, strict=True):
            first = end = min(self.pool.first_seen(window, sequence.filled), len(own))
            while first and own[first - 1] != GONE:
                first -= 1
            self.pool.release(own[first:end])
            own[first:end] = [GONE] * (end - first)

    def _preempt(self, sequence: Sequence) -> None:
        self._leave(sequence)
        self.preempted += 1
        sequence.filled = sequence.registered = 0
        sequence.chain = None
        self._paused.appendleft(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Give the blocks back and stop running."""
        for own in sequence.blocks:
            self.pool.release(own)
        sequence.blocks = []
        closed([sequence.drafts])
        sequence.drafts = None
        for place in (self._running, self._turn, self._paused):
            if sequence in place:
                place.remove(sequence)

    def _end(self, sequence: Sequence, end: Finished) -> None:
        self._leave(sequence)
        sequence.handle.put(end)

    def _choose(self, sequence: Sequence, output: np.ndarray) -> None:
        """The next token of a sequence from its logits, or the id that the device chose, and whether that ends it."""
        if sequence.handle.cancelled:
            return  # the loop ends it
        if output.ndim:
            self._take(sequence, self._sampled(sequence, output))
        elif output < 0:
            raise broken_logits("the logits have no largest finite value")
        else:
            self._take(sequence, TokenEvent(int(output)))

    def _sampled(self, sequence: Sequence, logits: np.ndarray) -> TokenEvent:
        params, ids, n = sequence.handle.request.params, sequence.ids, sequence.prompt_length
        possible = adjusted(logits, params, ids[:n], ids[n:], self._breakers)
        if sequence.constraint:
            possible = sequence.constraint.masked(possible)
        token = sample(possible, params, step_rng(sequence.seed, sequence.handle.generated))
        if sequence.constraint:
            sequence.constraint.accept(token)
        if params.logprobs is None:
            return TokenEvent(token)
        return TokenEvent(token, logprob(logits, token), tuple(top_logprobs(logits, params.logprobs)))

    def _guess(self, sequence: Sequence, logits: np.ndarray, drafted: list[int]) -> int:
        """What the request would choose from a draft model's logits, with its own random numbers; constraints apart."""
        params, n = sequence.handle.request.params, sequence.prompt_length
        possible = adjusted(logits, params, sequence.ids[:n], [*sequence.ids[n:], *drafted], self._breakers)
        return sample(possible, params, step_rng(sequence.seed, sequence.handle.generated + len(drafted)))

    def _take(self, sequence: Sequence, event: TokenEvent) -> None:
        """Append a token and hand it to the reader; ends the sequence where that was the last."""
        handle, constraint = sequence.handle, sequence.constraint
        handle.put(event)
        sequence.ids.append(event.token)
        if event.token in handle.request.eos_ids or (constraint and constraint.complete):
            self._end(sequence, Finished("eos"))
        elif handle.generated == handle.request.params.max_tokens or len(sequence.ids) > self.engine.context:
            self._end(sequence, Finished("length"))
