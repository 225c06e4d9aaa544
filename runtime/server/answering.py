"""How a generation becomes an HTTP answer: server-sent events, or one body; both end when the client leaves."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse

from .errors import ApiError
from .generation import Job, Step, steps, submit
from .metrics import Metrics
from .usage import Counted

SSE_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@dataclass(frozen=True)
class Answering:
    """Limits and counters of a server."""

    metrics: Metrics
    seconds: float  # for one request

    async def run(self, job: Job, n: int, counted: Counted) -> AsyncGenerator[Step, None]:
        """Submit now, so that a full queue is an HTTP error; then the counted steps within the time limit."""
        # A grammar takes its time to be read, in which other answers go on.
        counted.handles = await asyncio.to_thread(submit, job, n) if job.params.constrained else submit(job, n)
        return self._counted(job, counted)

    async def _counted(self, job: Job, counted: Counted) -> AsyncGenerator[Step, None]:
        name, began, finish = job.model.name, time.monotonic(), "cancelled"
        self.metrics.prompt_tokens.labels(name).inc(len(job.prompt))
        try:
            async with asyncio.timeout(self.seconds), aclosing(steps(job, counted.handles)) as parts:
                async for step in parts:
                    if step.token is not None:
                        if not counted.generated:
                            self.metrics.first_token.labels(name).observe(time.monotonic() - began)
                        counted.generated += 1
                    finish = step.finish or finish
                    yield step
        except TimeoutError:
            finish = "timeout"
            message = f"the request took longer than {self.seconds:.0f} seconds"
            raise ApiError(504, message, "server_error", code="timeout") from None
        finally:
            self.metrics.tokens.labels(name).inc(counted.generated)
            self.metrics.requests.labels(name, finish).inc()
            self.metrics.seconds.labels(name).observe(time.monotonic() - began)


async def whole(request: HttpRequest, work: Awaitable[dict[str, Any]]) -> Response:
    """The finished body as JSON; cancelled at once when the client disconnects."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return JSONResponse(task.result())
        return Response(status_code=499)  # nobody reads it
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.wait({task, gone})


async def _disconnected(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def stream(events: AsyncGenerator[dict[str, Any], None], *, named: bool = False) -> Response:
    """Server-sent events of JSON objects. named: each has its type as the event's name (Responses), and no [DONE]."""

    async def lines() -> AsyncGenerator[bytes, None]:
        async with aclosing(events):
            try:
                async for event in events:
                    head = f"event: {event['type']}\n" if named else ""
                    yield f"{head}data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
            except ApiError as error:
                yield f"data: {json.dumps(error.body())}\n\n".encode()
        if not named:
            yield b"data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream", headers=SSE_HEADERS)


Endpoint = Callable[[HttpRequest], Awaitable[Response]]
