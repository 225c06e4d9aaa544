"""OpenAI's messages and tools -> the prompt's text, the parser of the answer, and the answer's message object."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...errors import StrixhloError
from ..chat import render_chat
from ..tool_calls.pieces import CallArguments, CallBegin, Content, Piece, Reasoning
from .errors import ApiError
from .schemas import ChatBody, Message, NamedTool
from .served import ServedModel


def text_of(content: Any) -> str | None:
    """A message's content as text; ApiError 400 for images and audio, and for what is no content."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise ApiError(400, "content must be a text, or a list of parts", param="messages")
    texts = []
    for part in content:
        kind, text = part.get("type"), part.get("text")
        if kind not in ("text", "input_text", "output_text"):
            raise ApiError(400, f"content of type {kind!r:.60} is not supported: only text", param="messages")
        if not isinstance(text, str):
            what = "is no text" if "text" in part else "is missing"
            raise ApiError(
                400, f"a content part of type {kind!r} needs a text: its field 'text' {what}", param="messages"
            )
        texts.append(text)
    return "".join(texts)


def template_message(message: Message) -> dict[str, Any]:
    """As chat templates expect it: content as text, a call's arguments as an object."""
    out = message.model_dump(exclude_none=True)
    out["content"] = text_of(message.content) or ""
    if message.role == "developer":
        out["role"] = "system"
    if message.tool_calls:
        out["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    return out


def _template_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ApiError(400, "a tool call in the messages has no function name", param="messages")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # what a model wrote need not be JSON; it is then shown as it is
            arguments = json.loads(arguments or "{}")
    return {**call, "function": {**function, "arguments": arguments}}


def shown_tools(body: ChatBody) -> list[dict[str, Any]]:
    """The tools that the model is shown."""
    if body.tool_choice == "none":
        return []
    return [tool.model_dump(exclude_none=True) for tool in body.tools or ()]


def forced_tools(body: ChatBody, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of `tools` of which the answer must call one; none: it need not. ApiError 400 where none can be called."""
    choice = body.tool_choice
    if choice == "required":
        if not tools:
            raise ApiError(400, "tool_choice 'required' needs tools", param="tool_choice")
        return tools
    if not isinstance(choice, NamedTool):
        return []
    found = [tool for tool in tools if tool["function"]["name"] == choice.function.name]
    if not found:
        raise ApiError(
            400, f"tool_choice: there is no tool {choice.function.name!r:.200} in tools", param="tool_choice"
        )
    return found[:1]


async def render(model: ServedModel, messages: Sequence[Mapping[str, Any]], tools: list[dict[str, Any]]) -> str:
    """The prompt's text, by the model's chat template in its process."""
    t = model.tokenizer
    try:
        return await asyncio.to_thread(
            render_chat, t.chat_template, messages, bos_token=t.bos_token, eos_token=t.eos_token, tools=tools or None
        )
    except StrixhloError as error:
        raise ApiError(400, str(error).partition("; pass --raw")[0], param="messages") from None


class MessageBuilder:
    """Pieces -> stream deltas, and the whole message."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.calls: list[dict[str, Any]] = []

    def add(self, piece: Piece) -> dict[str, Any]:
        """The delta for one piece."""
        if isinstance(piece, Content):
            self._content.append(piece.text)
            return {"content": piece.text}
        if isinstance(piece, Reasoning):
            self._reasoning.append(piece.text)
            return {"reasoning_content": piece.text}
        if isinstance(piece, CallBegin):
            function = {"name": piece.name, "arguments": ""}
            call = {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
            self.calls.append(call)
            return {"tool_calls": [{"index": piece.index, **call, "function": dict(function)}]}
        return self._arguments(piece)

    def _arguments(self, piece: CallArguments) -> dict[str, Any]:
        self.calls[piece.index]["function"]["arguments"] += piece.text
        return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.text}}]}

    @property
    def text(self) -> str:
        """All content."""
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        """All reasoning."""
        return "".join(self._reasoning)

    def message(self) -> dict[str, Any]:
        """The message object."""
        out: dict[str, Any] = {"role": "assistant", "content": self.text or (None if self.calls else "")}
        if self._reasoning:
            out["reasoning_content"] = self.reasoning
        if self.calls:
            out["tool_calls"] = self.calls
        return out

    def finish(self, reason: str) -> str:
        """OpenAI's finish reason."""
        return "tool_calls" if self.calls and reason == "stop" else reason
