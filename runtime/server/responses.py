"""POST /v1/responses: OpenAI's Responses API over the same generation. Nothing is stored between requests."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ..tool_calls.pieces import CallArguments, CallBegin, Content, Piece, Reasoning
from .answering import Answering, stream, whole
from .chat_completions import ChatJob, chat_job, counted_pieces
from .conversation import text_of
from .errors import ApiError, bad_request
from .generation import Step
from .schemas import ChatBody, ResponsesBody
from .served import ServedModel
from .usage import Counted

NOT_OF_CHAT = {"input", "instructions", "tools", "text", "metadata", "conversation", "prompt", "background"}


async def responses(request: HttpRequest, body: ResponsesBody, model: ServedModel, answering: Answering) -> Response:
    """Answer an input."""
    _refuse_what_is_stored(body)
    chat = await chat_job(model, as_chat(body))
    answer = ResponseAnswer(chat, body, Counted(len(chat.job.prompt)))
    events = answer.events(await answering.run(chat.job, 1, answer.counted))
    return stream(events, named=True) if body.stream else await whole(request, _last(events))


def _refuse_what_is_stored(body: ResponsesBody) -> None:
    """Nothing is kept here from one request to the next."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if getattr(body, name) is not None:
            raise ApiError(400, f"{name}: nothing is stored here; send the whole input", param=name)
    if body.background:
        raise ApiError(400, "background: nothing is stored here; wait for the answer, or stream it", param="background")


async def _last(events: AsyncGenerator[dict[str, Any], None]) -> dict[str, Any]:
    response: dict[str, Any] = {}
    async with aclosing(events):
        async for event in events:
            response = event.get("response", response)
    return response


def as_chat(body: ResponsesBody) -> ChatBody:
    """The same request as a chat completion."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": body.instructions}] if body.instructions else []
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    if not items:
        raise ApiError(400, "input has no items; send a text, or at least one message", param="input")
    first = len(messages)
    for item in items:
        messages.append(_message(item))
    tools = [{"type": t.get("type"), "function": t} for t in body.tools or ()]
    form = (body.text or {}).get("format") or {}
    if not isinstance(form, dict):
        raise ApiError(400, "text.format must be an object", param="text.format")
    if form.get("type") == "json_schema":
        form = {"type": "json_schema", "json_schema": form}
    raw = body.model_dump(exclude=NOT_OF_CHAT, exclude_none=True)
    raw |= {"messages": messages, "max_completion_tokens": body.max_output_tokens}
    if isinstance(body.tool_choice, dict):
        raw["tool_choice"] = {"type": body.tool_choice.get("type"), "function": body.tool_choice}
    raw |= ({"tools": tools} if tools else {}) | ({"response_format": form} if form else {})
    try:
        return ChatBody.model_validate(raw)
    except ValidationError as error:
        raise bad_request(error, partial(_place, first)) from None


def _place(first: int, where: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Where a fault of the chat request lies in the one that was sent. first: index of the first message of `input`."""
    head, *rest = where
    if head == "messages" and rest and isinstance(rest[0], int):
        return ("input", rest[0] - first, *rest[1:]) if rest[0] >= first else ("instructions",)
    if head == "tools" and len(rest) > 1 and rest[1] == "function":
        return ("tools", rest[0], *rest[2:])
    names = {"messages": "input", "max_completion_tokens": "max_output_tokens", "response_format": "text.format"}
    return (names.get(str(head), head), *rest)


def _message(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "message":
        return {"role": item.get("role"), "content": text_of(item.get("content"))}
    if kind == "function_call":
        call = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
        return {"role": "assistant", "tool_calls": [{"id": item.get("call_id"), "type": "function", "function": call}]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": text_of(item.get("output"))}
    if kind == "reasoning":
        return {"role": "assistant", "reasoning_content": text_of(item.get("content")) or ""}
    raise ApiError(400, f"input items of type {kind!r:.60} are not supported", param="input")


class ResponseAnswer:
    """Builds the response object and its events, one output item after the other."""

    def __init__(self, chat: ChatJob, body: ResponsesBody, counted: Counted) -> None:
        self._chat, self.counted = chat, counted
        self._output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._number = -1
        self._response: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(12)}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "model": chat.job.model.name,
            "output": self._output,
            "instructions": body.instructions,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": chat.job.params.temperature,
            "top_p": chat.job.params.top_p,
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "max_output_tokens": body.max_output_tokens,
            "error": None,
            "incomplete_details": None,
        }

    async def events(self, parts: AsyncGenerator[Step, None]) -> AsyncGenerator[dict[str, Any], None]:
        """All events, from response.created to response.completed or response.incomplete."""
        parser = self._chat.parser()
        async with aclosing(parts):
            yield self._event("response.created", response=dict(self._response))
            yield self._event("response.in_progress", response=dict(self._response))
            reason = "stop"
            async for step in parts:
                for piece in counted_pieces(parser, step, self.counted):
                    for event in self._piece(piece):
                        yield event
                reason = step.finish or reason
        for event in self._close():
            yield event
        self._response["usage"] = self.counted.response_usage()
        self._response["status"] = "incomplete" if reason == "length" else "completed"
        if reason == "length":
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        yield self._event(f"response.{self._response['status']}", response=dict(self._response))

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **more}

    def _piece(self, piece: Piece) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        if isinstance(piece, CallBegin):
            call = {"type": "function_call", "call_id": f"call_{secrets.token_hex(12)}", "name": piece.name}
            return self._begin({**call, "arguments": ""})
        if isinstance(piece, CallArguments):
            item = self._open
            if item is None or item["type"] != "function_call":
                return []
            item["arguments"] += piece.text
            return [self._event("response.function_call_arguments.delta", **self._place(), delta=piece.text)]
        kind = "message" if isinstance(piece, Content) else "reasoning"
        if self._open is None or self._open["type"] != kind:
            events += self._begin_text(kind)
        assert self._open is not None
        self._open["content"][0]["text"] += piece.text
        what = "reasoning_text" if isinstance(piece, Reasoning) else "output_text"
        more: dict[str, Any] = {} if isinstance(piece, Reasoning) else {"logprobs": []}
        events.append(self._event(f"response.{what}.delta", **self._place(), content_index=0, delta=piece.text, **more))
        return events

    def _begin_text(self, kind: str) -> list[dict[str, Any]]:
        if kind == "reasoning":
            return self._begin({"type": kind, "summary": [], "content": [{"type": "reasoning_text", "text": ""}]})
        part = {"type": "output_text", "text": "", "annotations": []}
        events = self._begin({"type": kind, "role": "assistant", "content": []})
        assert self._open is not None
        self._open["content"] = [part]
        return [
            *events,
            self._event("response.content_part.added", **self._place(), content_index=0, part=dict(part)),
        ]

    def _begin(self, item: dict[str, Any]) -> list[dict[str, Any]]:
        events = self._close()
        prefix = {"message": "msg", "function_call": "fc", "reasoning": "rs"}[item["type"]]
        self._open = {"id": f"{prefix}_{secrets.token_hex(12)}", "status": "in_progress", **item}
        self._output.append(self._open)
        added = self._event("response.output_item.added", output_index=len(self._output) - 1, item=dict(self._open))
        return [*events, added]

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._output) - 1}

    def _close(self) -> list[dict[str, Any]]:
        item = self._open
        if item is None:
            return []
        item["status"] = "completed"
        events, place = [], self._place()
        if item["type"] == "message":
            part = item["content"][0]
            text = {"text": part["text"], "logprobs": []}
            events.append(self._event("response.output_text.done", **place, content_index=0, **text))
            events.append(self._event("response.content_part.done", **place, content_index=0, part=part))
        elif item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            events.append(self._event("response.function_call_arguments.done", **place, **done))
        events.append(self._event("response.output_item.done", output_index=place["output_index"], item=item))
        self._open = None
        return events
