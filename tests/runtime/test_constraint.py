"""Structured output: random logits under a constraint give what the constraint describes; bad ones are errors."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from strixhlo.errors import StrixhloError
from strixhlo.runtime.constraint import Constraints
from strixhlo.runtime.sampling import SamplingParams, sample, step_rng

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ab", "cd"]}, "n": {"type": "boolean"}},
    "required": ["name", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(BPE({c: i for i, c in enumerate(letters)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    return made


def generated(tokenizer: Tokenizer, params: SamplingParams) -> str:
    constraint = Constraints(tokenizer, 260, [256]).create(params)  # a vocabulary padded beyond the tokenizer's
    logits, ids = np.random.default_rng(0).standard_normal(260).astype(np.float32), []
    while not constraint.complete and len(ids) < 200:
        token = sample(constraint.masked(logits), params, step_rng(1, len(ids)))
        constraint.accept(token)
        ids.append(token)
    assert constraint.complete
    return tokenizer.decode(ids)


def test_json_schema(tokenizer: Tokenizer) -> None:
    value = json.loads(generated(tokenizer, SamplingParams(temperature=1.0, json_schema=SCHEMA)))
    assert value["name"] in ("ab", "cd") and isinstance(value["n"], bool) and len(value) == 2


def test_white_space_in_json_is_bounded(tokenizer: Tokenizer) -> None:
    params = SamplingParams(json_schema=SCHEMA)
    constraint = Constraints(tokenizer, 260, [256]).create(params)
    (newline,) = tokenizer.encode("\n").ids
    likes_lines, ids = np.zeros(260, np.float32), []
    likes_lines[newline] = 9
    while not constraint.complete and len(ids) < 400:
        token = sample(constraint.masked(likes_lines), params, step_rng(0, 0))
        constraint.accept(token)
        ids.append(token)
    assert constraint.complete and json.loads(tokenizer.decode(ids))["name"] in ("ab", "cd")


def test_regex_and_grammar(tokenizer: Tokenizer) -> None:
    assert re.fullmatch("[a-f]{3}-[0-9]{2}", generated(tokenizer, SamplingParams(regex="[a-f]{3}-[0-9]{2}")))
    assert generated(tokenizer, SamplingParams(temperature=1.0, grammar='start: "yes" | "no"')) in ("yes", "no")


def test_a_grammar_that_nothing_matches_is_said_in_words(tokenizer: Tokenizer) -> None:
    with pytest.raises(StrixhloError, match="no token of this model can follow"):
        Constraints(tokenizer, 257, [256]).create(SamplingParams(grammar="start: x\nx: y\ny: x\n"))


@pytest.mark.parametrize("bad", [{"json_schema": {"type": "nonsense"}}, {"regex": "("}, {"grammar": "start: nope"}])
def test_a_bad_description_is_an_error(tokenizer: Tokenizer, bad: dict) -> None:
    with pytest.raises(StrixhloError, match=r"^structured output: ") as caught:
        Constraints(tokenizer, 257, [256]).create(SamplingParams(**bad))
    assert "\n" not in str(caught.value)
    with pytest.raises(StrixhloError, match="one of json_schema"):
        SamplingParams(regex="a", grammar="b")
