"""Layers with a window free what no one can see: groups of layers, their blocks, and the same logits as without."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing

import numpy as np
import pytest
from family_checkpoints import CASES, VOCAB, random_checkpoint
from token_streams import stream

from strixhlo.bundle import Bundle, KVCache
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.targets import parse_target
from strixhlo.export import export
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.layers.layer_groups import LayerGroups, layer_groups
from strixhlo.progress import Stages
from strixhlo.runtime.batch_engine import BatchEngine
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.kv_cache import GONE, BlockPool, CachedSpan
from strixhlo.runtime.load_plan import load_plans
from strixhlo.runtime.prefix_copy import cached_prefix, insert_prefix
from strixhlo.runtime.program import Program, read_build
from strixhlo.runtime.prompt_lookup import PromptLookup
from strixhlo.runtime.requests import Request
from strixhlo.runtime.sampling import SamplingParams
from strixhlo.runtime.scheduler import Scheduler
from strixhlo.runtime.speculation import Speculation

WINDOW, CONTEXT = 20, 256
ENTRIES = {
    "prefill_16": ("prefill", 16),
    "score_16": ("score", 16),
    "decode_1": ("decode", 1),
    "decode_4": ("decode", 4),
}
QUIET = Stages(lambda _name, _total: None, lambda _bytes: None)
WORDS = [bytes([97 + i]) for i in range(8)]


def ids(seed: int, length: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.random.default_rng(seed).integers(3, VOCAB, length))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Program]]:
    """A Gemma 3 of two layers with a window and one without, with groups of layers, and with all of them in one."""
    folder = tmp_path_factory.mktemp("windows")
    _, kind, changes = CASES["gemma3"]
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    random_checkpoint(kind, changes | {"num_hidden_layers": 3, "layer_types": kinds}, folder / "checkpoint")
    one = LayerGroups(3, (0,), ((0, 0), (0, 1), (0, 2)))
    with ExitStack() as stack:
        made = {}
        for name, group in (("groups", layer_groups), ("one", lambda _windows, _context: one)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(export, "ENTRIES", ENTRIES)
                patch.setattr(export, "layer_groups", group)
                opened = open_checkpoint(str(folder / "checkpoint"))
                bundle = export.export_checkpoint(
                    opened, folder / name, context=CONTEXT, dtype="auto", kv_dtype="f32", progress=QUIET
                )
            compile_bundle(
                bundle, parse_target("cpu"), activations="f32", keep_intermediates=None, say=lambda _text: None
            )
            made[name] = stack.enter_context(Program(bundle, "cpu", 1, plan=plan(bundle, 3)))
        yield made


def plan(bundle: Bundle, parallel: int):
    return load_plans([(bundle, read_build(bundle, "cpu"))], None, None, parallel)[0]


def test_layers_are_dealt_to_groups_of_one_size() -> None:
    gemma3_4b = [0 if i % 6 == 5 else 1024 for i in range(34)]
    groups = layer_groups(gemma3_4b, 32768)
    assert (groups.layers, groups.windows) == (5, (0, *[1024] * 6))  # 29 layers in six groups: one place is empty
    assert len(set(groups.places)) == 34 and groups.places[5] == (0, 0) and groups.places[0] == (1, 0)
    assert layer_groups([4096, 0] * 13, 8192).windows == (0, 4096)
    assert layer_groups([4096, 0] * 13, 4096) == layer_groups([0] * 26, 4096)  # the window is the whole context
    assert layer_groups([512] * 4, 4096) == LayerGroups(4, (512,), tuple((0, i) for i in range(4)))
    assert layer_groups([8] * 7 + [0] * 3, 99).layers == 1


def test_the_size_of_a_cache_with_windows() -> None:
    kv = KVCache(
        dtype="f16", layers=5, rows=1, width=8, block_size=16, blocks=2048, windows=(0, *[1024] * 6), chunk=128
    )
    assert kv.group_blocks(32768) == (2048, *[73] * 6)
    assert kv.rows_for(100) == 7 * 7 * 16  # nothing has left a window
    assert kv.positions_in(kv.rows_for(32768)) == 32768 and kv.positions_in(kv.rows_for(32768) - 1) == 32752
    tables = [kv.own_table(2048, n) for n in range(2)]
    used = [{block for own in table for block in own[:128]} for table in tables]
    assert not used[0] & used[1] and used[0] | used[1] == set(range(2 * kv.rows_for(2048) // 16))


def test_a_ring_of_blocks_gives_the_same_logits(programs: dict[str, Program]) -> None:
    assert programs["groups"].bundle.manifest.kv_cache.windows == (0, WINDOW, WINDOW)
    assert programs["groups"].bundle.manifest.kv_cache.bytes * 2 == programs["one"].bundle.manifest.kv_cache.bytes
    results = []
    for program in programs.values():
        with closing(Engine(program)) as engine:
            rows = [*engine.score(ids(0, 100)), engine.prefill(ids(1, 90)), *(engine.decode(t) for t in ids(2, 60))]
            results.append(np.stack(rows))
    np.testing.assert_array_equal(*results)


def watched(scheduler: Scheduler, engine: BatchEngine, patch: pytest.MonkeyPatch) -> list[int]:
    """Blocks in use at every call."""
    used: list[int] = []
    for name in ("prefill", "decode"):
        real: Callable = getattr(engine, name)
        patch.setattr(engine, name, lambda *a, real=real: (used.append(scheduler.pool.in_use), real(*a))[1])
    return used


def test_blocks_are_freed_as_they_leave_the_window(
    programs: dict[str, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = {}
    most = {}
    for name, program in programs.items():
        with closing(BatchEngine(program)) as engine, closing(Scheduler(engine, parallel=3)) as scheduler:
            with monkeypatch.context() as patch:
                used = watched(scheduler, engine, patch)
                alone = stream(scheduler.submit(Request(ids(3, 100), SamplingParams(max_tokens=150))))
                most[name] = max(used)
            choose, handles = random.Random(1), []
            for i, (length, tokens) in enumerate([(150, 60), (3, 120), (40, 90), (77, 77), (9, 140)]):
                params = SamplingParams(max_tokens=tokens, temperature=0.7 * (i % 2), seed=i)
                handles.append(scheduler.submit(Request(ids(10 + i, length), params)))
                time.sleep(choose.random() * 0.05)
            streams[name] = [alone, *map(stream, handles)]
            assert scheduler.pool.in_use == 0 and scheduler.preempted == 0
    assert streams["groups"] == streams["one"]
    assert most["one"] == 16  # 250 positions
    assert 16 + 2 * 2 <= most["groups"] <= 16 + 2 * 4  # of a third of the layers each


def test_a_conversation_prefills_only_what_is_new(programs: dict[str, Program]) -> None:
    """Also where the blocks of the middle, which no later turn needs, are used again by others."""
    transcripts = {}
    for name, reuse in (("groups", True), ("groups", False)):
        with closing(BatchEngine(programs[name])) as engine, ExitStack() as stack:
            scheduler = stack.enter_context(closing(Scheduler(engine)))
            conversation: list[int] = []
            for turn in range(12):
                conversation += ids(20 + turn, 12)
                if not reuse:  # an empty cache
                    scheduler = stack.enter_context(closing(Scheduler(engine)))
                before = scheduler.computed
                conversation += stream(scheduler.submit(Request(tuple(conversation), SamplingParams(max_tokens=5))))
                if reuse:
                    assert scheduler.computed - before <= 12 + 1 + engine.block_size
                    stream(scheduler.submit(Request(ids(40 + turn, 30), SamplingParams(max_tokens=8))))  # another's
            assert scheduler.pool.in_use == 0
            transcripts[reuse] = conversation
    assert transcripts[True] == transcripts[False]


def test_a_saved_prefix_goes_on_where_it_was(programs: dict[str, Program]) -> None:
    conversation, new = list(ids(60, 90)), list(ids(61, 10))
    with closing(BatchEngine(programs["groups"])) as engine:
        with closing(Scheduler(engine)) as scheduler:
            conversation += stream(scheduler.submit(Request(tuple(conversation), SamplingParams(max_tokens=20))))
            cached, pools = cached_prefix(scheduler, conversation)
            following = Request((*conversation, *new), SamplingParams(max_tokens=20))
            expected = stream(scheduler.submit(following))
        assert len(cached) == 96 and not pools[0][1:, :64].any() and pools[0][0].all(axis=1).all()
        every = [range(engine.blocks)] * 3
        engine.write_blocks(every, [np.full_like(p, 7) for p in engine.read_blocks(every)])
        with closing(Scheduler(engine)) as scheduler:
            assert insert_prefix(scheduler, list(cached), pools) == 96
            assert scheduler.pool.in_use == 0
            assert stream(scheduler.submit(following)) == expected
            assert scheduler.computed == 120 - 96


def grow(pool: BlockPool, tokens: list[int]) -> list[list[int]]:
    """Blocks of a sequence that holds these ids, registered, and freed where they leave their window."""
    blocks: list[list[int]] = [[] for _ in pool.windows]
    chain: CachedSpan | None = None
    for start in range(0, len(tokens), 2):
        for own in blocks:
            block = pool.allocate()
            assert block is not None
            own.append(block)
        chain = pool.register([own[-1] for own in blocks], tokens[start : start + 2], chain)
        for own, window in zip(blocks, pool.windows, strict=True):
            for i in range(pool.first_seen(window, start + 2)):
                pool.release([own[i]])
                own[i] = GONE
    return blocks


def test_a_prefix_needs_only_the_blocks_inside_its_window() -> None:
    tokens = [0, 1, 2, 3, 4, 5, 6, 7]
    pool = BlockPool(12, 2, WORDS, (0, 3))
    blocks = grow(pool, tokens)
    assert blocks[1][:3] == [GONE] * 3 and pool.in_use == 4 + 1
    for own in blocks:
        pool.release(own)
    assert pool.available == 12
    match = pool.match([*tokens, 0], 100)
    assert match.ids == tuple(tokens) and match.blocks == (tuple(blocks[0]), (GONE, GONE, GONE, blocks[1][3]))
    assert pool.in_use == 5
    for own in match.blocks:
        pool.release(own)
    taken = [pool.allocate() for _ in range(7)]  # four were free, then those that left the window first
    assert pool.match([*tokens, 0], 100).ids == tuple(tokens)
    assert pool.match([*tokens[:4], 0], 100).ids == ()  # its window is gone
    assert pool.allocate() is None  # the match holds the rest
    pool.release([b for b in taken if b is not None])


def test_accounts_balance_with_windows_over_random_use() -> None:
    choose = random.Random(0)
    pool, held = BlockPool(40, 2, WORDS, (0, 3, 6)), []
    for _ in range(2000):
        if held and choose.random() < 0.5:
            for own in held.pop(choose.randrange(len(held))):
                pool.release(own)
        elif pool.available > 30:
            held.append(grow(pool, [choose.randrange(2) for _ in range(2 * choose.randrange(1, 8))]))
        else:
            match = pool.match([choose.randrange(2) for _ in range(choose.randrange(1, 16))], 100)
            held.append([list(own) for own in match.blocks])
            for own, window in zip(match.blocks, pool.windows, strict=True):
                assert GONE not in own[pool.first_seen(window, len(match.ids)) :]
        assert pool.in_use == len({b for blocks in held for own in blocks for b in own if b != GONE})
        assert pool.cached <= 40
    for own in (own for blocks in held for own in blocks):
        pool.release(own)
    assert (pool.in_use, pool.available) == (0, 40)


class OftenWrong(PromptLookup):
    """Its second token on are other ones than it has found."""

    def propose(self, text: Sequence[int], count: int, choose: object = None) -> list[int]:
        found = super().propose(text, count, choose)
        return [*found[:1], *(t ^ 1 for t in found[1:])]


def test_drafts_see_the_same_window(programs: dict[str, Program]) -> None:
    requests = [Request(ids(i, 30 + i), SamplingParams(max_tokens=120, temperature=0.02, seed=i)) for i in range(3)]
    speculation = Speculation(OftenWrong, adaptive=False)
    with closing(BatchEngine(programs["groups"])) as engine:
        streams = []
        for guesses in (None, speculation):
            with closing(Scheduler(engine, speculation=guesses)) as scheduler:
                streams.append([stream(h) for h in [scheduler.submit(r) for r in requests]])
                assert scheduler.pool.in_use == 0
    assert streams[0] == streams[1]
    assert 0 < speculation.accepted < speculation.drafted
