"""A program whose KV cache is fp8 or bf16 stays close to the one in float32, and takes a part of its cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from conftest import compiled, exported

from strixhlo.bundle import Bundle
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.numerics import compare_logits
from strixhlo.runtime.program import Program

TOKENS = [(7 * i * i + 3) % 320 for i in range(90)]


def logits(bundle: Bundle) -> np.ndarray:
    with Program(bundle, "cpu", 2) as program:
        engine = Engine(program)
        rows = [engine.prefill(TOKENS[:40]), *(engine.decode(t) for t in TOKENS[40:])]
        engine.close()
    return np.stack(rows)


def test_narrow_caches_are_close_to_float32(tiny: Bundle, tmp_path: Path) -> None:
    source = tiny.path.parent / "tiny-checkpoint"
    bundles = {k: compiled(exported(source, tmp_path / k, None, k)) for k in ("fp8", "bf16", "f32")}
    assert bundles["fp8"].manifest.kv_cache.bytes * 4 == bundles["f32"].manifest.kv_cache.bytes
    assert bundles["bf16"].manifest.kv_cache.bytes * 2 == bundles["f32"].manifest.kv_cache.bytes
    exact, rounded = logits(bundles["f32"]), logits(bundles["fp8"])
    assert not np.array_equal(exact, rounded)
    # Three bits of mantissa: keys and values are off by 2.6% (rms), the attention's share of the logits by less.
    assert np.linalg.norm(rounded - exact) < 0.03 * np.linalg.norm(exact)
    assert compare_logits(rounded, exact).mean_kl < 1e-3
    # Seven bits of mantissa: a sixteenth of that.
    assert 0 < np.linalg.norm(logits(bundles["bf16"]) - exact) < 0.002 * np.linalg.norm(exact)
