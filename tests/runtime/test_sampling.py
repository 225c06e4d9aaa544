"""Sampling against a straightforward float64 reference, its random streams, and its errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from strixhlo.errors import StrixhloError
from strixhlo.runtime.sampling import (
    SamplingParams,
    distribution,
    fresh_seed,
    logprob,
    sample,
    step_rng,
    top_logprobs,
)


def reference_distribution(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Probabilities [vocab]: sort everything, one filter after the other, in float64."""
    order = sorted(range(logits.size), key=lambda i: (-logits[i], i))
    if params.top_k:
        order = order[: params.top_k]
    if params.typical_p < 1:
        order = typical(logits, order, params.typical_p)
    weights = [math.exp(float(logits[i]) - float(logits[order[0]])) for i in order]
    wanted, total, kept = params.top_p * math.fsum(weights), 0.0, []
    for i, weight in zip(order, weights, strict=True):
        kept.append(i)
        total += weight
        if params.top_p < 1 and total >= wanted:
            break
    kept = [i for i in kept if math.exp(float(logits[i]) - float(logits[order[0]])) >= params.min_p * (1 - 1e-12)]
    result = np.zeros(logits.size)
    for i in kept:
        result[i] = math.exp((float(logits[i]) - float(logits[order[0]])) / params.temperature)
    return result / result.sum()


def typical(logits: np.ndarray, order: list[int], typical_p: float) -> list[int]:
    """The most typical of `order`, by the definition: nearest to the entropy first."""
    total = math.fsum(math.exp(float(logits[i]) - float(logits[order[0]])) for i in order)
    p = {i: math.exp(float(logits[i]) - float(logits[order[0]])) / total for i in order}
    entropy = -math.fsum(q * math.log(q) for q in p.values())
    kept, reached = [], 0.0
    for i in sorted(order, key=lambda i: (round(abs(-math.log(p[i]) - entropy), 9), i)):
        kept.append(i)
        reached += p[i]
        if reached >= typical_p:
            break
    return sorted(kept, key=lambda i: (-logits[i], i))


logit_rows = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=60).map(lambda v: np.array(v, np.float32))
# Few distinct values: ties at the border of every filter.
tied_rows = st.lists(st.sampled_from([-2.0, 0.0, 1.0, 3.5]), min_size=1, max_size=60).map(
    lambda v: np.array(v, np.float32)
)
params_of = st.builds(
    SamplingParams,
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 70),
    top_p=st.sampled_from([0.013, 0.31, 0.77, 0.953, 1.0]),  # not where equal probabilities add up to exactly
    min_p=st.sampled_from([0.0, 0.0511, 0.317, 1.0]),
)


@settings(max_examples=400, deadline=None)
@given(logits=logit_rows | tied_rows, params=params_of)
def test_distribution_equals_the_reference(logits: np.ndarray, params: SamplingParams) -> None:
    if params.min_p:
        # Within the rounding of the border either side of it is right: ours compares logarithms, the reference ratios.
        distances = logits.astype(np.float64) - float(logits.max()) - math.log(params.min_p)
        assume(not ((distances != 0) & (np.abs(distances) < 1e-9)).any())
    ids, probabilities = distribution(logits, params)
    full = np.zeros(logits.size)
    full[ids] = probabilities
    assert ids.size >= 1
    assert (np.diff(ids) > 0).all()
    np.testing.assert_allclose(full, reference_distribution(logits, params), rtol=1e-9, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), typical_p=st.floats(0.05, 0.95), top_p=st.sampled_from([0.31, 1.0]))
def test_typical_equals_the_reference(seed: int, typical_p: float, top_p: float) -> None:
    logits = (np.random.default_rng(seed).standard_normal(50) * 3).astype(np.float32)
    params = SamplingParams(temperature=0.7, typical_p=typical_p, top_p=top_p, min_p=0.05)
    ids, probabilities = distribution(logits, params)
    full = np.zeros(logits.size)
    full[ids] = probabilities
    np.testing.assert_allclose(full, reference_distribution(logits, params), rtol=1e-9, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), params=params_of, spread=st.sampled_from([0.01, 1.0, 8.0]))
def test_a_large_vocabulary_equals_the_reference(seed: int, params: SamplingParams, spread: float) -> None:
    # More entries than the nucleus sorts at first, so that it has to look further.
    logits = (np.random.default_rng(seed).standard_normal(5000) * spread).astype(np.float32)
    ids, probabilities = distribution(logits, params)
    full = np.zeros(logits.size)
    full[ids] = probabilities
    np.testing.assert_allclose(full, reference_distribution(logits, params), rtol=1e-9, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(logits=logit_rows | tied_rows, params=params_of, seed=st.integers(0, 2**64 - 1))
def test_a_sample_is_possible(logits: np.ndarray, params: SamplingParams, seed: int) -> None:
    ids, probabilities = distribution(logits, params)
    assert sample(logits, params, step_rng(seed, 0)) in ids[probabilities > 0]


def test_samples_follow_the_distribution() -> None:
    logits = np.array([1.0, 0.0, 2.0, -1.0, 0.5, -3.0, 1.5, -np.inf], np.float32)
    params = SamplingParams(temperature=0.9, top_k=6, top_p=0.97, min_p=0.02)
    ids, probabilities = distribution(logits, params)
    draws = 20_000
    counts = np.bincount([sample(logits, params, step_rng(7, step)) for step in range(draws)], minlength=logits.size)
    assert counts.sum() == counts[ids].sum()
    chi_square = ((counts[ids] - draws * probabilities) ** 2 / (draws * probabilities)).sum()
    assert ids.size == 5
    assert chi_square < 18.47  # 4 degrees of freedom, p = 0.001


def test_greedy_takes_the_first_of_equal_logits() -> None:
    logits = np.array([0, 5, 5, 1], np.float32)
    assert sample(logits, SamplingParams(), step_rng(0, 0)) == 1
    assert sample(logits, SamplingParams(temperature=1.0, top_k=1), step_rng(0, 0)) == 1
    ids, probabilities = distribution(logits, SamplingParams())
    assert (ids.tolist(), probabilities.tolist()) == ([1], [1.0])


def test_filters_come_before_the_temperature() -> None:
    # At temperature 100 the four are nearly equally likely; top-p 0.9 must still see the model's own 0.96.
    logits = np.log(np.array([0.96, 0.02, 0.01, 0.01])).astype(np.float32)
    assert distribution(logits, SamplingParams(temperature=100.0, top_p=0.9))[0].tolist() == [0]
    assert distribution(logits, SamplingParams(temperature=100.0, min_p=0.5))[0].tolist() == [0]


def test_the_stream_depends_on_seed_and_step_only() -> None:
    logits = np.zeros(1000, np.float32)
    params = SamplingParams(temperature=1.0)
    forwards = [sample(logits, params, step_rng(3, step)) for step in range(20)]
    backwards = [sample(logits, params, step_rng(3, step)) for step in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) > 15
    assert forwards != [sample(logits, params, step_rng(4, step)) for step in range(20)]
    # Frozen, so that a seed gives the same text in the next release.
    assert forwards[:4] == [934, 740, 768, 822]


def test_fresh_seeds_are_valid_and_differ() -> None:
    seeds = {SamplingParams(seed=fresh_seed()).seed for _ in range(10)}
    assert len(seeds) == 10


def test_the_last_token_is_not_drawn_with_probability_zero() -> None:
    class RoundedUp:  # what `random() * total` is when the product rounds up to the total
        def random(self) -> float:
            return 1.0

    logits = np.array([1.0, 1.0, 1.0, -np.inf], np.float32)
    assert sample(logits, SamplingParams(temperature=1.0), RoundedUp()) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_an_error(bad: float, temperature: float) -> None:
    logits = np.array([0.0, bad, 1.0], np.float32)
    with pytest.raises(StrixhloError, match="logit of token 1 is"):
        sample(logits, SamplingParams(temperature=temperature), step_rng(0, 0))
    with pytest.raises(StrixhloError, match="logit of token 1 is"):
        top_logprobs(logits, 1)


def test_no_possible_token_is_an_error() -> None:
    with pytest.raises(StrixhloError, match="logit of token 0 is -inf"):
        sample(np.full(4, -np.inf, np.float32), SamplingParams(temperature=1.0), step_rng(0, 0))
    with pytest.raises(StrixhloError, match="shape"):
        sample(np.zeros((2, 4), np.float32), SamplingParams(), step_rng(0, 0))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.01),
        ("min_p", 1.01),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 0.5),
        ("typical_p", 0.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", math.nan),
        ("frequency_penalty", 101),
        ("logit_bias", [1]),
        ("dry_multiplier", -1),
        ("dry_base", 0.5),
        ("dry_allowed_length", 0),
        ("dry_sequence_breakers", ["a"]),
        ("xtc_probability", 1.1),
        ("xtc_threshold", math.nan),
        ("max_tokens", 0),
        ("logprobs", -1),
        ("stop", "text"),
        ("stop", ("",)),
        ("stop", (1,)),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: object) -> None:
    with pytest.raises(StrixhloError, match=rf"^sampling: {name} is .*must be") as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(logits=logit_rows | tied_rows, n=st.integers(0, 70))
def test_top_logprobs(logits: np.ndarray, n: int) -> None:
    wide = logits.astype(np.float64)
    reference = wide - np.logaddexp.reduce(wide)
    order = sorted(range(logits.size), key=lambda i: (-logits[i], i))[:n]
    best = top_logprobs(logits, n)
    assert [i for i, _ in best] == order
    np.testing.assert_allclose([p for _, p in best], reference[order], atol=1e-9)
    np.testing.assert_allclose(logprob(logits, 0), reference[0], atol=1e-9)
