"""A checkpoint to export, a bundle to compile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strixhlo.bundle import Bundle


@pytest.fixture(scope="module")
def checkpoint(tiny: Bundle) -> Path:
    """The checkpoint that the tiny bundle was made from."""
    return Path(tiny.manifest.source)


@pytest.fixture
def bundle(tiny: Bundle, tmp_path: Path) -> Path:
    """An exported bundle without a program."""
    return shutil.copytree(tiny.path, tmp_path / "bundle", ignore=shutil.ignore_patterns("cpu"))
