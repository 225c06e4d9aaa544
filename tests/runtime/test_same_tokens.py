"""Where chunking, prefix reuse or preemption change the order of sums: the same logits within a stated tolerance (see
docs/scheduling.md), and the same tokens up to a gap of the two best logits below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np
import pytest
from token_streams import random_prompt, stream
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel

from strixhlo.bundle import Bundle
from strixhlo.runtime.batch_engine import BatchEngine
from strixhlo.runtime.program import Program
from strixhlo.runtime.requests import Request
from strixhlo.runtime.sampling import SamplingParams
from strixhlo.runtime.scheduler import Scheduler

TOLERANCE = {"f32": 1e-4, "int8": 0.05}  # of the largest logit, by the type of activations


def in_chunks(engine: BatchEngine, ids: Sequence[int], chunk: int) -> np.ndarray:
    """Logits after ids that are computed so many at a time."""
    blocks = [[*range(-(-len(ids) // engine.block_size))]]
    logits = np.empty(0)
    for start in range(0, len(ids), chunk):
        logits = engine.prefill(ids[start : start + chunk], start, blocks)
    return logits


def assert_same_up_to_ties(engine: BatchEngine, ids: Sequence[int], got: Sequence[int], wanted: Sequence[int]) -> None:
    """Greedy tokens after ids: equal, or different first where the two best logits are nearly one."""
    if list(got) == list(wanted):
        return
    first = next(i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b)
    logits = in_chunks(engine, [*ids, *wanted[:first]], 16)
    best = np.sort(logits)[-2:]
    assert best[1] - best[0] < 2 * TOLERANCE["f32"] * np.abs(logits).max(), (first, best)


def test_chunks_of_any_size_give_the_same_logits(engine: BatchEngine) -> None:
    ids = random_prompt(1, 120)
    whole = in_chunks(engine, ids, 120)
    differ = [np.abs(in_chunks(engine, ids, size) - whole).max() / np.abs(whole).max() for size in (1, 8, 15, 60)]
    assert max(differ) < TOLERANCE["f32"], differ


def test_chunks_with_8_bit_activations(smollm2: Callable[[str], Bundle]) -> None:
    """A last bit more or less can round an activation to its neighbour."""
    with Program(smollm2("int8"), "cpu", 2) as program, closing(BatchEngine(program)) as engine:
        ids = [int(i) for i in np.random.default_rng(2).integers(0, 49000, 60)]
        whole, pieces = in_chunks(engine, ids, 60), in_chunks(engine, ids, 16)
    assert np.abs(pieces - whole).max() < TOLERANCE["int8"] * np.abs(whole).max()


def test_a_reused_prefix_gives_the_same_tokens(engine: BatchEngine) -> None:
    """Requests that share a beginning, one after the other in one cache, and each in an empty one."""
    shared = random_prompt(3, 70)
    requests = [Request((*shared, *random_prompt(10 + i, 5 + i)), SamplingParams(max_tokens=20)) for i in range(4)]
    with closing(Scheduler(engine)) as scheduler:
        got = [stream(scheduler.submit(request)) for request in requests]
        assert scheduler.reused >= 3 * 64
    for request, ours in zip(requests, got, strict=True):
        with closing(Scheduler(engine)) as scheduler:
            theirs = stream(scheduler.submit(request))
        assert_same_up_to_ties(engine, request.token_ids, ours, theirs)


def test_a_preempted_sequence_gives_the_same_tokens(engine: BatchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [Request(random_prompt(20 + i, 20), SamplingParams(max_tokens=50)) for i in range(4)]
    wanted = []
    for request in requests:
        with closing(Scheduler(engine)) as scheduler:
            wanted.append(stream(scheduler.submit(request)))
    monkeypatch.setattr(engine, "blocks", 6)
    monkeypatch.setattr(engine, "context", 96)
    with closing(Scheduler(engine)) as scheduler:
        handles = [scheduler.submit(request) for request in requests]
        got = [stream(handle) for handle in handles]
        assert scheduler.preempted > 0
    for request, ours, theirs in zip(requests, got, wanted, strict=True):
        assert_same_up_to_ties(engine, request.token_ids, ours, theirs)


def letters_and_pairs() -> tuple[Tokenizer, dict[str, int]]:
    """320 tokens: letters, and pairs of letters."""
    letters = "abcdefghijklmnopq"
    words = [*letters, *(a + b for a in letters for b in letters)]
    vocabulary = {word: i for i, word in enumerate([*words, *(f"aa{c}" for c in letters)][:320])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="a"))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, vocabulary


def test_forty_turns_of_a_client_that_renders_the_answers_again(engine: BatchEngine) -> None:
    """What was generated comes back letter by letter, in other tokens: its blocks are found, and only what is new is
    computed; the ids in the pool stay those that were generated."""
    tokenizer, vocabulary = letters_and_pairs()
    texts = {i: text for text, i in vocabulary.items()}
    with closing(Scheduler(engine, tokenizer)) as scheduler:
        conversation: list[int] = []
        again = 0
        for turn in range(40):
            new = [i % 17 for i in random_prompt(turn, 2)]
            conversation += new
            before = scheduler.computed
            answer = stream(scheduler.submit(Request(tuple(conversation), SamplingParams(max_tokens=2))))
            # What is new, what was generated last, and the part of a block that was not full.
            assert scheduler.computed - before <= len(new) + 3 * 2 + engine.block_size
            rendered = [vocabulary[letter] for i in answer for letter in texts[i]]
            again += rendered != answer
            conversation += rendered
        assert again > 20


def test_prompts_take_turns_and_a_short_one_is_not_held_up(
    engine: BatchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int] = []
    real = engine.prefill
    monkeypatch.setattr(engine, "_chunks", engine._chunks[:1])
    monkeypatch.setattr(engine, "prefill", lambda ids, *a: (order.append(ids[0]), real(ids, *a))[1])
    with closing(Scheduler(engine)) as scheduler:
        blocker = scheduler.submit(Request((9,) * 60, SamplingParams(max_tokens=1)))
        prompts = [(1,) * 60, (2,) * 60, (3,) * 10]
        handles = [scheduler.submit(Request(ids, SamplingParams(max_tokens=1))) for ids in prompts]
        for handle in (blocker, *handles):
            stream(handle)
    shared = [i for i in order if i != 9]
    assert shared[: shared.index(3) + 1] in ([1, 2, 3], [2, 1, 3], [1, 2, 1, 3])  # one chunk of each comes before it
    longer = [i for i in shared if i != 3]
    assert max(abs(longer[:n].count(1) - longer[:n].count(2)) for n in range(len(longer))) <= 1
