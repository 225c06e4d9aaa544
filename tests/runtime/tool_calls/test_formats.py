"""Every format: the same pieces however the text was cut, and text that is no call stays content."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable

import pytest

from strixhlo.runtime.tool_calls.choose import output_parser, tool_format
from strixhlo.runtime.tool_calls.glm import GlmParser
from strixhlo.runtime.tool_calls.harmony import HarmonyParser
from strixhlo.runtime.tool_calls.hermes import HermesParser
from strixhlo.runtime.tool_calls.llama3 import Llama3Parser
from strixhlo.runtime.tool_calls.mistral import MistralParser
from strixhlo.runtime.tool_calls.pieces import (
    CallArguments,
    CallBegin,
    Content,
    OutputParser,
    Piece,
    PlainParser,
    Reasoning,
    merged,
)
from strixhlo.runtime.tool_calls.reasoning import ThinkParser

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "code": {"type": "string"}},
        },
    },
}
ARGS = '{"city": "Kö\\"ln}", "days": [1, {"a": 2}]}'


def call(index: int, name: str, arguments: str) -> list[Piece]:
    return [CallBegin(index, name), CallArguments(index, arguments)]


Make = Callable[[], OutputParser]
CASES: dict[str, tuple[Make, str, list[Piece]]] = {
    "hermes": (
        HermesParser,
        'Let me look.\n\n<tool_call>\n{"name": "weather", "arguments": ' + ARGS + "}\n</tool_call>",
        [Content("Let me look."), *call(0, "weather", ARGS)],
    ),
    "hermes, two calls, text after": (
        HermesParser,
        '<tool_call>{"name": "a", "arguments": {}}</tool_call>\n<tool_call>{"arguments": {"x": 1}, "name": "b"}'
        "</tool_call>\nDone.",
        [*call(0, "a", "{}"), *call(1, "b", '{"x": 1}'), Content("\nDone.")],
    ),
    "hermes, no call": (HermesParser, "a < b <tool> {x}\n", [Content("a < b <tool> {x}\n")]),
    "hermes, broken call": (
        HermesParser,
        '<tool_call>{"nam": 1}</tool_call>',
        [Content('<tool_call>{"nam": 1}</tool_call>')],
    ),
    "hermes, no JSON": (HermesParser, "<tool_call>hello", [Content("<tool_call>hello")]),
    "hermes, cut short": (
        HermesParser,
        '<tool_call>{"name": "a", "arguments": {"x": "yz',
        [CallBegin(0, "a"), CallArguments(0, '{"x": "yz')],
    ),
    "hermes, arguments as a string": (
        HermesParser,
        '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>',
        call(0, "a", '{"x": 1}'),
    ),
    "llama3": (
        lambda: Llama3Parser({"weather"}),
        '{"name": "weather", "parameters": ' + ARGS + "}",
        call(0, "weather", ARGS),
    ),
    "llama3, tag and two": (
        lambda: Llama3Parser({"a", "b"}),
        '<|python_tag|>{"name": "a", "parameters": {"x": 1}}; {"name": "b", "parameters": {}}',
        [*call(0, "a", '{"x": 1}'), *call(1, "b", "{}")],
    ),
    "llama3, no arguments": (lambda: Llama3Parser({"a"}), '{"name": "a"}', call(0, "a", "{}")),
    "llama3, another object": (lambda: Llama3Parser({"a"}), ' {"name": "Bob"} is', [Content(' {"name": "Bob"} is')]),
    "llama3, text": (lambda: Llama3Parser({"a"}), "<|pythons are snakes", [Content("<|pythons are snakes")]),
    "mistral, list": (
        MistralParser,
        'Sure.[TOOL_CALLS] [{"name": "a", "arguments": {"x": [1]}}, {"name": "b", "arguments": {}}]',
        [Content("Sure."), *call(0, "a", '{"x": [1]}'), *call(1, "b", "{}")],
    ),
    "mistral, v11": (
        MistralParser,
        '[TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[CALL_ID]123456789[ARGS]{}',
        [*call(0, "a", '{"x": 1}'), *call(1, "b", "{}")],
    ),
    "mistral, text": (MistralParser, "[TOOL] [x]", [Content("[TOOL] [x]")]),
    "glm": (
        lambda: GlmParser([WEATHER]),
        "Looking.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n<arg_key>code</arg_key>\n<arg_value>50</arg_value>\n</tool_call>",
        [Content("Looking."), *call(0, "weather", '{"city": "Köln", "days": 3, "code": "50"}')],
    ),
    "glm, no arguments": (lambda: GlmParser([]), "<tool_call>now\n</tool_call>", call(0, "now", "{}")),
    "harmony": (
        HarmonyParser,
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>" + ARGS + "<|call|>",
        [Reasoning("Think."), Content("I look."), *call(0, "weather", ARGS)],
    ),
    "harmony, recipient before the channel": (
        HarmonyParser,
        " to=functions.a<|channel|>commentary json<|message|>{}<|call|>",
        call(0, "a", "{}"),
    ),
    "harmony, answer": (HarmonyParser, "<|channel|>final<|message|>Hi <|x|>", [Content("Hi <|x|>")]),
    "think": (
        lambda: ThinkParser(HermesParser(), False),
        '<think>\nWell, <b>.\n</think>\n\nYes.\n<tool_call>{"name": "a", "arguments": {}}</tool_call>',
        [Reasoning("Well, <b>."), Content("Yes."), *call(0, "a", "{}")],
    ),
    "think, begun by the prompt": (
        lambda: ThinkParser(PlainParser(), True),
        "\nHm.\n</think>\nYes.",
        [Reasoning("Hm."), Content("Yes.")],
    ),
    "think, none": (lambda: ThinkParser(PlainParser(), False), "<thin air", [Content("<thin air")]),
    "think, cut short": (lambda: ThinkParser(PlainParser(), False), "<think>a b </thi", [Reasoning("a b </thi")]),
}


def parsed(parser: OutputParser, parts: list[str]) -> list[Piece]:
    pieces = [piece for part in parts for piece in parser.push(part)]
    return merged([*pieces, *parser.finish()])


@pytest.mark.parametrize("name", CASES)
def test_the_same_pieces_however_the_text_is_cut(name: str) -> None:
    make, text, expected = CASES[name]
    assert parsed(make(), [text]) == expected
    assert parsed(make(), list(text)) == expected
    rng = random.Random(name)
    for _ in range(50):
        cuts = sorted({0, len(text), *(rng.randrange(len(text)) for _ in range(rng.randrange(1, 8)))})
        assert parsed(make(), [text[a:b] for a, b in itertools.pairwise(cuts)]) == expected


@pytest.mark.parametrize("name", [n for n in CASES if "cut" not in n])
def test_arguments_are_json(name: str) -> None:
    make, text, _ = CASES[name]
    for piece in parsed(make(), list(text)):
        if isinstance(piece, CallArguments):
            json.loads(piece.text)


def test_arguments_come_while_they_are_written() -> None:
    parser = HermesParser()
    assert parser.push('<tool_call>{"name": "a", "arguments": {"text": "one') == [
        CallBegin(0, "a"),
        CallArguments(0, '{"text": "one'),
    ]
    assert parser.push(" two") == [CallArguments(0, " two")]


@pytest.mark.parametrize("make", [HermesParser, MistralParser, HarmonyParser, lambda: GlmParser([WEATHER])])
def test_random_marker_soup_never_raises(make: Make) -> None:
    atoms = [*'{}[]",:; \n\\a1', "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "[ARGS]"]
    atoms += ["</arg_value>", "[TOOL_CALLS]", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", '"name"', "to=x"]
    rng = random.Random(0)
    for _ in range(300):
        parts = rng.choices(atoms, k=rng.randrange(40))
        assert parsed(make(), parts) == parsed(make(), ["".join(parts)])


def test_the_format_is_told_by_the_template() -> None:
    assert tool_format("... <tool_call> {{ call | tojson }}") == "hermes"
    assert tool_format("<tool_call>{{ name }}<arg_key>") == "glm"
    assert tool_format("[TOOL_CALLS]") == "mistral"
    assert tool_format("<|start_header_id|>ipython") == "llama3"
    assert tool_format("<|channel|>final<|message|>") == "harmony"
    assert tool_format("<|im_start|>") is None
    assert isinstance(output_parser("<|im_start|>", "hello", []), PlainParser)
    assert isinstance(output_parser("<|im_start|>", "<|im_start|>assistant\n<think>\n", []), ThinkParser)
