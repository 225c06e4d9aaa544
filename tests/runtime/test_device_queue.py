"""Programs whose entries return before the device is done: the same numbers, and steps that are started ahead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from token_streams import random_prompt, result

from strixhlo.bundle import Bundle
from strixhlo.errors import StrixhloError
from strixhlo.runtime.batch_engine import BatchEngine, Step
from strixhlo.runtime.device_queue import SLOTS
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program, read_build
from strixhlo.runtime.requests import Request
from strixhlo.runtime.sampling import SamplingParams
from strixhlo.runtime.scheduler import Scheduler


@pytest.fixture
def ahead(queued_tiny: Bundle) -> Iterator[BatchEngine]:
    """An engine of its own."""
    with Program(queued_tiny, "cpu", 2) as program, closing(BatchEngine(program)) as engine:
        yield engine


def test_all_outputs_are_those_of_calls_that_wait(tiny: Bundle, queued_tiny: Bundle) -> None:
    found = []
    for bundle in (tiny, queued_tiny):
        with Program(bundle, "cpu", 1) as program, closing(Engine(program)) as engine:
            assert program.queues == (bundle is queued_tiny)
            logits = [engine.prefill(random_prompt(0, 70)), *(engine.decode(t) for t in (3, 1, 4))]
            logits += [*engine.score([5, 9, 2]), np.float32(engine.decode_greedy(6))]
            host = (np.array([7], np.int32), np.array([engine.length], np.int32), engine._table("decode_1"))
            everything, pools = program.call_for_all("decode_1", host, engine._pools)
            found.append([*logits, *everything.values()])
            del pools
    for called, queued in zip(*found, strict=True):
        np.testing.assert_array_equal(queued, called)


def test_the_report_counts_the_storage_that_is_given(tiny: Bundle, queued_tiny: Bundle) -> None:
    called, queued = (read_build(bundle, "cpu").report["entries"] for bundle in (tiny, queued_tiny))
    assert called.keys() == queued.keys()
    for name, entry in queued.items():
        assert entry["host_waits"] == entry["unknown_sizes"] == 0 and called[name]["host_waits"] == 1
        assert entry["dispatches"] == called[name]["dispatches"]
        both = called[name]["transient_bytes"] + called[name]["result_bytes"]  # logits are copied out of temporaries
        assert called[name]["transient_bytes"] <= entry["transient_bytes"] <= both
        assert 0 <= called[name]["result_bytes"] - entry["result_bytes"] < 256  # those are each at a multiple of 64


def test_a_step_takes_the_tokens_of_the_last_one_of_its_entry_on_the_device(ahead: BatchEngine) -> None:
    kv = ahead.program.kv_cache
    rows, other = [kv.own_table(32, i) for i in range(2)], kv.own_table(64, 2)
    first = [5, 17]
    expected = [first]
    for position in range(12):
        expected.append([int(t) for t in ahead.decode(expected[-1], [position] * 2, rows, "tokens")])
    steps, found = [ahead.start(first, [0, 0], rows, "tokens")], []
    for position in range(1, 12):
        if position % 3 == 0:  # another entry gives tokens too
            ahead.prefill(random_prompt(position, 12), 0, other, "tokens")
        steps.append(ahead.start(steps[-1], [position] * 2, rows, "tokens"))
        if len(steps) == SLOTS:
            found.append([int(t) for t in steps.pop(0).read()])
    assert [*found, *([int(t) for t in step.read()] for step in steps)] == expected[1:]
    with pytest.raises(ValueError, match="another number of rows"):
        ahead.start(steps[-1], [12], rows[:1], "tokens")


def test_a_call_that_fails_leaves_the_queue_whole(ahead: BatchEngine) -> None:
    blocks = [ahead.program.kv_cache.own_table(16)]
    (before,) = ahead.decode([5], [0], blocks)
    pools, ahead._pools = ahead._pools, [ahead._pools[0]]
    with pytest.raises(ValueError, match="takes 5 arguments, not 4"):
        ahead.decode([5], [0], blocks)
    spec = ahead.program.kv_cache.pools()[0]
    ahead._pools = [pools[0], ahead.program.device.empty(spec.model_copy(update={"shape": (1, *spec.shape[1:])}))]
    with pytest.raises(StrixhloError, match="decode_1 failed on the device"):
        ahead.decode([5], [0], blocks)
    ahead._pools = pools
    np.testing.assert_array_equal(ahead.decode([5], [0], blocks)[0], before)
    with pytest.raises(ValueError, match="tokens is int64"):
        ahead.program.send(
            "decode_1", ahead.program.bundle.manifest.entry_points["decode_1"].inputs[0], np.zeros(1, int)
        )


def test_who_waits_has_the_queue_looked_at_again(ahead: BatchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    signalled: list[int] = []

    class Nudge:
        def signal(self, value: int) -> None:
            signalled.append(value)

    class Late:
        def query(self) -> int:
            return len(signalled) // 3

    queue = ahead.program._queue
    assert queue
    with monkeypatch.context() as patch:
        patch.setattr(queue, "_nudge", Nudge())
        patch.setattr(queue, "_nudges", 0)
        patch.setattr(queue, "_semaphore", Late())
        queue.wait(2)
    assert signalled == [1, 2, 3, 4, 5, 6]


def test_greedy_steps_are_started_before_the_last_token_was_read(
    ahead: BatchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[str] = []
    start = ahead.start
    monkeypatch.setattr(ahead, "start", lambda *a: (kinds.append(type(a[0]).__name__), start(*a))[1])
    params = SamplingParams(max_tokens=30)
    with closing(Scheduler(ahead)) as scheduler:
        result(scheduler.submit(Request(random_prompt(1, 5), params)))
        assert kinds.count(Step.__name__) == 28 and len(kinds) == 29  # the prompt gives the first token
        kinds.clear()
        sampled = SamplingParams(max_tokens=30, temperature=1.0, seed=1)
        result(scheduler.submit(Request(random_prompt(2, 5), sampled)))
        assert Step.__name__ not in kinds


def test_what_ends_with_a_step_under_way_leaves_the_others_as_they_are(ahead: BatchEngine) -> None:
    prompts = [random_prompt(i, 5 + i) for i in range(3)]
    params = SamplingParams(max_tokens=40)
    with closing(Scheduler(ahead)) as scheduler:
        alone = [result(scheduler.submit(Request(p, params)))[0] for p in prompts]
        ends = frozenset({alone[1][17]})  # one ends in the middle, one by its number of tokens
        expected = alone[1][: alone[1].index(alone[1][17]) + 1]
        handles = [scheduler.submit(Request(p, params, ends if i == 1 else frozenset())) for i, p in enumerate(prompts)]
        short = scheduler.submit(Request(prompts[0], SamplingParams(max_tokens=9)))
        streams = [result(h) for h in handles]
        assert result(short) == (alone[0][:9], "length")
        assert [s[0] for s in streams] == [alone[0], expected, alone[2]] and streams[1][1] == "eos"
        again = [result(scheduler.submit(Request(p, params)))[0] for p in prompts]  # blocks that were given back
    assert again == alone
