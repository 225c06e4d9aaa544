"""compare can fail: faults planted into a bundle or its engine are caught, and the untouched bundle passes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from strixhlo.bundle import Bundle, open_bundle
from strixhlo.runtime.compare import Comparison, Workload, compare, difference
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.native.compiled import CompiledBundle
from strixhlo.runtime.native.transformers_float32 import Float32Model
from strixhlo.runtime.program import Program

IDS = tuple(int(i) for i in np.random.default_rng(3).integers(3, 320, 60))
WORK = Workload(IDS, IDS[:8], 4, (16,), (2,), 1)


@pytest.fixture(scope="module")
def native(tiny: Bundle) -> Float32Model:
    return Float32Model(Path(tiny.manifest.source))


def compared(bundle: Bundle, native: Float32Model, fault: Callable[[Engine], None] = lambda _: None) -> Comparison:
    with Program(bundle, "cpu", 1) as program:
        engine = Engine(program)
        fault(engine)
        result = compare(CompiledBundle(engine, None), native, WORK, say=lambda _text: None)
        engine.close()
    return result


def with_changed(bundle: Bundle, out: Path, parameter: str, change: Callable[[np.ndarray], np.ndarray]) -> Bundle:
    """A copy whose parameter (its bytes [rows, row bytes]) is changed."""
    shutil.copytree(bundle.path, out)
    where = bundle.manifest.parameters[parameter]
    data = np.memmap(out / "weights/model.safetensors", np.uint8, "r+", where.offset, (where.length,))
    rows = data.reshape(where.shape[0], -1)
    rows[:] = change(rows.copy())
    data.flush()
    return open_bundle(out)


def test_the_untouched_bundle_passes(tiny: Bundle, native: Float32Model) -> None:
    result = compared(tiny, native)
    assert result.failures == () and result.numerics.relative_error < 0.02
    assert [s.test for s in result.speeds] == ["pp16", "tg2"]


def test_a_wrong_rope_base(tiny: Bundle, native: Float32Model, tmp_path: Path) -> None:
    bad = with_changed(tiny, tmp_path / "b", "rope.table.dense", lambda rows: rows[np.arange(len(rows)) // 2])
    assert compared(bad, native).failures


def test_permuted_rows_of_one_matrix(tiny: Bundle, native: Float32Model, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight.dense"
    assert compared(with_changed(tiny, tmp_path / "b", name, lambda rows: rows[::-1]), native).failures


def test_a_stale_kv_block(tiny: Bundle, native: Float32Model) -> None:
    def share_a_block(engine: Engine) -> None:
        engine._table[0, 1] = engine._table[0, 0]

    assert compared(tiny, native, share_a_block).failures


def test_differences_of_encodings_are_named() -> None:
    assert difference([1, 2], [1, 2]) == "same"
    assert difference([1, 2], [9, 1, 2]) == "different: it puts token 9 (BOS) first"
    assert difference([9, 1], [1]) == "different: we put token 9 (BOS) first"
    assert difference([1, 2, 3], [1, 5]) == "different: 3 tokens and 2, the first 1 equal"
    assert difference(None, [1]).startswith("not compared")
