"""Each family, compiled for the CPU, against transformers: logits of a prompt and 32 decoded tokens, greedy tokens."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from coverage_table import covers
from family_checkpoints import CASES, DECODED, T, distance, greedy, logits, prompt, random_checkpoint
from gguf_models import ARCHITECTURES, random_model, write_gguf

from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.targets import parse_target
from strixhlo.export import export
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.progress import Stages
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program

ENTRIES = {"prefill_64": ("prefill", T), "score_64": ("score", T), "decode_1": ("decode", 1)}
QUIET = Stages(lambda _name, _total: None, lambda _bytes: None)
PARAMETERS = [
    *(
        pytest.param(case, torch.float32, marks=covers(model, "safetensors f32", "cpu", "transformers"), id=case)
        for case, (model, _, _) in CASES.items()
    ),
    *(
        pytest.param(case, torch.bfloat16, marks=covers(model, "safetensors bf16", "cpu", "transformers"))
        for case, model in (("llama 3", "Llama"), ("gemma3", "Gemma 3"))
    ),
]


@pytest.mark.parametrize(("case", "dtype"), PARAMETERS)
def test_logits_and_greedy_tokens(
    case: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, kind, changes = CASES[case]
    model = random_checkpoint(kind, changes, tmp_path / "checkpoint", dtype)
    check(model, greedy(model, prompt(), DECODED), tmp_path / "checkpoint", tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param("qwen3", marks=covers("Qwen 3", "GGUF F32", "cpu", "transformers")),
        pytest.param("gemma4", marks=covers("Gemma 4", "GGUF F32", "cpu", "transformers")),
    ],
)
def test_gguf(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_type, changes, keys = ARCHITECTURES[architecture]
    model = random_model(model_type, **changes)
    source = write_gguf(model, tmp_path / "model.gguf", architecture, keys, {})
    check(model, greedy(model, prompt(), DECODED), source, tmp_path, monkeypatch)


def check(model: Any, sequence: list[int], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled checkpoint on a prompt and the greedy tokens that follow it, against the model."""
    expected = logits(model, sequence)
    monkeypatch.setattr(export, "ENTRIES", ENTRIES)  # what the test calls, and no more: compiling takes the time
    opened = open_checkpoint(str(source))
    bundle = export.export_checkpoint(
        opened, tmp_path / "bundle", context=T + DECODED, dtype="auto", kv_dtype="f32", progress=QUIET
    )
    compile_bundle(bundle, parse_target("cpu"), activations="f32", keep_intermediates=None, say=lambda _text: None)
    with Program(bundle, "cpu", 2) as program, closing(Engine(program)) as engine:
        assert distance(engine.score(sequence[:T]), expected[:T]) < 1e-4
        engine.reset()
        rows = [engine.prefill(sequence[:T]), *(engine.decode(token) for token in sequence[T:-1])]
    for step, row in enumerate(rows):
        assert distance(row, expected[T - 1 + step]) < 1e-4, step
    assert [int(row.argmax()) for row in rows] == sequence[T:]
