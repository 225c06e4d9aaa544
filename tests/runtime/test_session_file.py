"""A session's KV cache on disk: going on needs no prefill and gives the same; what is broken or foreign is refused."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from strixhlo.errors import StrixhloError
from strixhlo.runtime.batch_engine import BatchEngine
from strixhlo.runtime.requests import Request, TokenEvent
from strixhlo.runtime.sampling import SamplingParams
from strixhlo.runtime.scheduler import Scheduler
from strixhlo.runtime.session_file import fingerprint, load_session, save_session

PROMPT = tuple(int(i) for i in np.random.default_rng(9).integers(0, 320, 50))


def events(scheduler: Scheduler, ids: tuple[int, ...]) -> list[TokenEvent]:
    handle = scheduler.submit(Request(ids, SamplingParams(max_tokens=6, logprobs=3)))
    return [e for e in handle.events() if isinstance(e, TokenEvent)]


@pytest.fixture
def saved(engine: BatchEngine, tmp_path: Path) -> Path:
    """A session of a prompt of 50 tokens and an answer of 6: 55 are in the pool, 48 in whole blocks."""
    path = tmp_path / "chat.kv"
    with closing(Scheduler(engine)) as scheduler:
        answer = [e.token for e in events(scheduler, PROMPT)]
        assert save_session(engine.program, scheduler, [*PROMPT, *answer], path) == 48
        assert scheduler.pool.in_use == 0
    assert [p.name for p in tmp_path.iterdir()] == ["chat.kv"]
    return path


@pytest.mark.parametrize("on_host", [True, False])
def test_going_on_needs_no_prefill(
    engine: BatchEngine, saved: Path, on_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Scheduler(engine)) as scheduler:
        expected = events(scheduler, PROMPT)
    every = [range(engine.blocks)]
    engine.write_blocks(every, [np.full_like(p, 7) for p in engine.read_blocks(every)])
    monkeypatch.setattr(engine.program.device, "on_host", on_host)  # False: as on a GPU, by whole buffers
    with closing(Scheduler(engine)) as scheduler:
        assert load_session(engine.program, scheduler, saved) == 48
        assert scheduler.pool.in_use == 0
        after = events(scheduler, PROMPT)
        assert (scheduler.reused, scheduler.computed) == (48, 2)
    assert [e.token for e in after] == [e.token for e in expected]
    np.testing.assert_allclose([e.logprob for e in after], [e.logprob for e in expected], atol=1e-5)


def test_a_full_pool_takes_what_fits(engine: BatchEngine, saved: Path) -> None:
    with closing(Scheduler(engine)) as scheduler:
        held = [scheduler.pool.allocate() for _ in range(engine.blocks - 2)]
        assert load_session(engine.program, scheduler, saved) == 32
        scheduler.pool.release([b for b in held if b is not None])


def changed(path: Path, metadata: dict[str, str] | None = None, **tensors: np.ndarray | None) -> Path:
    """A copy with other contents."""
    contents = {**load_file(path), **tensors}
    out = path.with_name("changed.kv")
    save_file({n: t for n, t in contents.items() if t is not None}, out, metadata or {})
    return out


def test_what_is_broken_or_foreign_is_refused(engine: BatchEngine, saved: Path, tmp_path: Path) -> None:
    program = engine.program
    good = {"format": "strixhlo-session", "version": "1", "model": fingerprint(program)}
    pool, ids = load_file(saved)["k_pool"], load_file(saved)["ids"]
    bad_pool = pool.copy()
    bad_pool[0, 0, 0] = np.nan
    cases = {
        "saved with another model": changed(saved, {**good, "model": "0" * 64}).read_bytes(),
        "not a session that this strixhlo saved": changed(saved, {**good, "version": "2"}).read_bytes(),
        "is not a saved session": changed(saved, good, v_pool=None).read_bytes(),
        "token ids are not such": changed(saved, good, ids=ids[:-1]).read_bytes(),
        "in whole blocks": changed(saved, good, ids=np.where(ids == ids[0], 320, ids).astype(np.int32)).read_bytes(),
        "of this model": changed(saved, good, ids=ids.astype(np.int64)).read_bytes(),
        "k_pool is float16": changed(saved, good, k_pool=pool[:, :16]).read_bytes(),
        "k_pool is float32": changed(saved, good, k_pool=pool.astype(np.float32)).read_bytes(),
        "values that no model makes": changed(saved, good, k_pool=bad_pool).read_bytes(),
        "cannot be read": saved.read_bytes()[:-100],
        "cannot be read: ": b"\xff" * 100,
    }
    with closing(Scheduler(engine)) as scheduler:
        for message, contents in cases.items():
            (tmp_path / "bad.kv").write_bytes(contents)
            with pytest.raises(StrixhloError, match=message) as caught:
                load_session(program, scheduler, tmp_path / "bad.kv")
            assert "\n" not in str(caught.value)
        assert scheduler.pool.cached == 0
        assert len(events(scheduler, PROMPT)) == 6
