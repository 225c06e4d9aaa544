"""The engine on a real program: chunks, positions, block tables, batches, limits, memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from strixhlo.bundle import Bundle
from strixhlo.errors import StrixhloError
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program

IDS = [int(i) for i in np.random.default_rng(0).integers(3, 40000, 150)]


@pytest.fixture(scope="module", params=["f32", "int8"])
def engine(request: pytest.FixtureRequest, smollm2: Callable[[str], Bundle]) -> Iterator[Engine]:
    with Program(smollm2(request.param), "cpu", 2) as program:
        engine = Engine(program)
        yield engine
        engine.close()


def close_to(a: np.ndarray, b: np.ndarray, tolerance: float) -> bool:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b)) < tolerance


def tolerance(engine: Engine) -> float:
    """Sums in another order can move a value to the next step: of 11 bits in the KV cache, of 8 in int8 activations."""
    return {"f32": 1e-3, "int8": 6e-2}[engine.program.build.activations]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 48, 49, 128, 129, 150])
def test_chunked_prefill_is_score(engine: Engine, length: int) -> None:
    engine.reset()
    scored = engine.score(IDS[:length])
    engine.reset()
    assert close_to(engine.prefill(IDS[:length]), scored[-1], tolerance(engine))
    assert engine.length == length


def test_decode_is_prefill(engine: Engine) -> None:
    engine.reset()
    scored = engine.score(IDS[:40])
    engine.reset()
    engine.prefill(IDS[:20])
    for i in range(20, 40):
        assert close_to(engine.decode(IDS[i]), scored[i], tolerance(engine))


def test_same_call_same_bits(engine: Engine) -> None:
    runs = []
    for _ in range(2):
        engine.reset()
        runs.append([engine.prefill(IDS[:30]), engine.decode(5), engine.decode(6)])
    np.testing.assert_array_equal(runs[0], runs[1])


def test_a_row_does_not_depend_on_its_company(engine: Engine) -> None:
    """decode_4 with four sequences in scattered blocks: each row, bit for bit, what decode_1 gives it alone."""
    program, manifest = engine.program, engine.program.bundle.manifest
    blocks = manifest.kv_cache.blocks
    order = np.random.default_rng(1).permutation(blocks).astype(np.int32)
    tables = np.zeros((4, blocks), np.int32)
    tables[:, :4] = order[:16].reshape(4, 4)
    lengths = [3, 17, 0, 40]
    pools = [program.device.empty(s) for s in manifest.entry_points["decode_4"].inputs[-2:]]
    for s, n in enumerate(lengths):
        for p in range(n):
            host = (np.array([IDS[p + s]], np.int32), np.array([p], np.int32), tables[s : s + 1])
            _, pools = program.call("decode_1", host, pools)
    tokens = np.array(IDS[60:64], np.int32)
    together, pools = program.call("decode_4", (tokens, np.array(lengths, np.int32), tables), pools)
    for s, n in enumerate(lengths):
        host = (tokens[s : s + 1], np.array([n], np.int32), tables[s : s + 1])
        alone, pools = program.call("decode_1", host, pools)
        np.testing.assert_array_equal(alone[0], together[s])
    idle = np.array([lengths[0], -1, lengths[2], -1], np.int32)
    partly, pools = program.call("decode_4", (tokens, idle, tables), pools)
    np.testing.assert_array_equal(partly[[0, 2]], together[[0, 2]])


def test_padded_rows_write_no_kv(engine: Engine) -> None:
    program, manifest = engine.program, engine.program.bundle.manifest
    entry = manifest.entry_points["prefill_16"]
    pools = [program.device.empty(s) for s in entry.inputs[-2:]]
    shape = entry.inputs[-1].shape
    for view in pools:
        view.map().asarray(shape, np.dtype(np.float16))[:] = 99
    table = np.arange(manifest.kv_cache.blocks, dtype=np.int32)[None]
    tokens = np.array(IDS[:16], np.int32)
    host = (tokens, np.array([2], np.int32), np.array([5], np.int32), table)
    _, pools = program.call("prefill_16", host, pools)
    for view in pools:
        values = np.array(view.map().asarray(shape, np.dtype(np.float16)))
        written = (values != 99).any(axis=(0, 2))
        assert np.flatnonzero(written).tolist() == [2, 3, 4, 5, 6]


def test_limits(engine: Engine) -> None:
    engine.reset()
    with pytest.raises(StrixhloError, match="do not fit into the context of 1024"):
        engine.prefill([1] * 1025)
    with pytest.raises(StrixhloError, match="no tokens"):
        engine.prefill([])
    with pytest.raises(StrixhloError, match="token id 49152 is not in the vocabulary"):
        engine.prefill([1, 49152])
    with pytest.raises(StrixhloError, match="token id -1"):
        engine.decode(-1)


WATCH = """
import sys
from strixhlo.cli import main
try:
    main(sys.argv[1:], standalone_mode=False)
finally:
    lines = open("/proc/self/status").read().splitlines()
    print({l.split(":")[0]: int(l.split()[1]) for l in lines if l.startswith(("RssAnon", "VmHWM"))}, file=sys.stderr)
"""


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_anonymous_memory_of_run_is_bounded(model: str, request: pytest.FixtureRequest) -> None:
    """KV cache + 250 MB, whatever the weights' size: they are mapped."""
    bundle: Bundle = request.getfixturevalue(model)("int8")
    command = [sys.executable, "-c", WATCH, "run", str(bundle.path), "--raw", "-p", "Once upon a time", "-n", "40"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    anonymous = int(done.stderr.split("'RssAnon': ")[1].split(",")[0].rstrip("}\n")) * 1024
    assert anonymous < bundle.manifest.kv_cache.bytes + 250e6
