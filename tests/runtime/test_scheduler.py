"""Continuous batching on a real program: streams equal those of the request alone, limits, fairness, no growth."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise

import numpy as np
import psutil
import pytest
from token_streams import random_prompt, result

from strixhlo.errors import StrixhloError
from strixhlo.runtime.batch_engine import BatchEngine
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.numerics import log_softmax
from strixhlo.runtime.requests import Finished, QueueFull, Request, TokenEvent
from strixhlo.runtime.sampling import SamplingParams, sample
from strixhlo.runtime.scheduler import Scheduler

REQUESTS = [
    Request(
        random_prompt(i, length),
        SamplingParams(max_tokens=n, temperature=temperature, seed=i, repetition_penalty=penalty),
    )
    for i, (length, n, temperature, penalty) in enumerate(
        [(3, 20, 0.0, 1.0), (20, 9, 1.0, 1.0), (60, 14, 0.8, 1.2), (1, 25, 1.3, 1.0), (17, 6, 0.0, 1.1), (33, 12, 1, 1)]
    )
]


def alone(engine: BatchEngine) -> list[tuple[list[int], str]]:
    """Each request on a scheduler of its own, whose cache is empty."""
    results = []
    for request in REQUESTS:
        with closing(Scheduler(engine)) as scheduler:
            results.append(result(scheduler.submit(request)))
    return results


def test_a_stream_is_the_same_alone_and_in_any_batch(engine: BatchEngine) -> None:
    expected = alone(engine)
    assert all(reason == "length" for _, reason in expected)
    for seed in range(3):
        choose = random.Random(seed)
        order = choose.sample(range(len(REQUESTS)), len(REQUESTS))
        with closing(Scheduler(engine, parallel=choose.choice([3, 5, 8]))) as scheduler:
            handles = {}
            for i in order:
                handles[i] = scheduler.submit(REQUESTS[i])
                time.sleep(choose.random() * 0.01)
            assert [result(handles[i]) for i in range(len(REQUESTS))] == expected
            assert scheduler.preempted == 0


def test_greedy_steps_fetch_token_ids_alone_and_with_others(
    engine: BatchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    real = engine.program.start
    monkeypatch.setattr(engine.program, "start", lambda *a: (fetched.append(a[3]), real(*a))[1])
    ids, greedy = random_prompt(5, 200), SamplingParams(max_tokens=8)
    sampled = SamplingParams(max_tokens=8, logprobs=0)
    results = []
    for others in ((), (sampled,)):
        with closing(Scheduler(engine)) as scheduler:
            handles = [scheduler.submit(Request(ids, p)) for p in (greedy, *others)]
            results.append([[e.token for e in h.events() if isinstance(e, TokenEvent)] for h in handles])
        assert set(fetched) - {None} == ({"tokens", "logits"} if others else {"tokens"})
    assert results[0][0] == results[1][0] and len(results[0][0]) == 8  # by ids or by logits: the same tokens


def test_a_full_pool_preempts_and_all_end(engine: BatchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "blocks", 6)
    monkeypatch.setattr(engine, "context", 96)
    with closing(Scheduler(engine)) as scheduler:
        handles = [scheduler.submit(Request(random_prompt(i, 20), SamplingParams(max_tokens=50))) for i in range(5)]
        assert [(len(tokens), reason) for tokens, reason in map(result, handles)] == [(50, "length")] * 5
        assert scheduler.preempted > 0
        assert scheduler.pool.in_use == 0


def test_a_prompt_is_scored_whatever_the_cache_holds(engine: BatchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probabilities of the prompt's own tokens, also of sequences that are preempted and computed again."""
    prompts = [random_prompt(i, length) for i, length in enumerate((50, 60, 150))]  # the last in more than one chunk
    with closing(Engine(engine.program)) as alone:
        rows = [(alone.reset(), log_softmax(alone.score(ids)))[1] for ids in prompts]
    monkeypatch.setattr(engine, "blocks", 12)
    with closing(Scheduler(engine)) as scheduler:
        plain = scheduler.submit(Request(prompts[0], SamplingParams(max_tokens=1)))
        handles = [scheduler.submit(Request(ids, SamplingParams(max_tokens=40), prompt_logprobs=2)) for ids in prompts]
        assert all(result(h)[1] == "length" for h in (plain, *handles))
        assert scheduler.preempted > 0 and plain.prompt_scores == []
    for handle, ids, expected in zip(handles, prompts, rows, strict=True):
        assert [e.token for e in handle.prompt_scores] == [*ids[1:]]
        for event, row in zip(handle.prompt_scores, expected, strict=False):
            assert event.logprob == pytest.approx(row[event.token], abs=1e-3)
            assert event.top_logprobs[0][1] == pytest.approx(row.max(), abs=1e-3) and len(event.top_logprobs) == 2


def test_forty_turns_prefill_only_what_is_new(engine: BatchEngine) -> None:
    with closing(Scheduler(engine)) as scheduler:
        conversation: list[int] = []
        for turn in range(40):
            conversation += random_prompt(turn, 3)
            before = scheduler.computed
            tokens, _ = result(scheduler.submit(Request(tuple(conversation), SamplingParams(max_tokens=3))))
            # What is new, and the part of a block that was not full.
            assert scheduler.computed - before <= 3 + 1 + engine.block_size
            conversation += tokens


def test_a_long_prompt_holds_others_up_by_one_chunk(engine: BatchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("prefill", "start"):
        real: Callable = getattr(engine, name)
        monkeypatch.setattr(engine, name, lambda *a, real=real, name=name: (calls.append(name), real(*a))[1])
    monkeypatch.setattr(engine, "_chunks", engine._chunks[:1])
    with closing(Scheduler(engine)) as scheduler:
        first = scheduler.submit(Request(random_prompt(1, 4), SamplingParams(max_tokens=60)))
        events = first.events()
        next(events)
        long = scheduler.submit(Request(random_prompt(2, 160), SamplingParams(max_tokens=1)))
        result(long)
        first.cancel()
        assert isinstance(list(events)[-1], Finished)
    assert calls.count("prefill") == 11
    pairs = list(pairwise(calls[1:]))
    assert ("prefill", "prefill") not in pairs


def test_queue_limit_cancel_and_close(engine: BatchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    start = engine.start  # so slow that nothing ends before it is cancelled
    monkeypatch.setattr(engine, "start", lambda *a: (time.sleep(0.05), start(*a))[1])
    scheduler = Scheduler(engine, parallel=1, queue_size=1)
    running = scheduler.submit(Request(random_prompt(1, 4), SamplingParams(max_tokens=200)))
    assert isinstance(next(running.events()), TokenEvent)
    waiting = scheduler.submit(Request(random_prompt(2, 4), SamplingParams(max_tokens=200)))
    with pytest.raises(QueueFull):
        scheduler.submit(Request(random_prompt(3, 4), SamplingParams()))
    waiting.cancel()
    assert result(waiting) == ([], "cancelled")
    last = scheduler.submit(Request(random_prompt(3, 4), SamplingParams(max_tokens=200)))
    closer = threading.Thread(target=scheduler.close)
    closer.start()
    assert result(running)[1] == "cancelled"
    assert result(last)[1] == "cancelled"
    closer.join(60)
    assert scheduler.pool.in_use == 0
    with pytest.raises(StrixhloError, match="shutting down"):
        scheduler.submit(Request((1,), SamplingParams()))


def test_bad_prompts_and_failures_end_one_request(engine: BatchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(logits: np.ndarray, params: SamplingParams, rng: np.random.Generator) -> int:
        if params.temperature == 0.125:
            raise StrixhloError("planted")
        return sample(logits, params, rng)

    monkeypatch.setattr("strixhlo.runtime.scheduler.sample", failing)
    with closing(Scheduler(engine)) as scheduler:
        for ids in ((), (320,), (1,) * 257):
            with pytest.raises(StrixhloError):
                scheduler.submit(Request(ids, SamplingParams()))
        with pytest.raises(StrixhloError, match="logit_bias names token 5000; the vocabulary has 320"):
            scheduler.submit(Request((1, 2), SamplingParams(logit_bias={5000: 1.0})))
        good = scheduler.submit(Request((1, 2), SamplingParams(max_tokens=5)))
        bad = scheduler.submit(Request((1, 2), SamplingParams(temperature=0.125)))
        assert list(bad.events())[-1] == Finished("error", "planted")
        assert result(good)[1] == "length"


class FakeEngine:
    """Zero logits at once: what grows is the scheduler's own. Half of the layers have a window."""

    block_size, blocks, context, vocab_size, windows, queues = 4, 40, 64, 8, (0, 8), False

    def check_prompt(self, tokens: tuple[int, ...]) -> None:
        assert tokens

    def chunk_rows(self, left: int) -> int:
        return min(left, 8)

    def prefill(self, tokens: list[int], start: int, blocks: list[list[int]], fetch: str) -> np.ndarray:
        for own, window in zip(blocks, self.windows, strict=True):
            assert len(own) * 4 >= start + len(tokens)
            assert -1 not in own[max(0, (start - window + 1) // 4) if window else 0 :]
        return np.zeros(8, np.float32) if fetch == "logits" else np.array(0)

    def decode(
        self, tokens: list[int], positions: list[int], blocks: list[list[list[int]]], fetch: str
    ) -> list[np.ndarray]:
        assert all(len(own) * 4 > p for p, b in zip(positions, blocks, strict=True) for own in b)
        return [np.zeros(8, np.float32) if fetch == "logits" else np.array(0) for _ in tokens]


def test_no_growth_over_ten_thousand_requests() -> None:
    choose = random.Random(0)
    process, sizes = psutil.Process(), []
    with closing(Scheduler(FakeEngine(), parallel=8)) as scheduler:  # type: ignore[arg-type]
        for batch in range(250):
            handles = []
            for _ in range(40):
                ids = tuple(choose.randrange(8) for _ in range(choose.randrange(1, 30)))
                handles.append(scheduler.submit(Request(ids, SamplingParams(max_tokens=choose.randrange(1, 6)))))
            for handle in choose.sample(handles, 5):
                handle.cancel()
            assert {result(h)[1] for h in handles} <= {"length", "cancelled"}
            if batch in (50, 249):
                sizes.append(process.memory_info().rss)
        while scheduler.state() != ([], 0):
            time.sleep(0.001)
        assert scheduler.pool.in_use == 0
        assert scheduler.pool.cached <= 40
        assert len(scheduler.pool._texts) <= 40
        assert len(scheduler.pool._owner) <= 40
    assert sizes[1] < sizes[0] * 1.05


def test_no_growth_over_ten_thousand_requests_on_a_real_program(engine: BatchEngine) -> None:
    """The same with IREE's buffers: prompts that are new, that the cache has, and that are cancelled."""
    choose = random.Random(0)
    process, sizes = psutil.Process(), []
    with closing(Scheduler(engine, parallel=8, queue_size=100)) as scheduler:
        for batch in range(100):
            handles = []
            for _ in range(100):
                ids = random_prompt(choose.randrange(400), choose.choice([1, 2, 4, 40]))
                handles.append(scheduler.submit(Request(ids, SamplingParams(max_tokens=choose.choice([1, 1, 1, 2])))))
            handles[0].cancel()
            assert {result(h)[1] for h in handles} <= {"length", "cancelled"}
            if batch in (20, 99):
                sizes.append(process.memory_info().rss)
        assert scheduler.pool.in_use == 0 and 0 < scheduler.pool.cached <= engine.blocks
    assert sizes[1] < sizes[0] * 1.02


def test_block_tables_are_sent_when_they_change(engine: BatchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    real = engine.program.send
    monkeypatch.setattr(engine.program, "send", lambda e, spec, a: (sent.append(spec.name), real(e, spec, a))[1])
    with closing(BatchEngine(engine.program)) as fresh, closing(Scheduler(fresh)) as scheduler:
        tokens, _ = result(scheduler.submit(Request(random_prompt(7, 4), SamplingParams(max_tokens=60))))
    assert len(tokens) == 60 and sent.count("positions") == 59
    assert sent.count("block_table") == 1 + 4  # of the prompt, and one a block: 63 positions in blocks of 16


def test_equal_prompts_at_the_same_time_are_computed_once(engine: BatchEngine) -> None:
    """As the choices of one request come: what one has computed, the others take, chunk by chunk."""
    ids = random_prompt(5, 100)
    with closing(Scheduler(engine, parallel=4)) as scheduler:
        handles = [scheduler.submit(Request(ids, SamplingParams(max_tokens=3))) for _ in range(4)]
        streams = [result(h)[0] for h in handles]
        alone = result(scheduler.submit(Request(ids, SamplingParams(max_tokens=3))))[0]
        assert scheduler.computed < 2 * len(ids)
    assert streams == [alone] * 4


def test_free_slots_are_not_the_queue(engine: BatchEngine) -> None:
    with closing(Scheduler(engine, parallel=4, queue_size=1)) as scheduler:
        handles = [scheduler.submit(Request(random_prompt(i, 4), SamplingParams(max_tokens=2))) for i in range(4)]
        assert [len(result(h)[0]) for h in handles] == [2] * 4
