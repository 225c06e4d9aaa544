"""The size of the KV pools is chosen when a program is loaded: by context, by number of sequences, by what has room."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest

from strixhlo.bundle import Bundle, open_bundle
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.targets import parse_target
from strixhlo.errors import StrixhloError
from strixhlo.runtime.batch_engine import BatchEngine
from strixhlo.runtime.cache_size import CacheSize, cache_size, require_kv_dtype
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.load_plan import LoadPlan, load_plans, shortage
from strixhlo.runtime.pools import Pool
from strixhlo.runtime.program import Program, read_build

PROMPT = [int(i) for i in np.random.default_rng(0).integers(0, 320, 90)]
ROW = 2 * 2 * 32 * 2  # bytes of a position in the pools of `tiny`


def test_what_is_asked_for_or_what_has_room(tiny: Bundle) -> None:
    build = read_build(tiny, "cpu")
    assert build.kv_rows_free
    assert cache_size(tiny, build, None, 1, None) == CacheSize(256, 256)
    assert cache_size(tiny, build, 100, 3, None) == CacheSize(100, 3 * 112)  # whole blocks of 16
    assert cache_size(tiny, build, 100, 3, 200 * ROW) == CacheSize(100, 192)
    assert cache_size(tiny, build, 100, 3, 0) == CacheSize(100, 112)  # a sequence at least; the budget refuses it
    with pytest.raises(StrixhloError, match="exported for 256; export it with --context 257"):
        cache_size(tiny, build, 257, 1, None)
    fixed = build.model_copy(update={"kv_rows_free": False})
    assert cache_size(tiny, fixed, 100, 8, 0) == CacheSize(100, 256)


def test_a_budget_bounds_the_pools(tiny: Bundle) -> None:
    def plan(limit: int, programs: int = 1) -> list[LoadPlan]:
        return load_plans([(tiny, read_build(tiny, "cpu"))] * programs, limit, None, 50)

    whole = plan(1 << 30)[0].budget
    assert whole.items[1].bytes == 50 * 256 * ROW
    less = plan(whole.needed - 10 * 256 * ROW)[0]
    assert less.size == CacheSize(256, 40 * 256) and less.budget.left == 0
    assert shortage(less, 40) == "" and shortage(less, 50) == (
        "memory for 40 of 50 sequences of 256 positions at a time, more only when shorter; --parallel 40,"
        " --ctx 192 or a narrower KV cache fit whole"
    )
    one, other = plan(2 * whole.needed - 20 * 256 * ROW, 2)  # two models share what there is
    assert one == other and one.size == less.size
    with pytest.raises(StrixhloError, match=r"what would fit: a context of 128 \(--ctx\)"):
        plan(whole.needed - 50 * 256 * ROW + 128 * ROW)


def test_pools_leave_the_system_its_part_of_ram(tiny: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests are to run at a time; a budget that the user names is taken as it is."""
    ram = Pool("CPU", "RAM", 64 << 30, 44 << 30, 20 << 30, ())
    monkeypatch.setattr("strixhlo.runtime.load_plan.device_pool", lambda _kind: ram)
    program = (tiny, read_build(tiny, "cpu"))
    asked = load_plans([program], None, None, 1 << 20)[0].budget
    assert 2 << 30 <= (asked.left or 0) < (2 << 30) + 256 * ROW
    named = load_plans([program], 20 << 30, None, 1 << 20)[0].budget
    assert 0 <= (named.left or 0) < 256 * ROW


def test_one_program_runs_with_pools_of_any_size(tiny: Bundle) -> None:
    def plan(context: int, parallel: int) -> LoadPlan:
        return load_plans([(tiny, read_build(tiny, "cpu"))], None, context, parallel)[0]

    results = []
    for context, parallel in ((96, 1), (256, 1), (256, 40)):
        with Program(tiny, "cpu", 1, plan=plan(context, parallel)) as program:
            rows = (context + 15) // 16 * 16 * parallel
            assert program.kv_cache.rows == rows
            with closing(Engine(program)) as engine:
                assert engine.context == context
                logits = [engine.prefill(PROMPT)]
                logits += [engine.decode(7) for _ in range(96 - 90)]
                results.append(np.stack(logits))
                if context == 96:
                    with pytest.raises(StrixhloError, match="96"):
                        engine.decode(7)
            with closing(BatchEngine(program)) as batch:
                assert batch.blocks * 16 == rows and batch.context == context
                last = [*range(batch.blocks - 6, batch.blocks)]  # the end of the pools
                np.testing.assert_array_equal(batch.prefill(PROMPT, 0, [last]), results[0][0])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_the_type_of_the_cache_is_chosen_when_compiling(tiny: Bundle, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("kv") / "tiny"
    folder.mkdir()
    for name in ("manifest.json", "program.mlir", "weights", "tokenizer.json"):
        (folder / name).symlink_to(tiny.path / name)
    bundle = open_bundle(folder)
    compile_bundle(
        bundle,
        parse_target("cpu"),
        activations="int8",
        keep_intermediates=None,
        say=lambda _text: None,
        kv_dtype="fp8",
    )
    with Program(bundle, "cpu", 1) as program, closing(Engine(program)) as engine:
        assert program.kv_cache.dtype == "fp8" and program.budget.items[1].bytes == 256 * ROW // 2
        narrow = engine.prefill(PROMPT)
    with Program(tiny, "cpu", 1) as program, closing(Engine(program)) as engine:
        wide = engine.prefill(PROMPT)
    assert 0 < np.abs(narrow - wide).max() < 0.1 * np.abs(wide).max()
    require_kv_dtype(bundle, read_build(bundle, "cpu"), "fp8")
    with pytest.raises(
        StrixhloError, match=r"cache in fp8; run `strixhlo compile .*tiny --target cpu --kv-cache-dtype f16"
    ):
        require_kv_dtype(bundle, read_build(bundle, "cpu"), "f16")


def test_the_command_line(tiny: Bundle) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "strixhlo.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("run", str(tiny.path), "--raw", "-p", "w1", "-n", "100", "--ctx", "16", "--token-ids")
    assert done.returncode == 0 and len(done.stdout.split()) == 16
    done = run("serve", str(tiny.path), "--kv-cache-dtype", "fp8")
    assert done.returncode == 2 and "--kv-cache-dtype fp8`" in done.stderr
    done = run("serve", str(tiny.path), "--ctx", "1000")
    assert done.returncode == 2 and "export it with --context 1000" in done.stderr
