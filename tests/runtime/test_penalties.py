"""Penalties and logit bias against their definitions, token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strixhlo.errors import StrixhloError
from strixhlo.runtime.penalties import adjusted
from strixhlo.runtime.sampling import SamplingParams

ids = st.lists(st.integers(0, 11), max_size=20)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 1000),
    prompt=ids,
    generated=ids,
    repetition=st.floats(0.5, 2),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    bias=st.dictionaries(st.integers(0, 11), st.floats(-100, 100), max_size=3),
)
def test_adjusted_is_the_definition(
    seed: int,
    prompt: list[int],
    generated: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
) -> None:
    logits = np.random.default_rng(seed).standard_normal(12).astype(np.float32)
    before = logits.copy()
    params = SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency, logit_bias=bias
    )
    result = adjusted(logits, params, prompt, generated)
    for token in range(12):
        expected = float(logits[token])
        if token in prompt + generated:
            expected = expected / repetition if expected > 0 else expected * repetition
        count = generated.count(token)
        expected -= presence * (count > 0) + frequency * count
        expected += bias.get(token, 0)
        assert result[token] == pytest.approx(expected, abs=1e-4)
    np.testing.assert_array_equal(logits, before)


def test_nothing_to_do_copies_nothing() -> None:
    logits = np.zeros(4, np.float32)
    assert adjusted(logits, SamplingParams(), [1], [2]) is logits


def test_a_bias_outside_of_the_vocabulary_is_an_error() -> None:
    with pytest.raises(StrixhloError, match="names token 4; the vocabulary has 4"):
        adjusted(np.zeros(4, np.float32), SamplingParams(logit_bias={4: 1.0}), [], [])
