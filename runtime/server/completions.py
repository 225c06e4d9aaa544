"""POST /v1/completions: text or token ids go on as they are, without a chat template."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ..requests import Handle, TokenEvent
from .answering import Answering, stream, whole
from .errors import ApiError
from .generation import Job, Step, stop_strings
from .schemas import CompletionBody
from .served import ServedModel, encode_prompt, sampling_params
from .token_logprobs import completion_logprobs, prompt_events
from .usage import Counted


async def completions(request: HttpRequest, body: CompletionBody, model: ServedModel, answering: Answering) -> Response:
    """Continue a prompt."""
    if body.suffix:
        raise ApiError(400, "suffix is not supported: the text is continued at its end only", param="suffix")
    if body.best_of is not None and body.best_of != body.n:
        raise ApiError(400, "best_of is not supported beyond n; ask for n choices, and choose", param="best_of")
    prompt = await _prompt(model, body)
    alone = body.echo and body.max_tokens == 0  # the prompt's own log-probabilities are all that is wanted
    most = 1 if alone else body.max_tokens
    params = sampling_params(model, body, prompt, max_tokens=most, logprobs=body.logprobs, form=body.response_format)
    scored = body.logprobs if body.echo else None
    job = Job(model, tuple(prompt), params, stop_strings(body.stop), body.ignore_eos, prompt_logprobs=scored)
    counted = Counted(len(prompt))
    parts = await answering.run(job, body.n, counted)
    head = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model.name,
    }
    if alone:
        parts = _ends(parts, counted)
    echo = model.tokenizer.tokenizer.decode(prompt) if body.echo else ""
    if not body.stream:
        return await whole(request, _whole(job, body, parts, head, counted, echo))
    return stream(_chunks(job, body, parts, head, counted, echo))


async def _ends(parts: AsyncGenerator[Step, None], counted: Counted) -> AsyncGenerator[Step, None]:
    """Of each choice only that it has ended."""
    async with aclosing(parts):
        async for step in parts:
            counted.generated = 0
            if step.finish:
                yield Step(step.choice, "", finish="length")


async def _prompt(model: ServedModel, body: CompletionBody) -> list[int]:
    prompt = body.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) != 1:
            raise ApiError(400, "one prompt a request; send several requests", param="prompt")
        prompt = prompt[0]
    if isinstance(prompt, str):
        return await encode_prompt(model, prompt)
    return [token for token in prompt if isinstance(token, int)]


def _logprobs(
    job: Job, body: CompletionBody, events: list[tuple[TokenEvent, int]], prompt_of: Handle | None = None
) -> dict[str, Any] | None:
    """Of the generated tokens, behind those of the prompt of a choice where it is echoed."""
    if body.logprobs is None:
        return None
    if prompt_of is not None and body.echo:
        events = [*prompt_events(job.model, job.prompt, prompt_of.prompt_scores), *events]
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
            "logprobs": _logprobs(job, body, tokens[i], counted.handles[i]),
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
    unsaid = set(range(body.n)) if body.echo else set()

    def chunk(index: int, text: str, finish: str | None, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        choice = {"index": index, "text": text, "finish_reason": finish, "logprobs": logprobs}
        return {**head, "choices": [choice], **extra}

    async with aclosing(parts):
        async for step in parts:
            if step.choice in unsaid:  # now its prompt has been scored
                unsaid.remove(step.choice)
                yield chunk(step.choice, echo, None, _logprobs(job, body, [], counted.handles[step.choice]))
            own = [] if step.token is None else [(step.token, lengths[step.choice])]
            logprobs = _logprobs(job, body, own) if own else None
            lengths[step.choice] += len(step.text)
            if step.text or step.finish or logprobs:
                yield chunk(step.choice, step.text, step.finish, logprobs)
    if usage:
        yield {**head, "choices": [], "usage": counted.usage()}
