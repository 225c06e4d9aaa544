"""Budgets: the sum, what it is held against, what is said when it does not fit, and the command line around it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from strixhlo.bundle import Bundle, KVCache, Manifest
from strixhlo.errors import StrixhloError
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.machines import MACHINES, machine_pool
from strixhlo.runtime.memory import (
    KV_CACHE,
    RESERVE,
    Budget,
    budget_line,
    budget_record,
    call_bytes,
    kv_bytes,
    memory_budget,
    needed_items,
    require_fit,
    require_fit_together,
)
from strixhlo.runtime.pools import Pool
from strixhlo.runtime.program import Program, read_build
from strixhlo.runtime.sizes import GIB, MIB


def pool(usable: int | None) -> Pool:
    return Pool("a device", "VRAM", usable, 0, usable, ("because",), () if usable is not None else ("no idea",))


def budget(bundle: Bundle, usable: int | None, **options: Any) -> Budget:
    return memory_budget(bundle.manifest, read_build(bundle, "cpu"), "cpu", pool(usable), **options)


def test_the_sum(tiny: Bundle) -> None:
    found = budget(tiny, GIB)
    items = {item.name: item.bytes for item in found.items}
    assert list(items) == ["weights", "KV cache", "temporaries", "results", "reserve"]
    assert items["weights"] == tiny.weights.stat().st_size
    assert items["KV cache"] == tiny.manifest.kv_cache.bytes == 2 * 2 * 256 * 32 * 2
    assert items["results"] == 128 * 320 * 4 + 128 * 4  # the logits and tokens of score_128
    assert found.needed == sum(items.values()) and found.left == GIB - found.needed and found.fits


def test_context_and_slots(tiny: Bundle) -> None:
    kv = tiny.manifest.kv_cache
    assert kv_bytes(kv, None, 1) == kv.bytes
    assert kv_bytes(kv, 100, 3) == 3 * kv.bytes * 112 // 256  # whole blocks of 16
    items = needed_items(tiny.manifest, None, "rocm", context=4096, parallel=8)
    assert next(i for i in items if i.name == KV_CACHE).bytes == 8 * 16 * kv.bytes
    assert items[-1].bytes == RESERVE["rocm"]


def test_one_error_with_the_sum_and_what_would_fit(tiny: Bundle) -> None:
    need = {i.name: i.bytes for i in budget(tiny, None).items}
    rest = need["weights"] + need["temporaries"] + need["results"] + need["reserve"]
    tight = budget(tiny, rest + need["KV cache"] // 2, parallel=4, context=256)
    assert not tight.fits
    with pytest.raises(StrixhloError) as caught:
        require_fit(tight, "the bundle")
    message = str(caught.value)
    assert "\n" not in message
    for word in ("weights", "KV cache", "temporaries", "results", "reserve", "VRAM of a device", "--memory-budget"):
        assert word in message
    assert "a context of 32 (--ctx)" in message and "slots of" not in message
    roomy = budget(tiny, rest + 2 * need["KV cache"], parallel=4, context=256)
    assert roomy.fitting == (
        "a context of 128 (--ctx)",
        "2 slots of 256 positions",
        "a KV cache in fp8 (compile --kv-cache-dtype fp8)",
    )
    for context, parallel in ((128, 4), (256, 2)):
        assert budget(tiny, rest + 2 * need["KV cache"], context=context, parallel=parallel).fits


def test_a_narrower_cache_is_proposed(tiny: Bundle) -> None:
    kv = tiny.manifest.kv_cache.model_copy(update={"dtype": "f32"})
    wide = Bundle(tiny.path, tiny.manifest.model_copy(update={"kv_cache": kv}))
    rest = sum(i.bytes for i in needed_items(wide.manifest, None, "cpu") if i.name != KV_CACHE)
    found = memory_budget(wide.manifest, None, "cpu", pool(rest + kv.bytes * 3 // 4))
    assert found.fitting[-2] == "a KV cache in f16 (compile --kv-cache-dtype f16)"
    assert found.fitting[-1] == "a KV cache in fp8 (compile --kv-cache-dtype fp8)"


def test_too_large_without_any_cache(tiny: Bundle) -> None:
    found = budget(tiny, MIB)
    assert found.fitting == ()
    with pytest.raises(StrixhloError, match="not even without a KV cache"):
        require_fit(found, "the bundle")


def test_override_and_unknown(tiny: Bundle) -> None:
    assert budget(tiny, MIB, limit=GIB).fits and not budget(tiny, GIB, limit=MIB).fits
    unknown = budget(tiny, None)
    assert unknown.fits and unknown.left is None
    require_fit(unknown, "the bundle")
    record = budget_record(unknown)
    assert record["amount"] is None and record["pool"]["warnings"] == ["no idea"]


def test_the_program_is_refused_before_it_is_loaded(tiny: Bundle) -> None:
    with pytest.raises(StrixhloError, match=r"--memory-budget leaves 100\.0 MiB"):
        Program(tiny, "cpu", memory_limit=100 * MIB)


def test_what_is_left_is_said_before_anything_is_loaded(tiny: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def device(*_: object) -> None:
        raise StrixhloError(f"opened after {said}")

    monkeypatch.setattr("strixhlo.runtime.program.Device", device)
    with pytest.raises(StrixhloError, match=r"opened after \['memory: .* needed of .* left'\]"):
        Program(tiny, "cpu", say=said.append)


def test_the_estimate_is_not_below_what_the_compiler_says(tiny: Bundle, smollm2: Callable[[str], Bundle]) -> None:
    for bundle in (tiny, smollm2("int8")):
        estimated, estimated_results, how = call_bytes(bundle.manifest, None)
        exact, results, _ = call_bytes(bundle.manifest, read_build(bundle, "cpu"))
        assert how.startswith("estimated") and exact < estimated < 4 * exact
        assert results == estimated_results


def test_sizes_known_at_run_time_only_are_estimated(tiny: Bundle) -> None:
    build = read_build(tiny, "cpu")
    entries = {name: {**entry, "unknown_sizes": 1} for name, entry in build.report["entries"].items()}
    unsure = build.model_copy(update={"report": {"entries": entries}})
    assert call_bytes(tiny.manifest, unsure)[2].startswith("estimated")


def large(manifest: Manifest, weights: float, kv_layers: int) -> Manifest:
    """A manifest of a model that fills a Strix Halo: weights in GiB, and a cache of 8,192 positions."""
    kv = KVCache(dtype="f16", layers=kv_layers, rows=8192, width=1024, block_size=16, blocks=512)
    return manifest.model_copy(update={"weights_bytes": int(weights * GIB), "kv_cache": kv})


@pytest.mark.parametrize(
    ("weights", "fitting"),
    [
        (40, {"strix-halo-128-default", "strix-halo-128-gtt110", "strix-halo-128-vram96", "strix-halo-128-vram64",
              "strix-halo-64-gtt54", "strix-halo-64-vram48"}),
        (60, {"strix-halo-128-gtt110", "strix-halo-128-vram96", "strix-halo-128-vram64"}),
        (92, {"strix-halo-128-gtt110", "strix-halo-128-vram96"}),
        (105, {"strix-halo-128-gtt110"}),
        (109, set()),
    ],
)  # fmt: skip
def test_what_fits_on_which_machine(tiny: Bundle, weights: float, fitting: set[str]) -> None:
    manifest = large(tiny.manifest, weights, 80)  # 2.5 GiB of cache
    found = {n for n in MACHINES if memory_budget(manifest, None, "rocm", machine_pool(n)).fits}
    assert found == fitting


def strixhlo(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "strixhlo.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_run_reports_and_refuses(tiny: Bundle) -> None:
    path = str(tiny.path)
    done = strixhlo("run", path, "--raw", "-p", "w1", "-n", "4", "--json", "--memory-budget", "1G")
    memory = json.loads(done.stdout)["memory"]
    assert memory["amount"] == GIB and memory["left"] == GIB - memory["needed"]
    assert memory["peak"]["device"] is None and memory["peak"]["resident"] > memory["items"][1]["bytes"]
    first, *_, last = done.stderr.splitlines()  # how much is left is said before anything is loaded
    assert re.fullmatch(r"memory: \S+ MiB needed of 1\.0 GiB \(--memory-budget\), \S+ MiB left", first)
    assert re.fullmatch(r"memory peak: \S+ MiB resident", last)
    done = strixhlo("run", path, "--raw", "-p", "w1", "--memory-budget", "100M", code=2)
    assert done.stdout == "" and "--memory-budget leaves 100.0 MiB; what would fit" in done.stderr
    for command in (("chat",), ("serve", "--port", "0")):  # compare: tests/test_compare_command.py
        done = strixhlo(command[0], path, *command[1:], "--memory-budget", "100M", code=2)
        assert "--memory-budget leaves 100.0 MiB; what would fit" in done.stderr
    assert "size '5X' is not" in strixhlo("run", path, "-p", "w1", "--raw", "--memory-budget", "5X", code=2).stderr


def test_several_models_are_held_against_the_memory_together(tiny: Bundle) -> None:
    need = budget(tiny, None).needed
    require_fit_together([budget(tiny, 2 * need)] * 2)
    assert budget_line([budget(tiny, 2 * need)] * 2).endswith("(VRAM of a device), 0 B left")
    with pytest.raises(StrixhloError, match=r"2 models need .* together .* where VRAM of a device leaves"):
        require_fit_together([budget(tiny, 2 * need - 1)] * 2)
    assert budget_line([budget(tiny, None)]).endswith("what the device has left is not known (no idea)")


def test_one_call_is_in_flight_on_a_device_whatever_the_number_of_programs(tiny: Bundle) -> None:
    with Program(tiny, "cpu", 1) as first, Program(tiny, "cpu", 1) as second:
        engines = [Engine(first), Engine(second)]
        assert first.device.turn is second.device.turn
        done = threading.Event()

        def work() -> None:
            engines[1].prefill([1])
            done.set()

        thread = threading.Thread(target=work)
        with first.device.turn:  # as if a call of the first program took its time
            thread.start()
            assert not done.wait(0.2)
        thread.join(30)
        assert done.is_set()
        engines[0].prefill([1])  # and the turn is given back
        for engine in engines:
            engine.close()


def test_inspect_memory(tiny: Bundle) -> None:
    path = str(tiny.path)
    here = json.loads(strixhlo("inspect", path, "--memory", "--json").stdout)["this machine"]
    assert here["items"][0]["name"] == "weights" and here["pool"]["name"] == "RAM" and here["fits"]
    every = json.loads(strixhlo("inspect", path, "--memory", "--machine", "all", "--json").stdout)
    assert set(every) == set(MACHINES) and every["strix-halo-128-vram96"]["pool"]["name"] == "VRAM"
    text = strixhlo("inspect", path, "--memory", "--machine", "r9700", "--parallel", "1000000").stdout
    assert "missing" in text and "would fit" in text
    assert "machine 'x' is not known" in strixhlo("inspect", path, "--memory", "--machine", "x", code=2).stderr
