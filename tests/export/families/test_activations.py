"""Programs whose activations are float16 or bfloat16: nearer to float32 than transformers in the same type is."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from family_checkpoints import CASES, VOCAB, distance, logits, prompt, random_checkpoint
from kernel_tolerances import RELATIVE_L2

from strixhlo.bundle import Activations, Bundle
from strixhlo.cli import main
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.targets import parse_target
from strixhlo.errors import StrixhloError
from strixhlo.export import export
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.jax_model import model_of_bundle
from strixhlo.export.models import FAMILIES, TOO_LARGE_FOR_F16
from strixhlo.progress import Stages
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.native.compiled import CompiledBundle
from strixhlo.runtime.program import Program

QUIET = Stages(lambda _name, _total: None, lambda _bytes: None)
ROWS, DECODED = 32, 8
ENTRIES = {"prefill_32": ("prefill", ROWS), "score_32": ("score", ROWS), "decode_1": ("decode", 1)}
TORCH = {"f16": torch.float16, "bf16": torch.bfloat16}


def exported(source: Path, out: Path, activations: Any, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setattr(export, "ENTRIES", ENTRIES)  # what the test calls, and no more: compiling takes the time
    return export.export_checkpoint(
        open_checkpoint(str(source)), out, context=64, dtype="auto", kv_dtype="f32", progress=QUIET,
        activations=activations,
    )  # fmt: skip


@pytest.mark.parametrize("activations", TORCH)
@pytest.mark.parametrize("case", ["llama 3", "olmoe"])
def test_against_transformers_in_the_same_type(
    case: str, activations: Activations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The median of the positions: where two experts are almost equal, another one may be chosen."""
    _, kind, changes = CASES[case]
    model = random_checkpoint(kind, changes, tmp_path / "checkpoint", TORCH[activations])
    ids = [*prompt()[:ROWS], *range(20, 20 + DECODED)]
    exact = logits(model, ids)
    reduced = {"dtype": TORCH[activations], "attn_implementation": "eager"}
    theirs = logits(type(model).from_pretrained(tmp_path / "checkpoint", **reduced).eval(), ids)
    bundle = exported(tmp_path / "checkpoint", tmp_path / "bundle", activations, monkeypatch)
    assert bundle.manifest.activations == activations
    compile_bundle(bundle, parse_target("cpu"), activations="f32", keep_intermediates=None, say=lambda _text: None)
    with Program(bundle, "cpu", 2) as program, closing(Engine(program)) as engine:
        assert CompiledBundle(engine, None).precision == "reduced"
        scored = engine.score(ids[:ROWS])
        engine.reset()
        stepwise = [engine.prefill(ids[:ROWS]), *(engine.decode(token) for token in ids[ROWS:])]
    ours = np.concatenate([scored, stepwise[1:]])
    assert ours.dtype == np.float32
    assert distance(stepwise[0], scored[-1]) < RELATIVE_L2[activations]
    ours_off, theirs_off, apart = (row_errors(*pair) for pair in ((ours, exact), (theirs, exact), (ours, theirs)))
    assert np.median(ours_off) <= np.median(theirs_off)
    assert np.median(ours_off) < RELATIVE_L2[activations] / 2
    assert np.median(apart) < 2 * RELATIVE_L2[activations]
    assert np.median(ours_off) > 10 * RELATIVE_L2["f32"], "activations of 16 bits leave a mark"


def row_errors(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Relative L2 of each row."""
    return np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)


def test_the_reference_computes_in_the_type_of_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 3, whose layers add normalized results: what `compare` and `--bisect` evaluate."""
    _, kind, changes = CASES["gemma3"]
    random_checkpoint(kind, changes, tmp_path / "checkpoint", torch.bfloat16)
    ids, scores = prompt()[:ROWS], {}
    for activations in ("f32", "bf16"):
        bundle = exported(tmp_path / "checkpoint", tmp_path / activations, activations, monkeypatch)
        reference = model_of_bundle(open_checkpoint(str(tmp_path / "checkpoint")), bundle.manifest)
        scores[activations] = reference.score(ids)
        assert scores[activations].shape == (ROWS, VOCAB) and scores[activations].dtype == np.float32
    assert 10 * RELATIVE_L2["f32"] < distance(scores["bf16"], scores["f32"]) < 2 * RELATIVE_L2["bf16"]


def test_families_that_leave_the_range_of_float16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FAMILIES.keys() >= TOO_LARGE_FOR_F16
    _, kind, changes = CASES["gemma3"]
    random_checkpoint(kind, changes, tmp_path / "checkpoint")
    with pytest.raises(StrixhloError, match=r"gemma3_text.* overflows float16.*--activations bf16"):
        exported(tmp_path / "checkpoint", tmp_path / "bundle", "f16", monkeypatch)
    with pytest.raises(StrixhloError, match="'f8' are not possible; choose one of f32, f16, bf16"):
        exported(tmp_path / "checkpoint", tmp_path / "bundle", "f8", monkeypatch)
    assert not (tmp_path / "bundle").exists()


def test_commands_name_the_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, kind, changes = CASES["llama 3"]
    random_checkpoint(kind, changes, tmp_path / "checkpoint")
    monkeypatch.setattr(export, "ENTRIES", ENTRIES)

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, [*words])
        assert done.exit_code == 0, done.output
        return done.stdout

    command = ("export", str(tmp_path / "checkpoint"), "-o", str(tmp_path / "bundle"), "--activations", "bf16")
    assert json.loads(run(*command, "--dry-run", "--json"))["activations"] == "bf16"
    assert "bf16 activations" in run(*command)
    assert json.loads(run("inspect", str(tmp_path / "bundle"), "--json"))["activations"] == "bf16"
    assert any(
        line.split() == ["activations", "bf16"] for line in run("inspect", str(tmp_path / "bundle")).splitlines()
    )
