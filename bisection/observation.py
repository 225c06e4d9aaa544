"""Compiles an observed program for a target and runs a text through it, chunk after chunk."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..bundle import PROGRAM, WEIGHTS, Build, Bundle, EntryPoint
from ..compile.compile import compile_bundle
from ..compile.targets import parse_target
from ..errors import StrixhloError
from ..runtime.block_table import own_table
from ..runtime.program import Program, read_build
from .observed_program import Choice, ObservedProgram, observed_program


@dataclass(frozen=True)
class Chunk:
    """One call of the score entry: its inputs (tokens, start, count, block table), how many rows are real, and all
    outputs by name; `k_pool` and `v_pool` are those after the call."""

    inputs: tuple[np.ndarray, ...]
    count: int
    values: dict[str, np.ndarray]


@dataclass(frozen=True)
class Observation:
    """An observed program that is compiled for a target and loaded."""

    observed: ObservedProgram
    entry: str
    build: Build
    _program: Program

    def chunks(self, ids: Sequence[int]) -> Iterator[Chunk]:
        """Run the ids from the first position on."""
        rows = self.observed.entry.rows
        table = own_table(self._program.kv_cache, self._program.context)
        pools = self._program.new_pools()
        for start in range(0, len(ids), rows):
            piece = ids[start : start + rows]
            tokens = np.zeros(rows, np.int32)
            tokens[: len(piece)] = piece
            inputs = (tokens, np.array([start], np.int32), np.array([len(piece)], np.int32), table)
            values, pools = self._program.call_for_all(self.entry, inputs, pools)
            yield Chunk(inputs, len(piece), values)


@contextmanager
def observation(
    bundle: Bundle, target: str, choice: Choice, threads: int | None, say: Callable[[str], None]
) -> Iterator[Observation]:
    """The bundle's score entry, observed, compiled for a target that the bundle is compiled for, in the same way.

    The build is kept beside the target's own, for the next time, where the bundle can be written to.
    """
    build = read_build(bundle, target)
    name, entry = score_entry(bundle)
    observed = observed_program(bundle.program_text(), name, entry, choice)
    digest = hashlib.sha256(observed.text.encode()).hexdigest()
    with tempfile.TemporaryDirectory(prefix="strixhlo-bisect-") as temporary:
        kept = bundle.target_dir(build.target) / "observed"
        folder = kept / digest[:12] if os.access(kept.parent, os.W_OK) else Path(temporary)
        copy = _observed_bundle(bundle, folder, name, observed, digest)
        say(f"compiling {name} with {len(observed.entry.outputs) - 4} observed values, for {build.target}")
        compile_bundle(
            copy,
            parse_target(build.target),
            activations=build.activations,
            keep_intermediates=None,
            say=say,
            kv_dtype=build.kv_dtype,
        )
        with Program(copy, build.target, threads, context=bundle.manifest.context) as program:
            yield Observation(observed, name, build, program)


def score_entry(bundle: Bundle) -> tuple[str, EntryPoint]:
    """Name and entry point of the entry that gives the logits of every row."""
    return next((n, e) for n, e in bundle.manifest.entry_points.items() if e.kind == "score")


def _observed_bundle(bundle: Bundle, folder: Path, name: str, observed: ObservedProgram, digest: str) -> Bundle:
    """A bundle of the observed program over the same weights, which may have changed since the last time."""
    weights = folder / WEIGHTS
    try:
        weights.parent.mkdir(parents=True, exist_ok=True)
        (folder / PROGRAM).write_text(observed.text)
        weights.unlink(missing_ok=True)
        weights.symlink_to(bundle.weights.resolve())
    except OSError as error:
        raise StrixhloError(f"{folder}: cannot be written: {error}; set TMPDIR, or copy the bundle") from None
    changed = {"entry_points": {name: observed.entry}, "program_sha256": digest}
    return Bundle(folder, bundle.manifest.model_copy(update=changed))
