"""From a scheduler's tokens, which come in threads, to text in the event loop; a reader that leaves cancels."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

from ...errors import StrixhloError
from ..detokenize import StopMatcher, StreamingDetokenizer
from ..requests import Finished, Handle, QueueFull, Request, TokenEvent
from ..sampling import SamplingParams, fresh_seed
from .errors import ApiError
from .served import ServedModel


@dataclass(frozen=True)
class Step:
    """Some text (perhaps none yet) with the token that brought it; the last step has OpenAI's finish reason."""

    choice: int
    text: str
    token: TokenEvent | None = None
    finish: str | None = None


@dataclass(frozen=True)
class Job:
    """One request, as the scheduler and the detokenizer need it."""

    model: ServedModel
    prompt: tuple[int, ...]
    params: SamplingParams
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    special: bool = False  # show special tokens: a tool-call format's markers are some
    prompt_logprobs: int | None = None


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """OpenAI's `stop` as a tuple; empty strings are refused."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in stops:
        raise ApiError(400, "stop: a stop string is empty", param="stop")
    return stops


def submit(job: Job, n: int) -> list[Handle]:
    """Queue n choices, each with its own seed; ApiError 429 when the queue is full."""
    seed = fresh_seed() if job.params.seed is None else job.params.seed
    eos = frozenset() if job.ignore_eos else job.model.tokenizer.eos_ids
    handles: list[Handle] = []
    try:
        for i in range(n):
            params = replace(job.params, seed=(seed + i) % (1 << 64))
            handles.append(job.model.scheduler.submit(Request(job.prompt, params, eos, job.prompt_logprobs)))
    except StrixhloError as error:
        for handle in handles:
            handle.cancel()
        if isinstance(error, QueueFull):
            raise ApiError(429, str(error), "rate_limit_error", code="queue_full", retry_after=1) from None
        raise ApiError(400, str(error)) from None
    return handles


async def steps(job: Job, handles: Sequence[Handle]) -> AsyncGenerator[Step, None]:
    """All choices' steps as they come. Leaving it in any way cancels what still runs."""
    out: asyncio.Queue[Step | ApiError] = asyncio.Queue()

    async def read(choice: int, handle: Handle) -> None:
        try:
            async with aclosing(_choice_steps(job, choice, handle)) as parts:
                async for step in parts:
                    out.put_nowait(step)
        except ApiError as error:
            out.put_nowait(error)

    tasks = [asyncio.create_task(read(i, h)) for i, h in enumerate(handles)]
    try:
        left = len(handles)
        while left:
            item = await out.get()
            if isinstance(item, ApiError):
                raise item
            left -= item.finish is not None
            yield item
    finally:
        for handle in handles:
            handle.cancel()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def _choice_steps(job: Job, choice: int, handle: Handle) -> AsyncGenerator[Step, None]:
    detokenizer = StreamingDetokenizer(job.model.tokenizer.tokenizer, skip_special_tokens=not job.special)
    stops = StopMatcher(job.stop)
    async for event in _events(handle):
        if isinstance(event, Finished):
            if event.reason in ("error", "cancelled"):
                raise ApiError(500, event.message or "the request was cancelled", "server_error", code=event.reason)
            rest = stops.push(detokenizer.finish()) + stops.finish()
            reason = "length" if event.reason == "length" and stops.matched is None else "stop"
            yield Step(choice, rest, finish=reason)
            return
        ended = event.token in job.model.tokenizer.eos_ids and not job.ignore_eos
        yield Step(choice, "" if ended else stops.push(detokenizer.push(event.token)), event)
        if stops.matched is not None:
            handle.cancel()
            yield Step(choice, "", finish="stop")
            return


async def _events(handle: Handle) -> AsyncIterator[TokenEvent | Finished]:
    """The handle's events in the event loop. A thread of its own waits for them: those of a pool may all be taken."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[TokenEvent | Finished] = asyncio.Queue()

    def pump() -> None:
        with suppress(RuntimeError):  # the loop has been closed: nobody reads any more
            for event in handle.events():
                loop.call_soon_threadsafe(arrived.put_nowait, event)

    threading.Thread(target=pump, name="events", daemon=True).start()
    while True:
        event = await arrived.get()
        yield event
        if isinstance(event, Finished):
            return
