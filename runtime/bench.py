"""Speed of a compiled bundle, in llama-bench's habits: a warm-up, repetitions, mean and standard deviation.

pp512 computes a prompt of 512 random tokens, tg128 decodes 128 tokens one after the other; `@ d4096` does so behind
4096 positions that are filled before the clock starts. Batch B decodes a token of each of B sequences at every step.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np

from ..bundle import Build, Bundle
from ..errors import StrixhloError
from ..step_traffic import STRIX_HALO_BANDWIDTH, StepTraffic
from .batch_engine import BatchEngine, Blocks
from .energy import Energy, Source, measured_energy
from .load_plan import LoadPlan, load_plans
from .program import Program

PREDICTED = f"predicted from bytes and {STRIX_HALO_BANDWIDTH / 1e9:.0f} GB/s"


@dataclass(frozen=True)
class Test:
    """kind: pp or tg; tokens: of each of `batch` sequences; depth: positions that are filled before."""

    kind: str
    tokens: int
    batch: int
    depth: int

    @property
    def name(self) -> str:
        """pp512, tg128 @ d4096"""
        return f"{self.kind}{self.tokens}{f' @ d{self.depth}' if self.depth else ''}"


@dataclass(frozen=True)
class Result:
    """rates: tokens a second of all sequences together, of each repetition. step_bytes: the floor of a decode step (see
    step_traffic). dispatches and host waits: of the compiled program, a token. energy: joules a token by each source.
    predicted: nothing was run, and the one rate is the most that `bandwidth` allows."""

    test: Test
    rates: tuple[float, ...]
    step_bytes: float | None
    dispatches: float | None
    host_waits: float | None
    energy: tuple[Energy, ...] = ()
    predicted: bool = False

    @property
    def mean(self) -> float | None:
        """Of the rates."""
        return mean(self.rates) if self.rates else None

    @property
    def deviation(self) -> float:
        """Of the rates: of a sample, as llama-bench has it; 0 for one."""
        return stdev(self.rates) if len(self.rates) > 1 else 0.0

    @property
    def bandwidth(self) -> float | None:
        """Bytes of the floor a second."""
        if self.step_bytes is None or self.mean is None:
            return None
        return self.step_bytes * self.mean / self.test.batch

    def record(self, copy: float | None) -> dict[str, Any]:
        """Plain data for JSON; copy: bytes a second of the device's copy."""
        return {
            "test": self.test.name,
            **asdict(self.test),
            "rates": list(self.rates),
            "mean": self.mean,
            "deviation": self.deviation,
            "predicted": PREDICTED if self.predicted else None,
            "step_bytes": self.step_bytes,
            "bandwidth": self.bandwidth,
            "of_copy": self.bandwidth / copy if self.bandwidth and copy else None,
            "dispatches_per_token": self.dispatches,
            "host_waits_per_token": self.host_waits,
            "energy": [
                {"source": e.source, "joules_per_token": e.joules, "problem": e.problem or None} for e in self.energy
            ],
        }


def plan(prompts: Iterable[int], decodes: Iterable[int], batches: Iterable[int], depths: Sequence[int]) -> list[Test]:
    """All tests: prompts at every depth, decoding at every depth and batch. 0 tokens: none."""
    found = [Test("pp", p, 1, d) for d in depths for p in prompts if p]
    return found + [Test("tg", n, b, d) for d in depths for n in decodes if n for b in batches]


def check_room(bundle: Bundle, tests: Iterable[Test]) -> None:
    """StrixhloError when a test needs more positions than a sequence can have."""
    kv = bundle.manifest.kv_cache
    context = min(bundle.manifest.context, kv.blocks * kv.block_size)
    for test in tests:
        each = test.depth + test.tokens
        if each > context:
            raise StrixhloError(
                f"bench: {test.name} needs {each} positions, but {bundle.path} has a context of {context}; give a"
                f" smaller --depth, -p or -n, or export with --context {each}"
            )


def plan_cache(bundle: Bundle, build: Build, tests: Sequence[Test]) -> LoadPlan:
    """KV pools that hold the largest test. StrixhloError where a test has no room in a sequence, or in them."""
    check_room(bundle, tests)
    kv = bundle.manifest.kv_cache

    def rows(test: Test) -> int:
        return test.batch * kv.rows_for(test.depth + test.tokens)

    longest = max(test.depth + test.tokens for test in tests)
    most = max(tests, key=rows)
    found = load_plans([(bundle, build)], None, longest, -(-rows(most) // kv.rows_for(longest)))[0]
    if rows(most) > found.size.rows:
        each = most.depth + most.tokens
        why = "as much as memory allows" if build.kv_rows_free else "as it was exported"
        raise StrixhloError(
            f"bench: {most.name} with batch {most.batch} needs {most.batch} x {each} positions, but the KV cache of"
            f" {bundle.path} has {kv.positions_in(found.size.rows)}, {why}; give a smaller -b, --depth, -p or -n"
        )
    return found


class _Sequences:
    """`batch` sequences of random tokens in an engine, `depth` positions of each filled."""

    def __init__(self, engine: BatchEngine, test: Test, seed: int = 0) -> None:
        self.engine, self.test = engine, test
        generator = np.random.default_rng(seed)
        each = test.depth + test.tokens
        self.blocks = [engine.program.kv_cache.own_table(each, i) for i in range(test.batch)]
        self.tokens = generator.integers(0, engine.vocab_size, test.tokens).tolist()
        before = generator.integers(0, engine.vocab_size, test.depth).tolist()
        for blocks in self.blocks:
            self._prompt(before, 0, blocks)

    def _prompt(self, tokens: Sequence[int], start: int, blocks: Blocks) -> Counter[str]:
        """Chunk by chunk; how often each entry was called."""
        calls: Counter[str] = Counter()
        at = 0
        while at < len(tokens):
            rows = min(self.engine.chunk_rows(len(tokens) - at), len(tokens) - at)
            calls[self.engine.chunk_entry(rows)] += 1
            last = at + rows == len(tokens)
            self.engine.prefill(tokens[at : at + rows], start + at, blocks, "tokens" if last else None)
            at += rows
        return calls

    def run(self, tokens: int | None = None) -> Counter[str]:
        """The test once (or its first `tokens` only): its calls of entries. Each time over the same positions."""
        test, count = self.test, tokens or self.test.tokens
        if test.kind == "pp":
            return self._prompt(self.tokens[:count], test.depth, self.blocks[0])
        row = [self.tokens[0]] * test.batch
        if self.engine.queues and test.batch <= self.engine.decode_sizes[-1]:
            self._decode_ahead(row, count)
        else:
            for step in range(count):
                fetched = self.engine.decode(row, [test.depth + step] * test.batch, self.blocks, "tokens")
                row = [max(int(t), 0) for t in fetched]  # a random model may have no largest logit: any token will do
        return Counter({name: n * count for name, n in Counter(self.engine.decode_entries(test.batch)).items()})

    def _decode_ahead(self, row: Sequence[int], count: int) -> None:
        """As the scheduler does it: the next step is started before this one's tokens are read."""
        positions = [[self.test.depth + step] * self.test.batch for step in range(count)]
        step = self.engine.start(row, positions[0], self.blocks, "tokens")
        for where in positions[1:]:
            following = self.engine.start(step, where, self.blocks, "tokens")
            step.read()
            step = following
        step.read()


def run_tests(
    program: Program,
    tests: Sequence[Test],
    traffic: StepTraffic,
    *,
    repeats: int,
    sources: Sequence[Source],
    say: Callable[[str], None],
) -> list[Result]:
    """Measure. Warm-up: a whole prompt, or one token, as llama-bench does."""
    engine = BatchEngine(program)
    try:
        return [_run(engine, test, traffic, repeats, sources, say) for test in tests]
    finally:
        engine.close()


def _run(
    engine: BatchEngine,
    test: Test,
    traffic: StepTraffic,
    repeats: int,
    sources: Sequence[Source],
    say: Callable[[str], None],
) -> Result:
    name = f"{test.name}{f', batch {test.batch}' if test.batch > 1 else ''}"
    say(f"{name}: warm-up")
    sequences = _Sequences(engine, test)
    calls = sequences.run(None if test.kind == "pp" else 1)
    rates = []
    total = test.tokens * test.batch
    with measured_energy(sources) as spent:
        for repetition in range(repeats):
            say(f"{name}: {repetition + 1} of {repeats}")
            began = time.perf_counter()
            calls = sequences.run()
            rates.append(total / (time.perf_counter() - began))
    energy = tuple(
        Energy(e.source, None if e.joules is None else e.joules / (repeats * total), e.problem) for e in spent()
    )
    return _result(test, tuple(rates), engine.program.build, traffic, calls, energy)


def _result(
    test: Test,
    rates: tuple[float, ...],
    build: Build,
    traffic: StepTraffic,
    calls: Counter[str],
    energy: tuple[Energy, ...] = (),
    predicted: bool = False,
) -> Result:
    step = traffic.step_bytes(test.batch, test.depth, test.tokens) if test.kind == "tg" else None
    tokens = test.tokens * test.batch
    counted = [_counted(build, calls, label) for label in ("dispatches", "host_waits")]
    dispatches, waits = (None if n is None else n / tokens for n in counted)
    return Result(test, rates, step, dispatches, waits, energy, predicted)


def _counted(build: Build, calls: Counter[str], label: str) -> int | None:
    """How often the compiled program does that in these calls; None where build.json does not say it."""
    entries = build.report.get("entries", {})
    if not calls or not all(isinstance(entries.get(name, {}).get(label), int) for name in calls):
        return None
    return sum(entries[name][label] * times for name, times in calls.items())


def predict(bundle: Bundle, build: Build, tests: Sequence[Test], traffic: StepTraffic) -> list[Result]:
    """What the bytes of decode steps allow on gfx1151, without a device. Prompts are bound by arithmetic: no rate."""
    decodes = sorted((e.rows, name) for name, e in bundle.manifest.entry_points.items() if e.kind == "decode")
    results = []
    for test in tests:
        calls: Counter[str] = Counter()
        rates: tuple[float, ...] = ()
        if test.kind == "tg":
            left, seconds = test.batch, 0.0
            while left > 0:
                rows, name = next((d for d in decodes if d[0] >= left), decodes[-1])
                calls[name] += test.tokens
                seconds += traffic.step_bytes(min(rows, left), test.depth, test.tokens) / STRIX_HALO_BANDWIDTH
                left -= rows
            rates = (test.batch / seconds,)
        results.append(_result(test, rates, build, traffic, calls, predicted=True))
    return results
