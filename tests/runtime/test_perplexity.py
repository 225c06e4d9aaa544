"""Real files: perplexity over 2,000 tokens of a fixed text, against the float32 evaluation of the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from strixhlo.bundle import Bundle
from strixhlo.runtime.compare import PASSAGE
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.native.transformers_float32 import Float32Model
from strixhlo.runtime.numerics import compare_logits
from strixhlo.runtime.program import Program
from strixhlo.runtime.tokenizer import load_tokenizer

TOKENS, CHUNK = 2000, 250  # chunks, so that the logits of Gemma's 262,144 tokens fit into memory


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_within_a_tenth_of_a_percent(name: str, request: pytest.FixtureRequest) -> None:
    bundles: Callable[[str], Bundle] = request.getfixturevalue(name)
    oracle: Float32Model = request.getfixturevalue(f"{name}_float32")
    bundle = bundles("f32")
    ids = load_tokenizer(bundle.path).encode(_text())[: TOKENS + TOKENS // CHUNK]
    assert len(ids) == TOKENS + TOKENS // CHUNK
    engine = Engine(Program(bundle, "cpu", 2))
    ours, theirs = [], []
    for start in range(0, len(ids), CHUNK + 1):
        chunk = ids[start : start + CHUNK + 1]
        engine.reset()
        result = compare_logits(engine.score(chunk[:-1]), oracle.logits(chunk[:-1]), chunk[1:])
        ours.append(np.log(result.perplexity_ours))
        theirs.append(np.log(result.perplexity_theirs))
    engine.close()
    engine.program.close()
    assert abs(np.exp(np.mean(ours) - np.mean(theirs)) - 1) < 1e-3


def _text() -> str:
    path: Path = PASSAGE
    return path.read_text("utf-8")
