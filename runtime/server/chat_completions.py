"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ...errors import StrixhloError
from ..tool_calls.choose import output_parser, shows_special_tokens, tool_format
from ..tool_calls.forced import forced_calls
from ..tool_calls.pieces import OutputParser, Piece
from .answering import Answering, stream, whole
from .conversation import MessageBuilder, forced_tools, render, shown_tools, template_message
from .errors import ApiError
from .generation import Job, Step, stop_strings
from .schemas import ChatBody
from .served import ServedModel, encode_prompt, sampling_params
from .token_logprobs import chat_logprob
from .usage import Counted


@dataclass(frozen=True)
class ChatJob:
    """A conversation that is ready to run."""

    job: Job
    text: str  # the rendered prompt
    tools: list[dict[str, Any]]

    def parser(self) -> OutputParser:
        """A new parser for one choice."""
        return output_parser(self.job.model.tokenizer.chat_template, self.text, self.tools)


async def chat_job(model: ServedModel, body: ChatBody) -> ChatJob:
    """Render, tokenize and check."""
    if body.functions:
        raise ApiError(400, "functions is not supported; send them as tools", param="functions")
    if body.modalities is not None and body.modalities != ["text"]:
        raise ApiError(400, "modalities other than text are not supported", param="modalities")
    tools = shown_tools(body)
    forced = forced_tools(body, tools)
    text = await render(model, [template_message(m) for m in body.messages], tools)
    prompt = await encode_prompt(model, text, add_special=False)
    template = model.tokenizer.chat_template
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    grammar = None
    if forced:
        several = body.tool_choice == "required" and body.parallel_tool_calls is not False
        grammar = _grammar(model, text, forced, several)
    params = sampling_params(
        model, body, prompt, max_tokens=limit, logprobs=logprobs, form=body.response_format, grammar=grammar
    )
    special = tool_format(template) == "harmony" or (bool(tools) and shows_special_tokens(template))
    return ChatJob(Job(model, tuple(prompt), params, stop_strings(body.stop), body.ignore_eos, special), text, tools)


def _grammar(model: ServedModel, text: str, tools: list[dict[str, Any]], several: bool) -> str:
    t = model.tokenizer
    try:
        return forced_calls(t.chat_template, text, tools, t.tokenizer, several=several)
    except StrixhloError as error:
        raise ApiError(400, str(error), param="tools") from None


async def chat_completions(request: HttpRequest, body: ChatBody, model: ServedModel, answering: Answering) -> Response:
    """Answer a conversation."""
    chat = await chat_job(model, body)
    counted = Counted(len(chat.job.prompt))
    parts = await answering.run(chat.job, body.n, counted)
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model.name}
    if not body.stream:
        return await whole(request, _whole(chat, body, parts, head, counted))
    usage = bool(body.stream_options and body.stream_options.include_usage)
    return stream(_chunks(chat, body, parts, head, counted, usage))


async def _whole(
    chat: ChatJob, body: ChatBody, parts: AsyncGenerator[Step, None], head: dict[str, Any], counted: Counted
) -> dict[str, Any]:
    parsers = [chat.parser() for _ in range(body.n)]
    builders = [MessageBuilder() for _ in range(body.n)]
    logprobs: list[list[dict[str, Any]]] = [[] for _ in range(body.n)]
    reasons = [""] * body.n
    async with aclosing(parts):
        async for step in parts:
            for piece in counted_pieces(parsers[step.choice], step, counted):
                builders[step.choice].add(piece)
            if step.token is not None and body.logprobs:
                logprobs[step.choice].append(chat_logprob(chat.job.model, step.token))
            reasons[step.choice] = step.finish or ""
    choices = [
        {
            "index": i,
            "message": b.message(),
            "finish_reason": b.finish(reasons[i]),
            "logprobs": {"content": logprobs[i]} if body.logprobs else None,
        }
        for i, b in enumerate(builders)
    ]
    return {**head, "object": "chat.completion", "choices": choices, "usage": counted.usage()}


async def _chunks(
    chat: ChatJob,
    body: ChatBody,
    parts: AsyncGenerator[Step, None],
    head: dict[str, Any],
    counted: Counted,
    usage: bool,
) -> AsyncGenerator[dict[str, Any], None]:
    head = {**head, "object": "chat.completion.chunk"}
    continuous = usage and body.stream_options is not None and body.stream_options.continuous_usage_stats

    def chunk(choice: int, delta: dict[str, Any], finish: str | None = None, logprobs: Any = None) -> dict[str, Any]:
        entry = {"index": choice, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return {**head, "choices": [entry], **({"usage": counted.usage() if continuous else None} if usage else {})}

    parsers = [chat.parser() for _ in range(body.n)]
    builders = [MessageBuilder() for _ in range(body.n)]
    async with aclosing(parts):
        for i in range(body.n):
            yield chunk(i, {"role": "assistant", "content": ""})
        async for step in parts:
            i = step.choice
            logprobs = None
            if step.token is not None and body.logprobs:
                logprobs = {"content": [chat_logprob(chat.job.model, step.token)]}
            deltas = [builders[i].add(piece) for piece in counted_pieces(parsers[i], step, counted)]
            if not deltas and logprobs:
                deltas = [{"content": ""}]
            for delta in deltas:
                yield chunk(i, delta, logprobs=logprobs)
                logprobs = None
            if step.finish:
                yield chunk(i, {}, builders[i].finish(step.finish))
    if usage:
        yield {**head, "choices": [], "usage": counted.usage()}


def counted_pieces(parser: OutputParser, step: Step, counted: Counted) -> list[Piece]:
    """What the parser makes of a step."""
    pieces = parser.push(step.text) if step.text else []
    if step.finish:
        pieces = [*pieces, *parser.finish()]
    counted.tokens_of(step.choice, step.token is not None, pieces)
    return pieces
