"""One engine over the tiny model for all tests of scheduling; each makes its own scheduler, whose cache is empty."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from strixhlo.bundle import Bundle
from strixhlo.runtime.batch_engine import BatchEngine
from strixhlo.runtime.program import Program


@pytest.fixture(scope="session")
def engine(tiny: Bundle) -> Iterator[BatchEngine]:
    """The tiny model with pools for one sequence."""
    with Program(tiny, "cpu", 2) as program, closing(BatchEngine(program)) as engine:
        yield engine
