"""Makes `gfx1151_sim` importable, as PYTHONPATH=tests does, and leaves no simulated device to other tests."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from iree.runtime._binding import clear_hal_driver_cache

sys.path.insert(0, str(Path(__file__).parent.parent))
VARIABLE = "IREE_HIP_DYLIB_PATH"


@pytest.fixture(scope="module", autouse=True)
def hip_library() -> Iterator[None]:
    """The simulator is the HIP library of this folder's tests only."""
    from gfx1151_sim.simulator import start

    before = os.environ.pop(VARIABLE, None)
    start()
    clear_hal_driver_cache()  # it may hold a driver for another library, or none
    yield
    clear_hal_driver_cache()
    os.environ.pop(VARIABLE, None)
    if before is not None:
        os.environ[VARIABLE] = before
