"""Prompts whose tokens all choose the same experts, none choose some, and rows with equal scores, against transformers.

Which of two experts with equal scores is taken is nobody's promise (torch's top-k takes any): they have equal weights.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_checkpoints import CompiledOnce
from family_checkpoints import CASES, T, distance, logits, prompt, random_checkpoint

from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program


def crowded(mixture: Any) -> None:
    """All tokens choose experts 1, 4 and 6."""
    mixture.gate.e_score_correction_bias[[1, 4, 6]] = 10.0


def deserted(mixture: Any) -> None:
    """None chooses 0, 3 and 7."""
    mixture.gate.e_score_correction_bias[[0, 3, 7]] = -10.0


def twins(mixture: Any) -> None:
    """Each expert is there twice, with equal scores: of a pair both are chosen, or any one."""
    for weight in (
        mixture.gate.weight,
        mixture.gate.e_score_correction_bias,
        mixture.experts.gate_up_proj,
        mixture.experts.down_proj,
    ):
        weight[1::2] = weight[0::2]


@pytest.mark.parametrize("change", [crowded, deserted, twins])
def test_compiled_for_the_cpu(change: Callable[[Any], None], tmp_path: Path, compiled_once: CompiledOnce) -> None:
    _, kind, changes = CASES["glm4 moe"]
    model = random_checkpoint(kind, changes, tmp_path / "checkpoint")
    with torch.no_grad():
        change(model.model.layers[1].mlp)
    model.save_pretrained(tmp_path / "checkpoint")
    ids = prompt()
    bundle = compiled_once.compile(tmp_path / "checkpoint", tmp_path / "bundle")
    with Program(bundle, "cpu", 2) as program, closing(Engine(program)) as engine:
        assert distance(engine.score(ids), logits(model, ids)) < 1e-4
        engine.reset()
        engine.prefill(ids[: T // 2])
        rows = [engine.decode(token) for token in ids[T // 2 : T // 2 + 4]]
    for step, row in enumerate(rows):
        assert distance(row, logits(model, ids)[T // 2 + step]) < 1e-4, step
