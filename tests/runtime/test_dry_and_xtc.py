"""DRY and XTC against direct statements of their definitions, and their seeded streams in a batch."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from strixhlo.bundle import Bundle
from strixhlo.errors import StrixhloError
from strixhlo.runtime.batch_engine import BatchEngine
from strixhlo.runtime.dry import LONGEST, Breakers, repetitions
from strixhlo.runtime.penalties import adjusted
from strixhlo.runtime.program import Program
from strixhlo.runtime.requests import Request, TokenEvent
from strixhlo.runtime.sampling import SamplingParams, distribution, sample, step_rng
from strixhlo.runtime.scheduler import Scheduler
from strixhlo.runtime.token_bytes import CanonicalBytes


def dry_reference(ids: list[int], breaks: set[int]) -> dict[int, int]:
    """By the words of the definition: for each place, the longest common end of the text and of what is before it."""
    longest: dict[int, int] = {}
    for place in range(1, len(ids)):
        token, n = ids[place], 0
        while (
            n < LONGEST and n < place and ids[place - 1 - n] == ids[-1 - n] and ids[-1 - n] not in breaks
        ):  # the text may overlap itself
            n += 1
        if n and token not in breaks:
            longest[token] = max(longest.get(token, 0), n)
    return longest


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 3), max_size=70), breaks=st.sets(st.integers(0, 3), max_size=2))
def test_repetitions_are_the_definition(ids: list[int], breaks: set[int]) -> None:
    mask = np.array([i in breaks for i in range(4)])
    assert repetitions(ids, mask) == dry_reference(ids, breaks)


def test_a_long_repetition_is_bounded() -> None:
    assert repetitions([1] * 500, np.zeros(2, bool)) == {1: LONGEST}


def test_dry_subtracts_the_power_of_the_length() -> None:
    logits = np.zeros(8, np.float32)
    params = SamplingParams(dry_multiplier=0.8, dry_base=2.0, dry_allowed_length=2)
    # 1 2 3 4 ... 1 2 3: after the three, 4 would be the fourth. After 3 alone, 5 once stood: shorter than allowed.
    result = adjusted(logits, params, [1, 2, 3, 4, 3, 5], [1, 2, 3])
    expected = np.zeros(8, np.float32)
    expected[4] = -0.8 * 2.0 ** (3 - 2)
    np.testing.assert_allclose(result, expected)
    assert not logits.any()


def test_breakers_are_tokens_that_contain_one() -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {c: i for i, c in enumerate(letters)}
    vocabulary |= {"a:": 256, "Ċa": 257, "ab": 258}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<:>"])
    mask = Breakers(CanonicalBytes(tokenizer, 260)).mask((":", "\n"))
    assert set(np.flatnonzero(mask).tolist()) == {vocabulary[":"], vocabulary["Ċ"], 256, 257}
    breakers = Breakers(CanonicalBytes(tokenizer, 260))
    assert not breakers.mask(("ba", "é")).any() and set(np.flatnonzero(breakers.mask(("ab", "a:")))) == {256, 258}
    with pytest.raises(StrixhloError, match="more than 32"):
        SamplingParams(dry_sequence_breakers=("a",) * 33)
    params = SamplingParams(dry_multiplier=1.0, dry_allowed_length=1)
    result = adjusted(np.zeros(260, np.float32), params, [1, 256, 2, 3, 1, 256, 2], [], breakers)
    assert result[3] == -1.0  # one token since the breaker, though three repeat


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(
        st.sampled_from([-1.0, 0.0, 0.4, 1.1, 2.0]) | st.integers(-500, 500).map(lambda n: n / 100),
        min_size=1,
        max_size=30,
    ),
    threshold=st.sampled_from([0.0, 0.0123, 0.0987, 0.251, 0.6]),
    top_k=st.sampled_from([0, 5]),
)
def test_xtc_is_the_definition(values: list[float], threshold: float, top_k: int) -> None:
    logits = np.array(values, np.float32)
    params = SamplingParams(temperature=0.7, top_k=top_k, xtc_probability=1.0, xtc_threshold=threshold)
    ids, _ = distribution(logits, SamplingParams(temperature=1.0, top_k=top_k))
    p = np.exp(logits[ids].astype(np.float64))
    p /= p.sum()
    ranked = sorted(range(ids.size), key=lambda i: (-logits[ids[i]], i))
    above = [i for i in ranked if p[i] >= threshold]
    kept = sorted(ids[i] for i in (ranked if len(above) < 2 else ranked[len(above) - 1 :]))
    weights = np.exp(logits[kept].astype(np.float64) / 0.7)
    found, probabilities = distribution(logits, params, exclude=True)
    assert found.tolist() == kept
    np.testing.assert_allclose(probabilities, weights / weights.sum(), rtol=1e-6)


def test_xtc_strikes_as_often_as_it_should() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2])).astype(np.float32)
    params = SamplingParams(temperature=1.0, xtc_probability=0.4, xtc_threshold=0.25)
    counts = Counter(sample(logits, params, step_rng(5, step)) for step in range(4000))
    # Struck: {1: 0.6, 2: 0.4}; else the model's own.
    for token, p in {0: 0.6 * 0.5, 1: 0.6 * 0.3 + 0.4 * 0.6, 2: 0.6 * 0.2 + 0.4 * 0.4}.items():
        assert counts[token] / 4000 == pytest.approx(p, abs=0.03)
    greedy = SamplingParams(xtc_probability=1.0, xtc_threshold=0.1)
    assert sample(logits, greedy, step_rng(0, 0)) == 0


def test_seeded_streams_are_the_same_in_a_batch(tiny: Bundle) -> None:
    extra = {"dry_multiplier": 0.8, "dry_allowed_length": 1, "xtc_probability": 0.5, "xtc_threshold": 0.001}
    requests = [
        Request((5, 6, 7) * n, SamplingParams(temperature=1.0, seed=n, max_tokens=12, **extra)) for n in (1, 3, 6)
    ]

    def tokens(scheduler: Scheduler, *which: Request) -> list[list[int]]:
        handles = [scheduler.submit(r) for r in which]
        return [[e.token for e in h.events() if isinstance(e, TokenEvent)] for h in handles]

    with Program(tiny, "cpu", 2) as program, closing(BatchEngine(program)) as engine:
        alone = []
        for request in requests:
            with closing(Scheduler(engine)) as scheduler:
                alone += tokens(scheduler, request)
        with closing(Scheduler(engine)) as scheduler:
            assert tokens(scheduler, *requests) == alone
