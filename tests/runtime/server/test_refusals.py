"""What a request cannot have is refused by its name, and what a hostile client sends harms nobody."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HI = [{"role": "user", "content": "Hi"}]


def post(served: Any, path: str, body: Any) -> tuple[int, Any]:
    """(status, JSON)"""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{served.url}{path}", content=content, headers=headers, timeout=60, trust_env=False)
    return answer.status_code, answer.json()


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def schema(form: Any) -> dict[str, Any]:
    return {"messages": HI, "max_tokens": 1, "response_format": form}


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (CHAT, user([{"type": "text"}]), "messages", "of type 'text' needs a text: its field 'text' is missing"),
        (CHAT, user([{"type": "text", "text": 5}]), "messages", "'text' is no text"),
        (CHAT, user([{"type": "image_url", "image_url": "x"}]), "messages", "only text"),
        (CHAT, schema({"type": "json_schema"}), "response_format", "needs json_schema.schema"),
        (CHAT, schema({"type": "json_schema", "json_schema": {"name": "x"}}), "response_format.json_schema.schema", ""),
        (CHAT, {"messages": HI, "functions": [{"name": "f"}]}, "functions", "tools"),
        (CHAT, {"messages": HI, "modalities": ["text", "audio"]}, "modalities", "text"),
        (COMPLETIONS, {"prompt": "x", "best_of": 3}, "best_of", "beyond n"),
        (COMPLETIONS, {"prompt": "x", "suffix": "y"}, "suffix", "not supported"),
        (RESPONSES, {"input": []}, "input", "no items"),
        (RESPONSES, {"input": [*HI, {"role": "king", "content": "x"}]}, "input.1.role", ""),
        (RESPONSES, {"input": [{"role": "king", "content": "x"}], "instructions": "Be."}, "input.0.role", ""),
        (RESPONSES, {"input": "x", "tools": [{"type": "function", "name": ""}]}, "tools.0.name", ""),
        (RESPONSES, {"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.json_schema.schema", ""),
        (RESPONSES, {"input": "x", "conversation": "c1"}, "conversation", "nothing is stored"),
        (RESPONSES, {"input": "x", "background": True}, "background", "nothing is stored"),
        ("/detokenize", {"tokens": [1, 2_000_000_000]}, "tokens", "no token 2000000000"),
    ],
)
def test_named(served: Any, path: str, body: Any, param: str, words: str) -> None:
    status, answer = post(served, path, body)
    assert status == 400, answer
    assert answer["error"]["param"] == param and words in answer["error"]["message"], answer


DEEP = b'{"a":' * 5_000 + b"1" + b"}" * 5_000
ASK = b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, '
TOOL = b'"tools": [{"type": "function", "function": {"name": "f", "parameters": '
OK, ANY = {200}, {200, 400}  # ANY: what this model makes of it matters little
RECURSIVE: Any = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}}}
ODD = 'a"b\\c</tool_call>\n{{x}}\u202e\x00'


HOSTILE: list[tuple[str, Any, set[int]]] = [
    (CHAT, ASK + b'"metadata": ' + DEEP + b"}", {400}),
    (CHAT, ASK + TOOL + DEEP + b"}}]}", {400}),
    (CHAT, ASK + b'"temperature": NaN}', {400}),
    (CHAT, ASK + b'"temperature": 1e999}', {400}),
    (CHAT, ASK + b'"temperature": -Infinity}', {400}),
    (CHAT, ASK + b'"top_p": "0.5; drop"}', {400}),
    (CHAT, ASK + b'"seed": ' + b"9" * 4_000 + b"}", ANY),
    (CHAT, ASK + b'"seed": ' + b"9" * 100_000 + b"}", {400}),
    (CHAT, ASK + b'"top_k": ' + b"9" * 40 + b"}", ANY),
    (CHAT, ASK + b'"max_tokens": 1, "n": 1, "n": 1, "temperature": 0, "temperature": 1}', {200}),
    (CHAT, ASK + b'"logit_bias": {"99999999999999999999": 1}}', {400}),
    (CHAT, ASK + b'"stop": ["' + b"x" * 1_000_000 + b'"]}', ANY),
    (CHAT, user("\ud800"), {400}),
    (CHAT, user("\x00\u202e\ufffe" * 50) | {"max_tokens": 1}, {200}),
    (CHAT, {"messages": HI * 10_000, "max_tokens": 1}, {400}),
    (CHAT, user([{"type": "text", "text": ""}] * 10_000) | {"max_tokens": 1}, {200}),
    # Millions of faults, of which one is told.
    (COMPLETIONS, b'{"prompt": [' + b"{}," * 2_000_000 + b"{}]}", {400}),
    (CHAT, b'{"messages": [' + b'{"role": 1},' * 600_000 + b"{}]}", {400}),
    (CHAT, user([{}] * 100_000), {400}),
    (CHAT, ASK + b'"logit_bias": {' + b",".join(b'"x%d": 1' % i for i in range(500_000)) + b"}}", {400}),
    (COMPLETIONS, {"prompt": ["x"] * 10_000}, {400}),
    (COMPLETIONS, {"prompt": [1] * 10_000}, {400}),
    (COMPLETIONS, {"prompt": [[1, 2], "x"]}, {400}),
    (COMPLETIONS, {"prompt": [True, 1.5]}, {400}),
    (CHAT, schema({"type": "json_schema", "json_schema": {"schema": RECURSIVE}}), ANY),
    (CHAT, schema({"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}), ANY),
    (CHAT, schema({"type": "json_schema", "json_schema": {"schema": {"$ref": "file:///etc/passwd"}}}), {400}),
    (CHAT, schema({"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": "(a+)+$"}}}), OK),
    (CHAT, {"messages": HI, "max_tokens": 1, "regex": "(a|a?)+" * 50}, ANY),
    (CHAT, {"messages": HI, "max_tokens": 1, "regex": "((a{1,900}){1,900}){1,900}"}, ANY),
    (CHAT, {"messages": HI, "max_tokens": 1, "regex": "(" * 20_000}, {400}),
    (CHAT, {"messages": HI, "max_tokens": 1, "grammar": "start: start start | start"}, ANY),
    (CHAT, {"messages": HI, "max_tokens": 1, "tools": [{"type": "function", "function": {"name": ODD}}]}, {200}),
    (CHAT, {"messages": HI, "max_tokens": 3, "tools": [{"type": "function", "function": {"name": ODD}}]}
     | {"tool_choice": "required"}, ANY),
    (CHAT, {"messages": [*HI, {"role": "assistant", "tool_calls": [{"function": {"name": ODD, "arguments": "{"}}]}]}
     | {"max_tokens": 1}, ANY),
    (RESPONSES, {"input": HI * 10_000, "max_output_tokens": 1}, {400}),
    ("/tokenize", {"content": "a" * 3_000_000}, ANY),
    ("/detokenize", {"tokens": [10**400]}, {400}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "allowed"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_bodies(served: Any, path: str, body: Any, allowed: set[int]) -> None:
    status, answer = post(served, path, body)
    assert status in allowed, answer
    if status == 400:
        assert set(answer["error"]) == {"message", "type", "param", "code"} and len(answer["error"]["message"]) < 2_000
    assert post(served, COMPLETIONS, {"prompt": "x", "max_tokens": 1})[0] == 200
