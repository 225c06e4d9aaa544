"""Speculative decoding: the same streams as without, drafts that are right, and only where they help."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel

from strixhlo.bundle import Bundle
from strixhlo.errors import StrixhloError
from strixhlo.runtime.batch_engine import BatchEngine
from strixhlo.runtime.draft_model import DraftModel, check_same_tokens
from strixhlo.runtime.program import Program
from strixhlo.runtime.prompt_lookup import PromptLookup
from strixhlo.runtime.requests import Finished, Handle, Request
from strixhlo.runtime.sampling import SamplingParams
from strixhlo.runtime.scheduler import Scheduler
from strixhlo.runtime.speculation import FIRST_RATE, Candidate, Drafts, Speculation, StepTimes, plan


@pytest.fixture(scope="module")
def engines(tiny: Bundle) -> Iterator[tuple[BatchEngine, BatchEngine]]:
    """A model, and itself once more as its draft model."""
    with (
        Program(tiny, "cpu", 2) as program,
        closing(BatchEngine(program)) as engine,
        closing(BatchEngine(program)) as draft,
    ):
        yield engine, draft


class Guesses:
    """Drafts that are right, wrong, or too many, by chance; where the truth is known."""

    rest = 0

    def __init__(self, truth: dict[int, list[int]], seed: int) -> None:
        self._truth, self._random = truth, random.Random(seed)

    def offer(self, _ids: Sequence[int]) -> int:
        return self._random.choice([0, 1, 3, 9])

    def propose(self, ids: Sequence[int], count: int, _choose: object) -> list[int]:
        known = self._truth[ids[0]][len(ids) :][:count]
        return [t if self._random.random() < 0.8 else (t + 1) % 320 for t in known]

    def close(self) -> None:
        pass


def prompt(i: int, length: int) -> tuple[int, ...]:
    return (i, *(int(t) for t in np.random.default_rng(i).integers(0, 320, length - 1)))


REQUESTS = [
    Request(
        prompt(i, length),
        SamplingParams(
            max_tokens=n,
            temperature=temperature,
            seed=i,
            logprobs=logprobs,
            repetition_penalty=penalty,
            logit_bias=bias,
        ),
    )
    for i, (length, n, temperature, logprobs, penalty, bias) in enumerate(
        [
            (3, 40, 0.0, None, 1.0, {}),
            (20, 19, 1.0, 2, 1.0, {}),
            (60, 34, 0.8, None, 1.2, {}),
            (1, 45, 1.3, None, 1.0, {7: 3.0}),
            (17, 16, 0.0, 3, 1.1, {}),
            (250, 20, 1.0, None, 1.0, {}),  # up to the end of the context
        ]
    )
]


def stream(handle: Handle) -> list:
    events = list(handle.events())
    assert isinstance(events[-1], Finished) and events[-1].reason == "length"
    return events


@pytest.fixture(scope="module")
def expected(engines: tuple[BatchEngine, BatchEngine]) -> list[list]:
    """Each request alone, without speculation."""
    results = []
    for request in REQUESTS:
        with closing(Scheduler(engines[0])) as scheduler:
            results.append(stream(scheduler.submit(request)))
    return results


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_streams_are_the_same_whatever_is_drafted(
    engines: tuple[BatchEngine, BatchEngine], expected: list[list], seed: int
) -> None:
    truth = {
        r.token_ids[0]: [*r.token_ids, *(e.token for e in s[:-1])] for r, s in zip(REQUESTS, expected, strict=True)
    }
    speculation = Speculation(lambda: Guesses(truth, seed), adaptive=False)
    with closing(Scheduler(engines[0], parallel=[1, 3, 8][seed], speculation=speculation)) as scheduler:
        handles = [scheduler.submit(r) for r in REQUESTS]
        assert [stream(h) for h in handles] == expected  # log-probabilities too, to the last bit
        assert scheduler.pool.in_use == 0
    assert 0 < speculation.accepted < speculation.drafted


def test_the_same_model_drafts_what_it_then_says(
    engines: tuple[BatchEngine, BatchEngine], expected: list[list]
) -> None:
    engine, small = engines
    drafts = DraftModel(small, engine.vocab_size)
    speculation = Speculation(drafts.begin, adaptive=False)
    for request, events in zip(REQUESTS, expected, strict=True):
        with closing(Scheduler(engine, speculation=speculation)) as scheduler:
            assert stream(scheduler.submit(request)) == events
    # Chunks of another size may have computed a prompt's position: nearly all, for greedy and seeded sampling alike.
    assert speculation.accepted > 0.95 * speculation.drafted > 100
    assert sorted(drafts.free) == list(range(small.blocks))


def test_structured_output_is_the_same(engines: tuple[BatchEngine, BatchEngine]) -> None:
    engine, _ = engines
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({c: i for i, c in enumerate(letters)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    requests = [
        Request(
            (5, 6), SamplingParams(temperature=1.0, seed=3, max_tokens=60, regex="([ab]{3},){8}"), frozenset({256})
        ),
        Request((5, 6), SamplingParams(max_tokens=60, json_schema={"enum": ["aaaa", "bb"]}), frozenset({256})),
    ]
    results: list[list[list]] = []
    truth: dict[int, list[int]] = {}
    speculation = Speculation(lambda: Guesses(truth, 4), adaptive=False)
    for guesses in (None, speculation):
        with closing(Scheduler(engine, tokenizer, eos_ids=[256], speculation=guesses)) as scheduler:
            results.append([list(scheduler.submit(r).events()) for r in requests])
        truth[5] = [5, 6, *(e.token for e in results[0][0][:-1])]
    assert results[0] == results[1] and [r[-1].reason for r in results[0]] == ["eos", "eos"]
    assert 0 < speculation.accepted < speculation.drafted


def test_drafts_never_preempt(engines: tuple[BatchEngine, BatchEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = engines
    monkeypatch.setattr(engine, "blocks", 6)
    monkeypatch.setattr(engine, "context", 96)
    request = Request(prompt(3, 20), SamplingParams(max_tokens=70))
    alone = []
    for speculation in (None, Speculation(PromptLookup, adaptive=False)):
        with closing(Scheduler(engine, speculation=speculation)) as scheduler:
            alone.append(stream(scheduler.submit(request)))
            handles = [scheduler.submit(Request(prompt(i, 20), SamplingParams(max_tokens=40))) for i in range(4)]
            assert [len(stream(h)) for h in handles] == [41] * 4
            assert scheduler.pool.in_use == 0
    assert alone[0] == alone[1]


def test_lookup_finds_what_followed() -> None:
    lookup = PromptLookup()
    assert lookup.offer([1, 2, 3]) == 0
    ids = [1, 2, 3, 9, 8, 7, 1, 2, 3]
    assert lookup.offer(ids) > 0
    assert lookup.propose(ids, 4) == [9, 8, 7, 1]
    assert lookup.propose(ids, 8) == [9, 8, 7, 1, 2, 3, 9, 8]  # the repetition goes on
    ids += [5]
    assert lookup.offer(ids) == 0
    ids += [1, 2, 3]
    assert lookup.offer(ids) and lookup.propose(ids, 2) == [5, 1]  # the latest place


def brute_force_plan(rates: list[float], offers: list[int], sizes: list[int], cost: Callable[[int], float]) -> float:
    best = 0.0
    counts: list[list[int]] = [[]]
    for offer in offers:
        counts = [[*c, k] for c in counts for k in range(offer + 1)]
    for c in counts:
        rows = len(rates) + sum(c)
        if rows <= sizes[-1]:
            tokens = sum(1 + sum(r**j for j in range(1, k + 1)) for r, k in zip(rates, c, strict=True))
            best = max(best, tokens / cost(next(s for s in sizes if s >= rows)))
    return best


def test_plan_is_the_best_there_is() -> None:
    choose = random.Random(1)
    sizes = [1, 2, 4, 8]
    for _ in range(200):
        n = choose.randrange(1, 4)
        rates = [choose.random() for _ in range(n)]
        offers = [choose.choice([0, 1, 3, 7]) for _ in range(n)]
        times = {1: 1.0, 2: 1 + choose.random(), 4: 2 + choose.random(), 8: 3 + 2 * choose.random()}
        counts = plan(rates, offers, sizes, times.__getitem__, 0.0)
        rows = n + sum(counts)
        assert all(c <= o for c, o in zip(counts, offers, strict=True)) and rows <= 8
        tokens = sum(1 + sum(r**j for j in range(1, k + 1)) for r, k in zip(rates, counts, strict=True))
        speed = tokens / times[next(s for s in sizes if s >= rows)]
        assert speed == pytest.approx(brute_force_plan(rates, offers, sizes, times.__getitem__))
    assert plan([0.9] * 9, [7] * 9, sizes, lambda _: 1.0, 0.0) == [0] * 9  # no rows are left
    assert plan([0.9], [7], sizes, lambda _: 1.0, 10.0) == [0]  # drafts that cost more than they give


def test_wrong_drafts_end_and_are_tried_again() -> None:
    drafts, times = Drafts(PromptLookup()), StepTimes()
    for rows, seconds in ((1, 1.0), (2, 1.3), (4, 1.7), (8, 2.4)):
        times.observe(rows, seconds)
    counts = []
    for _ in range(400):
        (count,) = plan([drafts.rate], [7], [1, 2, 4, 8], times.expected, 0.0)
        drafts.checked(count, 0)
        if not count:
            drafts.rate += 0.01 * (FIRST_RATE - drafts.rate)
        counts.append(count)
    assert counts[0] == 1  # 1.5 tokens in 1.3 s
    assert sum(c > 0 for c in counts[20:]) < 0.1 * 380  # off, but for a try now and then
    assert any(counts[200:])
    for _ in range(30):
        drafts.checked(7, 7)
    assert plan([drafts.rate], [7], [1, 2, 4, 8], times.expected, 0.0) == [7]


class Wrong:
    """A draft model that is never right, and counts how often it has to read along."""

    rest = 20

    def __init__(self) -> None:
        self.asked = 0

    def offer(self, _ids: Sequence[int]) -> int:
        self.asked += 1
        return 7

    def propose(self, _ids: Sequence[int], count: int, _choose: object) -> list[int]:
        return [0] * count

    def close(self) -> None:
        pass


def test_a_draft_model_that_does_not_help_rests() -> None:
    wrong, sizes = Wrong(), [1, 2, 4, 8]
    speculation = Speculation(lambda: wrong)
    drafts = speculation.new()
    drafted = []
    for _ in range(1000):
        (draft,) = speculation.propose([Candidate([1], 100, drafts, lambda _logits, _drafted: 0)], sizes)
        speculation.stepped(1 + len(draft), sizes, 1.0 + 0.6 * len(draft))
        if draft:
            speculation.checked(drafts, len(draft), 0)
        drafted.append(len(draft))
    assert drafted[0] > 0 and any(drafted[500:])  # tried at first, and again
    assert wrong.asked < 150 and sum(n > 0 for n in drafted[100:]) < 60


def test_times_are_averages_and_are_forgotten() -> None:
    times = StepTimes()
    assert times.expected(1) < times.expected(8) < 2
    times.observe(1, 2.0)
    assert 2.0 < times.expected(8) < 3.0
    times.observe(8, 50.0)  # a hiccup
    assert times.expected(8) == 50.0
    for _ in range(300):
        times.observe(1, 2.0)
    assert times.expected(8) < 3.0


def test_a_draft_model_must_have_the_same_tokens() -> None:
    one, other = (Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, "a")) for words in ("abc", "acb"))
    check_same_tokens(one, one)
    with pytest.raises(StrixhloError, match="another vocabulary"):
        check_same_tokens(one, other)
