"""Small bundles, copies of them with a fault, and what compare and --bisect say of those."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import conftest
import numpy as np
import pytest

from strixhlo.bisection.bisect import Bisection, bisect
from strixhlo.bundle import MANIFEST, Bundle, open_bundle, write_record
from strixhlo.export import export
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.runtime.compare import Comparison, Workload, compare
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.native.compiled import CompiledBundle
from strixhlo.runtime.native.contender import Contender
from strixhlo.runtime.program import Program

ENTRY_NAMES = ("prefill_16", "score_64", "decode_1")
IDS = tuple(int(i) for i in np.random.default_rng(3).integers(3, 250, 40))
WORK = Workload(IDS, IDS[:8], 4, (16,), (2,), 1)


def small_bundle(source: Path, out: Path) -> Bundle:
    """Exported with 64 positions and compiled in float32; as few and as small entries as will do, to compile fast."""
    with pytest.MonkeyPatch.context() as patch:
        few = {name: entry for name, entry in export.ENTRIES.items() if name in ENTRY_NAMES}
        patch.setattr(export, "ENTRIES", few | {"score_64": ("score", 64)})
        exported = conftest.exported(source, out, 64, "f32")
    return conftest.compiled(exported)


def compared(bundle: Bundle, native: Contender) -> Comparison:
    with Program(bundle, "cpu", 1) as program:
        engine = Engine(program)
        result = compare(CompiledBundle(engine, None), native, WORK, say=lambda _text: None)
        engine.close()
    return result


def bisected(bundle: Bundle, most_bytes: int = 1 << 30) -> Bisection:
    source = open_checkpoint(bundle.manifest.source)
    return bisect(bundle, "cpu", IDS, source, threads=1, most_bytes=most_bytes)


def with_parameter(bundle: Bundle, out: Path, parameter: str, change: Callable[[np.ndarray], np.ndarray]) -> Bundle:
    """A copy whose parameter (bytes, in its shape) is changed."""
    shutil.copytree(bundle.path, out)
    where = bundle.manifest.parameters[parameter]
    data = np.memmap(out / "weights/model.safetensors", np.uint8, "r+", where.offset, (where.length,))
    data[:] = change(data.copy().reshape(where.shape[0], -1)).reshape(-1)
    data.flush()
    return open_bundle(out)


def with_program(bundle: Bundle, out: Path, change: Callable[[str], str]) -> Bundle:
    """A copy whose program is changed and compiled again."""
    shutil.copytree(bundle.path, out, ignore=shutil.ignore_patterns("cpu"))
    text = change(bundle.program_text())
    assert text != bundle.program_text()
    (out / "program.mlir").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    write_record(out / MANIFEST, bundle.manifest.model_copy(update={"program_sha256": digest}))
    return conftest.compiled(open_bundle(out))
