"""A Llama whose activations are bfloat16, compiled by strixhlo for rocm and run by IREE's HIP driver."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import QUIET, compiled
from family_checkpoints import CASES, prompt, random_checkpoint
from kernel_tolerances import RELATIVE_L2

from gfx1151_sim.program_steps import (
    nothing_uninitialized_is_read,
    other_orders_and_poison_change_nothing,
    prefill_and_decode,
)
from gfx1151_sim.simulator import start
from strixhlo.export import export
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.jax_model import model_of_bundle

ENTRIES = {"prefill_16": ("prefill", 16), "score_16": ("score", 16), "decode_1": ("decode", 1)}
LAYERS, FOLLOWING = 2, [7, 90, 33]


def test_logits_of_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 too, where sums in another order move a last bit; no launch of a kernel takes float32 activations but
    those of the head, whose logits are float32."""
    start()
    _, kind, changes = CASES["llama 3"]
    random_checkpoint(kind, changes, tmp_path / "checkpoint", torch.bfloat16)
    checkpoint, ids = open_checkpoint(str(tmp_path / "checkpoint")), prompt()[:21]
    monkeypatch.setattr(export, "ENTRIES", ENTRIES)
    made = export.export_checkpoint(
        checkpoint, tmp_path / "bundle", context=64, dtype="auto", kv_dtype="f16", progress=QUIET, activations="bf16"
    )
    bundle = compiled(made, "f32", "rocm")
    run = prefill_and_decode(bundle, "rocm", ids, FOLLOWING)
    reference = model_of_bundle(checkpoint, bundle.manifest)
    wanted = [reference.prefill(ids), *(reference.decode(token) for token in FOLLOWING)]
    for got, want in zip(run.logits, wanted, strict=True):
        assert got.dtype == np.float32
        assert np.linalg.norm(got - want) < RELATIVE_L2["bf16"] * np.linalg.norm(want)
    nothing_uninitialized_is_read(run)
    other_orders_and_poison_change_nothing(bundle, run, ids, FOLLOWING)
    launched = [launch.kernel for launch in run.accounts[-1].launches]
    assert len(launched) == 6 * LAYERS + 3
    assert [name for name in launched if not name.endswith("_xbf16")] == ["strixhlo_argmax"] == launched[-1:]
