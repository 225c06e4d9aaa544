"""One engine over the tiny model for all tests of scheduling, each of which makes its own scheduler with an empty
cache; a recorded machine for those of doctor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from recorded_machines import tree

from strixhlo.bundle import Bundle
from strixhlo.runtime.batch_engine import BatchEngine
from strixhlo.runtime.program import Program


@pytest.fixture(scope="session", params=["called", "queued"])
def engine(tiny: Bundle, queued_tiny: Bundle, request: pytest.FixtureRequest) -> Iterator[BatchEngine]:
    """The tiny model with pools for one sequence, and its twin whose steps are started ahead."""
    with (
        Program(tiny if request.param == "called" else queued_tiny, "cpu", 2) as program,
        closing(BatchEngine(program)) as engine,
    ):
        yield engine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A Strix Halo as it is out of the box."""
    return tree("carve-out-0.5", tmp_path / "root")
