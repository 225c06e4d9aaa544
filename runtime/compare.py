"""A compiled bundle beside a native engine on the same token ids: numerics, greedy tokens, speed, and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ..errors import StrixhloError
from .engine import Engine
from .logit_trace import LogitTrace, logit_trace
from .native.compiled import CompiledBundle
from .native.contender import Contender, TopLogprobs
from .numerics import LogitComparison, compare_positions, compare_top, first_divergence, top_two_gap
from .peak import SidePeak
from .sampling import SamplingParams, sample, step_rng
from .verdict import Limits, failures, limits_for

PASSAGE = Path(__file__).parent / "data" / "war_of_the_worlds.txt"
GREEDY_PROMPT = "Once upon a time"
CHAT = ({"role": "user", "content": "What is gravity?"},)
DECODED = 16  # of the scored tokens, once more token by token
SHORT = 16  # tokens of prompt before decoding is timed


@dataclass(frozen=True)
class Workload:
    """What both sides get: ids of a text and of a prompt, numbers of tokens, and timed runs of each."""

    ids: tuple[int, ...]
    prompt: tuple[int, ...]
    greedy: int
    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    repeats: int

    @property
    def longest(self) -> int:
        """Positions that the longest part needs."""
        return max(len(self.ids), len(self.prompt) + self.greedy, *self.prefill, *(SHORT + n for n in self.decode))

    def check(self) -> None:
        """StrixhloError where the text is too short."""
        if len(self.ids) < DECODED + 2:
            raise StrixhloError(f"compare: the text has {len(self.ids)} tokens; at least {DECODED + 2} are needed")

    def speed_prompt(self, length: int) -> list[int]:
        """Ids to time: the text, repeated as often as it takes."""
        return [int(i) for i in np.resize(np.array(self.ids, np.int64), length)]


@dataclass(frozen=True)
class Speed:
    """Of one test (pp512: a prompt's prefill; tg128: decode steps), tokens a second of every run, in turn. A prefill
    ends with the first token, so its time is the time to the first token."""

    test: str
    tokens: int
    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median over median."""
        return median(self.ours) / median(self.theirs)


@dataclass(frozen=True)
class Comparison:
    """All that `strixhlo compare` reports. numerics: many rows at a time; decoded: our token-by-token path against the
    same rows of theirs. `greedy_agreed` counts the tokens before the first difference, and `divergence_gap` is what
    separates our two best logits there (None: they never differ). failures: why the verdict is bad; empty: it is good.
    memory: of each side alone, or why it is not known; None: not measured.
    """

    native: str
    limits: Limits
    numerics: LogitComparison
    decoded: LogitComparison
    greedy_tokens: int
    greedy_agreed: int
    divergence_gap: float | None
    prompt_ids: str
    chat_ids: str
    speeds: tuple[Speed, ...]
    failures: tuple[str, ...]
    trace: LogitTrace
    memory: tuple[SidePeak | str, SidePeak | str] | None = None

    def record(self) -> dict[str, Any]:
        """Plain data for JSON; of the trace the KL of each position."""
        record = asdict(self) | {"passed": not self.failures, "kl_by_position": self.trace.kl}
        del record["trace"]
        return record


def compare(ours: CompiledBundle, theirs: Contender, work: Workload, *, say: Callable[[str], None]) -> Comparison:
    """Run both sides on the same ids. StrixhloError where the text is too short."""
    work.check()
    if theirs.vocab_size is not None and theirs.vocab_size != ours.vocab_size:
        raise StrixhloError(
            f"compare: {theirs.name} has a model of {theirs.vocab_size} tokens, the bundle's has {ours.vocab_size}:"
            " they are not the same model; name the bundle's own checkpoint with --source"
        )
    say(f"logits of {len(work.ids) - 1} tokens")
    ids, targets = list(work.ids[:-1]), work.ids[1:]
    reference = theirs.logits(ids)
    if isinstance(reference, TopLogprobs) and (whole := reference.dense(ours.engine.vocab_size)) is not None:
        reference = whole
    formats = ours.engine.program.bundle.manifest.weight_formats
    limits = limits_for(formats, ours.precision, theirs.precision, top=isinstance(reference, TopLogprobs))
    mine_logits = ours.logits(ids)
    numerics, kl = _summary(mine_logits, reference, targets)
    trace = logit_trace(mine_logits, reference, kl)
    del mine_logits
    decoded, _ = _summary(ours.decoded_logits(ids, DECODED), _last(reference, DECODED), targets[-DECODED:])
    say(f"greedy, {work.greedy} tokens each")
    mine, other = ours.greedy(work.prompt, work.greedy), theirs.greedy(work.prompt, work.greedy)
    both = min(len(mine), len(other))
    at = first_divergence(mine[:both], other[:both])
    gap = None if at is None else _gap(ours, [*work.prompt, *mine[:at]])
    found = failures(numerics, limits, "scored") + failures(decoded, limits, "decoded")
    if gap is not None and gap > limits.gap:
        found.append(f"greedy: tokens differ after {at} where our two best logits are {gap:.3f} apart")
    prompt_ids = difference(list(work.prompt), theirs.encode(GREEDY_PROMPT))
    chat_ids = difference(ours.encode_chat(CHAT), theirs.encode_chat(CHAT))
    speeds = measure_speeds(ours, theirs, work, say)
    return Comparison(
        theirs.name, limits, numerics, decoded, both, both if at is None else at, gap, prompt_ids, chat_ids, speeds,
        tuple(found), trace,
    )  # fmt: skip


def difference(ours: Sequence[int] | None, theirs: Sequence[int] | None) -> str:
    """How two encodings of one text differ, in words."""
    if ours is None or theirs is None:
        return "not compared: " + ("we have" if ours is None else "it has") + " none"
    if list(ours) == list(theirs):
        return "same"
    for one, two, who in ((ours, theirs, "it"), (theirs, ours, "we")):
        if list(two[1:]) == list(one):
            return f"different: {who} put{'s' if who == 'it' else ''} token {two[0]} (BOS) first"
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return f"different: {len(ours)} tokens and {len(theirs)}, the first {at} equal"


def measure_speeds(ours: Contender, theirs: Contender, work: Workload, say: Callable[[str], None]) -> tuple[Speed, ...]:
    """Each test `repeats` times on both sides in turn, after one unmeasured run each."""
    length = max((SHORT, *work.prefill)) + work.repeats
    text = work.speed_prompt(length)
    tests = [(f"pp{n}", n, 0) for n in work.prefill] + [(f"tg{n}", SHORT, n) for n in work.decode]
    speeds = []
    for name, tokens, steps in tests:
        say(f"speed, {name}, {work.repeats} runs each in turn")
        rates: list[tuple[float, float]] = []
        for run in range(work.repeats + 1):
            prompt = text[run : run + tokens]  # another first token each time: no prefix cache of a server helps
            times = (ours.run(prompt, steps), theirs.run(prompt, steps))
            if run:
                a, b = (steps / t.decode if steps else len(prompt) / t.first_token for t in times)
                rates.append((a, b))
        mine, other = zip(*rates, strict=True)
        speeds.append(Speed(name, steps or tokens, mine, other))
    return tuple(speeds)


def _summary(
    ours: np.ndarray, theirs: np.ndarray | TopLogprobs, targets: Sequence[int]
) -> tuple[LogitComparison, np.ndarray]:
    """Over all positions, and the KL of each."""
    if isinstance(theirs, TopLogprobs):
        found, top = compare_top(ours, theirs.ids, theirs.logprobs, targets), theirs.ids.shape[1]
    else:
        found, top = compare_positions(ours, theirs, targets), None
    return found.summary(ours.shape[1], top), found.kl


def _last(rows: np.ndarray | TopLogprobs, n: int) -> np.ndarray | TopLogprobs:
    return TopLogprobs(rows.ids[-n:], rows.logprobs[-n:]) if isinstance(rows, TopLogprobs) else rows[-n:]


def _gap(ours: CompiledBundle, ids: Sequence[int]) -> float:
    ours.engine.reset()
    return float(top_two_gap(ours.engine.prefill(ids)[None])[0])


def greedy(engine: Engine, prompt: Sequence[int], n: int) -> tuple[list[int], list[float]]:
    """The n tokens after `prompt` by greedy choice, past any end-of-text token, and each one's top-two logit gap."""
    engine.reset()
    logits = engine.prefill(prompt)
    tokens: list[int] = []
    gaps: list[float] = []
    while True:
        tokens.append(sample(logits, SamplingParams(), step_rng(0, 0)))
        gaps.append(float(top_two_gap(logits[None])[0]))
        if len(tokens) == n:
            return tokens, gaps
        logits = engine.decode(tokens[-1])
