"""Which layer and op of a compiled program is the first to compute something else than the checkpoint says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..bundle import Bundle, built_cache
from ..export.archive import DTYPES
from ..export.checkpoint.contents import Checkpoint
from ..export.jax_model import JaxModel, model_of_bundle
from ..runtime.program import read_build
from .judgement import EXACT, Finding, Judge, evaluations, row_error
from .observation import Chunk, Observation, observation, score_entry
from .observed_program import (
    Choice,
    ObservedOp,
    ends_of_layers,
    everything,
    layer_and_the_ends_before,
    observed_program,
)
from .reference_steps import Reference, Step

MOST_BYTES = 1 << 30  # of the values of one call
SLACK = 5.0  # where only the ends of layers are observed


@dataclass(frozen=True)
class Bisection:
    """Of one target: how many ops over how many tokens were judged, the largest error of each layer's ops, and every
    finding in order of execution; the first is the answer."""

    target: str
    tokens: int
    ops: int
    layer_errors: dict[str, float]
    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding | None:
        """The first op beyond its tolerance."""
        return self.findings[0] if self.findings else None

    def record(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"first": None if self.first is None else str(self.first)}

    def lines(self) -> list[str]:
        """The answer in words, then the layers."""
        if self.first is None:
            answer = f"bisect, {self.target}: all {self.ops} ops and what lies between them agree with the checkpoint"
        else:
            more = f" ({len(self.findings) - 1} more after it)" if len(self.findings) > 1 else ""
            answer = f"bisect, {self.target}: {self.first}{more}"
        errors = ", ".join(f"{layer} {error:.1g}" for layer, error in self.layer_errors.items())
        return [answer, f"  largest relative error by layer: {errors}"]


def bisect(
    bundle: Bundle,
    target: str,
    ids: Sequence[int],
    checkpoint: Checkpoint,
    *,
    threads: int | None = None,
    most_bytes: int = MOST_BYTES,
    say: Callable[[str], None] = lambda _text: None,
) -> Bisection:
    """Observe the bundle's score entry on a target over the ids, and judge every custom op and what lies between two.

    The reference is a fresh trace of the checkpoint with the checkpoint's weights, so that faults of the bundle's
    program, of its weights, of a kernel and of the compiler are all found. Where all values of a call are more than
    most_bytes, only what each layer adds to the hidden states is observed at first, then all ops of the layer at fault.
    """
    cache = built_cache(bundle.manifest, read_build(bundle, target))
    model = model_of_bundle(checkpoint, bundle.manifest, cache.dtype)
    name, entry = score_entry(bundle)
    sizes = observed_program(bundle.program_text(), name, entry, everything).sizes
    judge = partial(_bisected, bundle, target, ids, model, threads=threads, say=say)
    if sum(sizes.values()) <= most_bytes:
        return judge(everything)
    by_layers = judge(ends_of_layers, slack=SLACK)
    if by_layers.first is None or by_layers.first.error is None:
        return by_layers
    within = judge(layer_and_the_ends_before(by_layers.first.layer))
    return replace(by_layers, findings=within.findings or by_layers.findings)


def _bisected(
    bundle: Bundle,
    target: str,
    ids: Sequence[int],
    model: JaxModel,
    choice: Choice,
    *,
    threads: int | None,
    say: Callable[[str], None],
    slack: float = 1.0,
) -> Bisection:
    findings: list[Finding] = []
    errors: dict[str, float] = {}
    pools: tuple[Any, Any] = model.empty_pools()
    with observation(bundle, target, choice, threads, say) as seen:
        build = seen.build
        reference = Reference(model, seen.observed.entry.rows, evaluations(build))
        judge = Judge(seen.build, lambda names: changed_parameters(bundle, model, names), slack)
        for number, chunk in enumerate(seen.chunks(ids)):
            say(f"judging {len(seen.observed.ops)} ops, chunk {number + 1}")
            for found in _judged(seen, reference, judge, chunk, pools):
                if isinstance(found, Finding):
                    findings.append(found)
                else:
                    op, error = found
                    name = "outside" if op.layer is None else str(op.layer)
                    errors[name] = max(errors.get(name, 0.0), error)
            if findings:
                break
            pools = (chunk.values["k_pool"], chunk.values["v_pool"])
        return Bisection(seen.build.target, len(ids), len(seen.observed.ops), errors, tuple(findings))


def _judged(
    seen: Observation, reference: Reference, judge: Judge, chunk: Chunk, pools: tuple[Any, Any]
) -> Iterator[Finding | tuple[ObservedOp, float]]:
    ops = seen.observed.ops

    def given(index: int) -> tuple[list[np.ndarray | None], list[np.ndarray | None]]:
        op = ops[index]
        outputs = [o.output for o in op.operands], op.results
        takes, gives = ([None if n is None else chunk.values[n] for n in names] for names in outputs)
        return takes, gives

    expected = reference.names
    for i, (op, name) in enumerate(zip(ops, expected, strict=False)):
        if op.op != name or len(op.operands) != reference.operands[i]:
            yield Finding(op.layer, op.label, f"the program has {op.op} where a fresh trace has {name}", None, None)
            return
    if len(ops) != len(expected):
        yield Finding(None, "program", f"it has {len(ops)} custom ops, a fresh trace has {len(expected)}", None, None)
        return
    for step in reference.steps(chunk.inputs, pools, given):
        if step.index < len(ops):
            yield from judge.op(ops[step.index], step, chunk)
        else:
            yield from _outputs(step, chunk)


def _outputs(step: Step, chunk: Chunk) -> Iterator[Finding]:
    """What the program does to the last matmul's result."""
    error = row_error(chunk.values["logits"], np.asarray(step.operands[0]), chunk)
    if not error <= EXACT:
        yield Finding(None, "logits", "they are not made of the last op's result as they should be", error, EXACT)


def changed_parameters(bundle: Bundle, model: JaxModel, names: Sequence[str]) -> tuple[str, ...]:
    """Those parameters whose bytes in the bundle are not what an export of the checkpoint would write."""
    changed = []
    for name in dict.fromkeys(names):
        parameter = bundle.manifest.parameters[name]
        path = bundle.weights if parameter.file is None else bundle.manifest.references[parameter.file].path
        ours = np.memmap(path, np.uint8, "r", parameter.offset, (parameter.length,))
        weight, _, part = name.rpartition(".")
        stored = model.stored[weight]
        theirs = np.ascontiguousarray(stored.read()[part]).astype(DTYPES[stored.parts[part][1]][1], copy=False)
        if theirs.nbytes != len(ours) or not np.array_equal(theirs.reshape(-1).view(np.uint8), ours):
            changed.append(name)
    return tuple(changed)
