"""The official client against a real model: streams equal whole answers, and every field means what it says."""

from __future__ import annotations

import json
import time
from typing import Any

import openai
import pytest
from openai import OpenAI

ASK: list[Any] = [{"role": "user", "content": "What is gravity?"}]


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
    assert usages[-1] == whole.usage and not any(usages[:-1])
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
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, "context"),
    ],
)
def test_bad_requests_say_what_is_wrong(client: OpenAI, options: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(**{"model": model(client), "messages": ASK, "max_tokens": 4, **options})


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
    deadline = time.monotonic() + 5
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
