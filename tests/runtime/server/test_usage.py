"""Reasoning tokens are those whose text became reasoning, with the markers before it."""

from __future__ import annotations

import pytest

from strixhlo.runtime.requests import TokenEvent
from strixhlo.runtime.server.chat_completions import counted_pieces
from strixhlo.runtime.server.generation import Step
from strixhlo.runtime.server.usage import Counted
from strixhlo.runtime.tool_calls.choose import output_parser


@pytest.mark.parametrize(
    ("tokens", "reasoning"),
    [
        (["<think>", "\n", "Let", " me", "</think>", "\n", "Yes", "."], 4),
        (["<thi", "nk>", "Hm"], 3),
        (["Yes", ".", " <think>"], 0),
        (["<think>", "</think>", "Yes"], 0),
    ],
)
def test_reasoning_tokens(tokens: list[str], reasoning: int) -> None:
    parser, counted = output_parser("<think></think>", "", []), Counted(3)
    for i, text in enumerate(tokens):
        counted_pieces(parser, Step(0, text, TokenEvent(i)), counted)
    counted_pieces(parser, Step(0, "", finish="stop"), counted)
    assert counted.reasoning == reasoning
    assert counted.usage()["completion_tokens_details"] == {"reasoning_tokens": reasoning}
    assert counted.response_usage()["output_tokens_details"] == {"reasoning_tokens": reasoning}
