"""POST /v1/completions: text or token ids go on as they are, without a chat template."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ..requests import TokenEvent
from .answering import Answering, stream, whole
from .errors import ApiError
from .generation import Job, Step, stop_strings
from .schemas import CompletionBody
from .served import ServedModel, encode_prompt, sampling_params
from .token_logprobs import completion_logprobs
from .usage import Counted


async def completions(request: HttpRequest, body: CompletionBody, model: ServedModel, answering: Answering) -> Response:
    """Continue a prompt."""
    prompt = await _prompt(model, body)
    params = sampling_params(
        model, body, prompt, max_tokens=body.max_tokens, logprobs=body.logprobs, form=body.response_format
    )
    job = Job(model, tuple(prompt), params, stop_strings(body.stop), body.ignore_eos)
    counted = Counted(len(prompt))
    parts = await answering.run(job, body.n, counted)
    head = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model.name,
    }
    echo = model.tokenizer.tokenizer.decode(prompt) if body.echo else ""
    if not body.stream:
        return await whole(request, _whole(job, body, parts, head, counted, echo))
    return stream(_chunks(job, body, parts, head, counted, echo))


async def _prompt(model: ServedModel, body: CompletionBody) -> list[int]:
    prompt = body.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) != 1:
            raise ApiError(400, "one prompt a request; send several requests", param="prompt")
        prompt = prompt[0]
    if isinstance(prompt, str):
        return await encode_prompt(model, prompt)
    return [token for token in prompt if isinstance(token, int)]


def _logprobs(job: Job, body: CompletionBody, events: list[tuple[TokenEvent, int]]) -> dict[str, Any]:
    return completion_logprobs(job.model, events, body.return_tokens_as_token_ids)


async def _whole(
    job: Job, body: CompletionBody, parts: AsyncGenerator[Step, None], head: dict[str, Any], counted: Counted, echo: str
) -> dict[str, Any]:
    texts = [echo] * body.n
    tokens: list[list[tuple[TokenEvent, int]]] = [[] for _ in texts]
    reasons = [""] * body.n
    async with aclosing(parts):
        async for step in parts:
            if step.token is not None and body.logprobs is not None:
                tokens[step.choice].append((step.token, len(texts[step.choice])))
            texts[step.choice] += step.text
            reasons[step.choice] = step.finish or ""
    choices = [
        {
            "index": i,
            "text": text,
            "finish_reason": reasons[i],
            "logprobs": None if body.logprobs is None else _logprobs(job, body, tokens[i]),
        }
        for i, text in enumerate(texts)
    ]
    return {**head, "choices": choices, "usage": counted.usage()}


async def _chunks(
    job: Job, body: CompletionBody, parts: AsyncGenerator[Step, None], head: dict[str, Any], counted: Counted, echo: str
) -> AsyncGenerator[dict[str, Any], None]:
    lengths = [len(echo)] * body.n
    usage = bool(body.stream_options and body.stream_options.include_usage)
    extra = {"usage": None} if usage else {}
    async with aclosing(parts):
        for i in range(body.n if echo else 0):
            choice = {"index": i, "text": echo, "finish_reason": None, "logprobs": None}
            yield {**head, "choices": [choice], **extra}
        async for step in parts:
            logprobs = None
            if step.token is not None and body.logprobs is not None:
                logprobs = _logprobs(job, body, [(step.token, lengths[step.choice])])
            lengths[step.choice] += len(step.text)
            if step.text or step.finish or logprobs:
                choice = {
                    "index": step.choice,
                    "text": step.text,
                    "finish_reason": step.finish,
                    "logprobs": logprobs,
                }
                yield {**head, "choices": [choice], **extra}
    if usage:
        yield {**head, "choices": [], "usage": counted.usage()}
