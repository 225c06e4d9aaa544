"""The weights archive: aligned, readable by safetensors, exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from strixhlo.bundle import ALIGNMENT, sha256_file
from strixhlo.export.archive import DTYPES, ArchiveGroup, dtype_name, write_archive


def group(arrays: dict[str, np.ndarray]) -> ArchiveGroup:
    return ArchiveGroup({n: (a.shape, dtype_name(a.dtype)) for n, a in arrays.items()}, lambda: arrays)


shapes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=6)


@settings(max_examples=30, deadline=None)
@given(shapes=shapes, kind=st.sampled_from(sorted(DTYPES)))
def test_round_trip_and_alignment(tmp_path_factory: pytest.TempPathFactory, shapes: list, kind: str) -> None:
    path = tmp_path_factory.mktemp("archive") / "w.safetensors"
    rng = np.random.default_rng(0)
    arrays = {f"t{i}": rng.integers(-100, 100, shape).astype(DTYPES[kind][1]) for i, shape in enumerate(shapes)}
    written: list[int] = []
    parameters, size, digest = write_archive(path, [group({n: a}) for n, a in arrays.items()], written.append)
    assert path.stat().st_size == size == sum(written)
    assert sha256_file(path) == digest
    raw = path.read_bytes()
    for name, array in arrays.items():
        p = parameters[name]
        assert p.offset % ALIGNMENT == 0
        assert raw[p.offset : p.offset + p.length] == array.tobytes()
    if kind != "bf16":  # safetensors' numpy reader knows no bfloat16
        loaded = load_file(path)
        assert set(loaded) - set(arrays) <= {n for n in loaded if n.startswith("padding.")}
        for name, array in arrays.items():
            np.testing.assert_array_equal(loaded[name], array)


def test_array_unlike_its_plan_is_refused(tmp_path: Path) -> None:
    wrong = ArchiveGroup({"t": ((2, 3), "f32")}, lambda: {"t": np.zeros((3, 2), np.float32)})
    with pytest.raises(ValueError, match="t: read float32"):
        write_archive(tmp_path / "w", [wrong], lambda _: None)
