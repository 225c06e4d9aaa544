"""The float32 oracle against llama.cpp on the same files: right weights, right configuration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from strixhlo.errors import StrixhloError
from strixhlo.runtime.compare import PASSAGE
from strixhlo.runtime.native.llama_cpp import LlamaCpp
from strixhlo.runtime.native.transformers_float32 import Float32Model
from strixhlo.runtime.numerics import compare_logits

TEXT = PASSAGE.read_text("utf-8")


# Measured on this text: a mean KL of 0.0042 and 0.0054. A wrong RoPE layout, norm or scale gives far above 0.1.
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_llama_cpp_is_near(model: str, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> None:
    path = request.getfixturevalue(f"{model}_gguf")
    capfd.readouterr()
    oracle = request.getfixturevalue(f"{model}_float32")
    with LlamaCpp(path) as native:
        ids = native.tokenize(TEXT)[:100]
        theirs = native.teacher_forced_logits(ids)
    float32 = oracle.logits(ids)
    assert (float32.dtype, float32.shape) == (np.float32, theirs.shape)
    result = compare_logits(theirs, float32, targets=[*ids[1:], -1])
    assert 0.0005 < result.mean_kl < 0.01
    assert result.top1_agreement >= 0.9
    assert result.perplexity_ours == pytest.approx(result.perplexity_theirs, rel=0.05)

    tokens, gaps = oracle.greedy_with_gaps(ids[:20], 8)
    rows = oracle.logits(ids[:20] + tokens)[19:-1]
    ordered = np.sort(rows, axis=1)
    assert tokens == rows.argmax(axis=1).tolist()
    np.testing.assert_allclose(gaps, ordered[:, -1] - ordered[:, -2], atol=1e-3)
    assert capfd.readouterr() == ("", "")


def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(StrixhloError, match="no file"):
        Float32Model(tmp_path / "absent.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(StrixhloError, match="cannot load"):
        Float32Model(broken)
