"""The official client against a real model: streams equal whole answers, and every field means what it says."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import openai
import pytest
from openai import OpenAI

ASK: list[Any] = [{"role": "user", "content": "What is gravity?"}]

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "maximum": 9}},
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "events")
]


def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


def running(client: OpenAI) -> list[Any]:
    slots = client.get("../slots", cast_to=list[Any])
    return list(slots[0]["running"]) + [None] * int(slots[0]["waiting"])


def test_models(client: OpenAI) -> None:
    name = model(client)
    assert client.models.retrieve(name).id == name
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("other")


def test_chat_streamed_is_chat_whole(client: OpenAI) -> None:
    options: Any = {"model": model(client), "messages": ASK, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**options)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage and whole.usage.completion_tokens == 24
    text, usages, finishes = "", [], []
    with client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}) as stream:
        for chunk in stream:
            usages.append(chunk.usage)
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finishes.append(choice.finish_reason)
    assert text == whole.choices[0].message.content and "gravity" in text.lower()
    streamed, cached = usages[-1].model_dump(), whole.usage.model_dump()  # the second prompt is partly in the cache
    assert {**streamed, "prompt_tokens_details": cached["prompt_tokens_details"]} == cached and not any(usages[:-1])
    assert finishes[-1] == "length" and not any(finishes[:-1])


def test_same_seed_same_choices_and_they_differ_among_each_other(client: OpenAI) -> None:
    options: Any = {"model": model(client), "messages": ASK, "max_tokens": 12, "temperature": 1.5, "seed": 7, "n": 2}
    first, second = (client.chat.completions.create(**options) for _ in range(2))
    texts = [[c.message.content for c in answer.choices] for answer in (first, second)]
    assert texts[0] == texts[1] and texts[0][0] != texts[0][1]
    streamed = ["", ""]
    for chunk in client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts[0]


def test_logprobs(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=model(client), messages=ASK, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs and logprobs.content and len(logprobs.content) == 4
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3 and entry.top_logprobs[0].logprob == entry.logprob <= 0
    assert "".join(e.token for e in logprobs.content) == answer.choices[0].message.content


def test_stop_strings(client: OpenAI) -> None:
    options: Any = {"model": model(client), "messages": ASK, "max_tokens": 40, "temperature": 0}
    free = client.chat.completions.create(**options).choices[0].message.content or ""
    stop = free[20:26]
    answer = client.chat.completions.create(**options, stop=[stop, "never ever"])
    assert answer.choices[0].message.content == free[: free.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage and answer.usage.completion_tokens < 40


def test_completions(client: OpenAI) -> None:
    options: Any = {"model": model(client), "max_tokens": 8, "temperature": 0}
    text = client.completions.create(prompt="Once upon a time", **options)
    ids = client.post("../tokenize", body={"content": "Once upon a time"}, cast_to=dict[str, Any])["tokens"]
    by_ids = client.completions.create(prompt=ids, **options, logprobs=2)
    assert text.choices[0].text == by_ids.choices[0].text
    logprobs = by_ids.choices[0].logprobs
    assert logprobs and logprobs.tokens and "".join(logprobs.tokens) == text.choices[0].text
    streamed = "".join(c.choices[0].text for c in client.completions.create(prompt=ids, **options, stream=True))
    assert streamed == text.choices[0].text
    echoed = client.completions.create(prompt="Once upon a time", echo=True, **options)
    assert echoed.choices[0].text == "Once upon a time" + text.choices[0].text


def test_responses(client: OpenAI) -> None:
    options: Any = {"model": model(client), "input": "What is gravity?", "max_output_tokens": 8, "temperature": 0}
    whole = client.responses.create(**options)
    assert whole.status == "incomplete" and whole.output_text
    text, kinds = "", []
    for event in client.responses.create(**options, stream=True):
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.incomplete":
            assert event.response.output_text == text == whole.output_text
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.incomplete"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text"),
        ({"stop": ""}, "empty"),
        ({"n": 0}, "n"),
        ({"tool_choice": "required"}, "needs tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "no tool 'x'"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, "context"),
    ],
)
def test_bad_requests_say_what_is_wrong(client: OpenAI, options: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(**{"model": model(client), "messages": ASK, "max_tokens": 4, **options})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "events"}}], ids=str)
def test_tool_choice_forces_a_call(client: OpenAI, choice: Any) -> None:
    """SmolLM2 has never seen a tool; its answer is a call all the same, streamed and whole."""
    options: Any = {"model": model(client), "messages": ASK, "tools": TOOLS, "tool_choice": choice, "temperature": 0}
    options |= {"max_tokens": 100, "parallel_tool_calls": False}
    answer = client.chat.completions.create(**options).choices[0]
    assert answer.finish_reason == "tool_calls" and not answer.message.content and answer.message.tool_calls
    (call,) = answer.message.tool_calls
    assert call.type == "function"
    assert call.function.name in (("events",) if isinstance(choice, dict) else ("weather", "events"))
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "days"} and arguments["city"] in ("Rome", "Oslo") and arguments["days"] <= 9
    name, text = "", ""
    for chunk in client.chat.completions.create(**options, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or ():
            assert delta.function
            name, text = name + (delta.function.name or ""), text + (delta.function.arguments or "")
    assert (name, text) == (call.function.name, call.function.arguments)


def test_responses_force_a_call_too(client: OpenAI) -> None:
    tools: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
    options: Any = {"model": model(client), "input": "Hi", "tools": tools, "max_output_tokens": 100, "temperature": 0}
    options |= {"tool_choice": {"type": "function", "name": "weather"}}
    whole = client.responses.create(**options)
    (item,) = whole.output
    assert (
        item.type == "function_call" and item.name == "weather" and set(json.loads(item.arguments)) == {"city", "days"}
    )
    last = list(client.responses.create(**options, stream=True))[-1]
    assert last.type == "response.completed" and last.response.output[0].arguments == item.arguments


def test_usage_tells_what_the_cache_held(client: OpenAI) -> None:
    """Whole blocks of a prompt that was sent before are cached tokens, in every endpoint and in streams."""
    name = model(client)
    text = "A long text about cached tokens. " * 12
    first = client.completions.create(model=name, prompt=text, max_tokens=1)
    again = client.completions.create(model=name, prompt=text, max_tokens=1)
    assert first.usage and first.usage.prompt_tokens_details and again.usage and again.usage.prompt_tokens_details
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    most = again.usage.prompt_tokens
    assert most - 64 <= (again.usage.prompt_tokens_details.cached_tokens or 0) < most
    messages: Any = [{"role": "user", "content": text}]
    options: Any = {"model": name, "max_tokens": 1, "stream": True, "stream_options": {"include_usage": True}}
    usages = [list(client.chat.completions.create(messages=messages, **options))[-1].usage for _ in range(2)]
    assert usages[0].prompt_tokens_details.cached_tokens < usages[1].prompt_tokens_details.cached_tokens
    assert usages[1].completion_tokens_details.reasoning_tokens == 0
    response = client.responses.create(model=name, input=text, max_output_tokens=1)
    assert response.usage and response.usage.input_tokens_details.cached_tokens > most - 64
    events = list(client.responses.create(model=name, input=text, max_output_tokens=1, stream=True))
    assert events[-1].type == "response.incomplete" and events[-1].response.usage == response.usage


def test_embeddings_are_refused_clearly(client: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match="embeddings") as caught:
        client.embeddings.create(model=model(client), input="x")
    assert caught.value.status_code == 501


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_frees_its_slot(client: OpenAI, streamed: bool) -> None:
    options: Any = {"model": model(client), "messages": ASK, "max_tokens": 900, "extra_body": {"ignore_eos": True}}
    if streamed:
        with client.chat.completions.create(**options, stream=True) as stream:
            next(iter(stream))
            assert running(client)
    else:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.5).chat.completions.create(**options)
    deadline = time.monotonic() + 60
    while running(client) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(client)


def test_response_format_holds_the_answer_to_its_schema(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"color": {"enum": ["red", "green"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["color", "count"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=model(client),
        messages=ASK,
        max_tokens=64,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}},
    )
    found = json.loads(answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert set(found) == {"color", "count"} and found["color"] in ("red", "green") and 0 <= found["count"] <= 9
    plain = client.chat.completions.create(
        model=model(client), messages=ASK, max_tokens=64, temperature=0, response_format={"type": "json_object"}
    )
    assert (plain.choices[0].message.content or "").startswith("{")


def test_answers_by_a_regular_expression_or_a_grammar(client: OpenAI) -> None:
    def answer(**extra: str) -> str:
        options: Any = {"model": model(client), "messages": ASK, "max_tokens": 32, "extra_body": extra}
        return client.chat.completions.create(**options).choices[0].message.content or ""

    assert re.fullmatch("[0-9]{2}-[a-f]", answer(regex="[0-9]{2}-[a-f]"))
    assert answer(grammar='start: "yes" | "no"') in ("yes", "no")
    with pytest.raises(openai.BadRequestError, match="structured output"):
        answer(regex="(")
    with pytest.raises(openai.BadRequestError, match="one of json_schema, regex and grammar"):
        answer(regex="a", grammar='start: "b"')


def test_logit_bias_and_penalties_change_the_choice(client: OpenAI) -> None:
    """Two tokens far above all others: the better one always, until what was said counts against it."""

    def token(text: str) -> int:
        (found,) = client.post("../tokenize", body={"content": text}, cast_to=dict[str, Any])["tokens"]
        return int(found)

    bias = {str(token(" red")): 60, str(token(" blue")): 30}
    options: Any = {"model": model(client), "prompt": "Colors:", "max_tokens": 8, "temperature": 0, "logit_bias": bias}
    assert client.completions.create(**options).choices[0].text == " red" * 8
    banned = {**bias, str(token(" red")): -100}
    assert client.completions.create(**{**options, "logit_bias": banned}).choices[0].text == " blue" * 8
    bias[str(token(" blue"))] = 60
    words = client.completions.create(**options, frequency_penalty=2.0).choices[0].text.split()
    even = client.completions.create(**options).choices[0].text.split()
    assert set(words) == {"red", "blue"} and abs(words.count("red") - 4) < abs(even.count("red") - 4) <= 4
