"""Prompts by chance, and what a scheduler's handle gives, for the tests of scheduling."""

from __future__ import annotations

import numpy as np

from strixhlo.runtime.requests import Finished, Handle

VOCABULARY = 320  # of the fixture `tiny`


def random_prompt(seed: int, length: int) -> tuple[int, ...]:
    """The same ids for the same seed."""
    return tuple(int(i) for i in np.random.default_rng(seed).integers(0, VOCABULARY, length))


def result(handle: Handle) -> tuple[list[int], str]:
    """All tokens, and how it ended."""
    tokens = []
    for event in handle.events():
        if isinstance(event, Finished):
            return tokens, event.reason
        tokens.append(event.token)
    raise AssertionError("no end")


def stream(handle: Handle) -> list[int]:
    """All tokens of one that goes on to its max_tokens."""
    tokens, reason = result(handle)
    assert reason == "length", (tokens, reason)
    return tokens
