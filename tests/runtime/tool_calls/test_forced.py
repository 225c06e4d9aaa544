"""Forced calls: whatever a model's logits are, its format's parser finds calls of the tools, with valid arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from strixhlo.errors import StrixhloError
from strixhlo.runtime.constraint import Constraints
from strixhlo.runtime.sampling import SamplingParams, sample, step_rng
from strixhlo.runtime.tool_calls.choose import output_parser
from strixhlo.runtime.tool_calls.forced import forced_calls
from strixhlo.runtime.tool_calls.pieces import CallArguments, CallBegin, Content, Piece, Reasoning, merged


def tool(name: str, properties: dict[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


CITY = tool("weather", {"city": {"enum": ["Köln", "Bonn"], "type": "string"}, "days": {"type": "integer"}}, ["city"])
TOOLS = [CITY, tool("now", {}), tool("say", {"text": {"type": "string", "maxLength": 5}}, ["text"])]
HARMONY = "<|start|><|channel|>analysis<|message|><|end|><|call|><|constrain|>"
TEMPLATES = {
    "hermes": "<tool_call>",
    "hermes that thinks": "<tool_call> </think>",
    "no format": "plain",
    "llama3": "<|start_header_id|>",
    "mistral, list": "[TOOL_CALLS]",
    "mistral, v11": "[TOOL_CALLS][ARGS]",
    "glm": "<tool_call><arg_key>",
    "harmony": HARMONY,
}
MARKERS = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
]
SPECIAL = ["[TOOL_CALLS]", "[ARGS]", *(f"{part}>" for part in HARMONY.replace("analysis", "").split(">") if part)]

ENDS = {"<think>": "</think>", "<arg_value>": "</arg_value>"}


def byte_tokenizer(markers: Sequence[str]) -> Tokenizer:
    """A token a byte, and perhaps one a marker. 256 ends."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(BPE({c: i for i, c in enumerate(letters)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    made.add_tokens([AddedToken(m, special=m in SPECIAL, normalized=False) for m in markers])
    return made


def written(tokenizer: Tokenizer, grammar: str, seed: int) -> str:
    """What a model of random logits writes, with a liking for what ends things and for markers."""
    size = tokenizer.get_vocab_size()
    params = SamplingParams(temperature=1.0, grammar=grammar)
    constraint, ids = Constraints(tokenizer, size, [256]).create(params), []
    logits = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    logits[[*tokenizer.encode('"}<>]').ids, *range(256, size)]] += 2.5
    while not constraint.complete:
        text = tokenizer.decode(ids, skip_special_tokens=False)
        possible = constraint.masked(logits)
        more = [sample(possible, params, step_rng(seed, len(ids)))]
        for begin, end in ENDS.items():  # random bytes never spell the end of a free text
            spelled = tokenizer.encode(end).ids
            if len(ids) % 20 == 0 and text.count(begin) > text.count(end) and np.isfinite(possible[spelled[0]]):
                more = spelled
        for token in more:
            constraint.accept(token)
        ids += more
        assert len(ids) < 2000
    return tokenizer.decode([i for i in ids if i != 256], skip_special_tokens=False)


def calls_of(pieces: list[Piece]) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, CallBegin):
            found.append((piece.name, ""))
        elif isinstance(piece, CallArguments):
            found[-1] = (found[-1][0], found[-1][1] + piece.text)
        else:
            assert isinstance(piece, Reasoning) or (isinstance(piece, Content) and not piece.text.strip()), piece
    return [(name, json.loads(arguments)) for name, arguments in found]


@pytest.mark.parametrize("as_tokens", [True, False], ids=["markers are tokens", "markers are text"])
@pytest.mark.parametrize("form", TEMPLATES)
def test_random_models_write_calls(form: str, as_tokens: bool) -> None:
    tokenizer = byte_tokenizer([*MARKERS, *SPECIAL] if as_tokens else SPECIAL)
    for seed in range(2):
        for several in (False, True):
            grammar = forced_calls(TEMPLATES[form], "", TOOLS, tokenizer, several=several)
            text = written(tokenizer, grammar, seed)
            parser = output_parser(TEMPLATES[form], "", TOOLS)
            found = calls_of(merged([*parser.push(text), *parser.finish()]))
            assert len(found) == 1 or (several and found), text
            for name, arguments in found:
                if name == "weather":
                    assert arguments["city"] in ("Köln", "Bonn") and isinstance(arguments.get("days", 0), int)
                else:
                    assert set(arguments) == {"now": set(), "say": {"text"}}[name]


def test_reasoning_that_the_prompt_began_ends_before_the_call() -> None:
    tokenizer = byte_tokenizer(MARKERS)
    grammar = forced_calls("<tool_call></think>", "<think>\n", [CITY], tokenizer, several=False)
    text = written(tokenizer, grammar, 1)
    assert "</think>" in text
    parser = output_parser("<tool_call></think>", "<think>\n", [CITY])
    assert [name for name, _ in calls_of(merged([*parser.push(text), *parser.finish()]))] == ["weather"]


@pytest.mark.parametrize("form", TEMPLATES)
@pytest.mark.parametrize("parameters", [{"type": "nonsense"}, {"properties": 5}, {"properties": {"a": {"type": 7}}}])
def test_a_schema_that_is_none_is_an_error(form: str, parameters: dict[str, Any]) -> None:
    tokenizer = byte_tokenizer(SPECIAL)
    bad = {"type": "function", "function": {"name": "bad", "parameters": parameters}}
    if form == "glm" and parameters == {"type": "nonsense"}:
        return  # it reads the properties alone
    with pytest.raises(StrixhloError, match=r"^structured output: "):
        grammar = forced_calls(TEMPLATES[form], "", [bad], tokenizer, several=False)
        Constraints(tokenizer, tokenizer.get_vocab_size(), [256]).create(SamplingParams(grammar=grammar))
