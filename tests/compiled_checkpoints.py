"""A quantized checkpoint, compiled for the CPU with float32 activations, against its maker's float32 evaluation: the
logits of a 64-token prompt and of 32 decoded tokens, and the greedy tokens."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from checkpoint_logits import VOCAB, distance
from shared_folder import made_once

from strixhlo.bundle import Bundle
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.targets import parse_target
from strixhlo.export import export
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.progress import Stages
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program

T, DECODED = 64, 32
ENTRIES = {"prefill_64": ("prefill", T), "score_64": ("score", T), "decode_1": ("decode", 1)}
QUIET = Stages(lambda _name, _total: None, lambda _bytes: None)
TOLERANCE = 1e-4  # relative L2: float32 sums in another order
Evaluation = Callable[[list[int]], np.ndarray]  # token ids -> float32 logits [tokens, vocabulary]


class CompiledOnce:
    """Compiled programs of a test session: checkpoints of equal formats and shapes share one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def compile(self, source: Path, out: Path, activations: str = "f32") -> Bundle:
        """Export and compile the entries that `hold` calls."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(export, "ENTRIES", ENTRIES)
            bundle = export.export_checkpoint(
                open_checkpoint(str(source)), out, context=T + DECODED, dtype="auto", kv_dtype="f32", progress=QUIET
            )
        quiet = {"keep_intermediates": None, "say": lambda _text: None}

        def make(folder: Path) -> None:
            compile_bundle(bundle, parse_target("cpu"), activations=activations, **quiet)
            shutil.copytree(bundle.target_dir("cpu"), folder)

        made = made_once(self.folder / (bundle.manifest.program_sha256 + activations), make)
        if not bundle.target_dir("cpu").exists():
            shutil.copytree(made, bundle.target_dir("cpu"))
            assert not compile_bundle(bundle, parse_target("cpu"), activations=activations, **quiet).fresh
        return bundle

    def hold(self, source: Path, out: Path, evaluate: Evaluation) -> Bundle:
        """Compile a checkpoint and hold it against another evaluation of it."""
        bundle = self.compile(source, out)
        ids = np.random.default_rng(7).integers(3, VOCAB, T).tolist()
        for _ in range(DECODED):
            ids = [*ids, int(evaluate(ids)[-1].argmax())]
        expected = evaluate(ids)
        with Program(bundle, "cpu", 2) as program, closing(Engine(program)) as engine:
            assert distance(engine.score(ids[:T]), expected[:T]) < TOLERANCE
            engine.reset()
            rows = [engine.prefill(ids[:T]), *(engine.decode(token) for token in ids[T:-1])]
        for step, row in enumerate(rows):
            assert distance(row, expected[T - 1 + step]) < TOLERANCE, step
        assert [int(row.argmax()) for row in rows] == ids[T:]
        return bundle
