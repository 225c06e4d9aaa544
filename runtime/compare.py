"""A compiled bundle beside llama.cpp on the checkpoint that it was made from: numerics, greedy tokens, speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ..errors import StrixhloError
from .engine import Engine
from .native.llama_cpp import LlamaCpp
from .numerics import LogitComparison, compare_logits, first_divergence, top_two_gap
from .sampling import SamplingParams, sample, step_rng
from .tokenizer import BundleTokenizer

PASSAGE = Path(__file__).parent / "data" / "war_of_the_worlds.txt"
SCORED = 100  # tokens
GREEDY_PROMPT = "Once upon a time"


@dataclass(frozen=True)
class Speeds:
    """Tokens per second, medians of `repeats` runs that alternate between the two engines."""

    prompt_tokens: int
    decoded_tokens: int
    repeats: int
    prefill_ours: float
    prefill_theirs: float
    decode_ours: float
    decode_theirs: float


@dataclass(frozen=True)
class Comparison:
    """All that `strixhlo compare` reports. `greedy_agreed` counts the tokens before the first difference, and
    `divergence_gap` is what separates our two best logits there (None: they never differ)."""

    native: str
    numerics: LogitComparison
    greedy_tokens: int
    greedy_agreed: int
    divergence_gap: float | None
    same_prompt_ids: bool
    speeds: Speeds

    def record(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def compare_with_llama_cpp(
    engine: Engine,
    tokenizer: BundleTokenizer,
    gguf: Path,
    *,
    threads: int,
    greedy_tokens: int,
    decoded_tokens: int,
    repeats: int,
    say: Callable[[str], None],
) -> Comparison:
    """Run both engines on the same token ids, `threads` threads each."""
    ids = tokenizer.encode(PASSAGE.read_text("utf-8"))[:SCORED]
    prompt = tokenizer.encode(GREEDY_PROMPT)
    with LlamaCpp(gguf, n_ctx=min(2048, engine.context), n_threads=threads) as native:
        same = native.tokenize(GREEDY_PROMPT) == prompt
        say(f"greedy, {greedy_tokens} tokens each")
        (ours, gaps), theirs = greedy(engine, prompt, greedy_tokens), native.greedy(prompt, greedy_tokens)
        say(f"logits of {len(ids)} tokens over the whole vocabulary")
        engine.reset()
        numerics = compare_logits(engine.score(ids[:-1]), native.teacher_forced_logits(ids[:-1]), ids[1:])
        say(f"speed, {repeats} runs each in turn")
        speeds = measure_speeds(engine, native, ids, decoded_tokens, repeats)
    both = min(len(ours), len(theirs))
    diverged = first_divergence(ours[:both], theirs[:both])
    agreed, gap = (both, None) if diverged is None else (diverged, gaps[diverged])
    return Comparison("llama.cpp", numerics, both, agreed, gap, same, speeds)


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


def measure_speeds(engine: Engine, native: LlamaCpp, prompt: Sequence[int], decoded: int, repeats: int) -> Speeds:
    """Prefill of `prompt` and `decoded` greedy steps, ours and theirs in turn, after one unmeasured run each."""
    if len(prompt) + decoded > engine.context:
        raise StrixhloError(f"{len(prompt)} + {decoded} tokens do not fit into the context of {engine.context}")
    rates: list[tuple[float, float, float, float]] = []
    for run in range(repeats + 1):
        ours = _our_speed(engine, prompt, decoded)
        speed = native.measure_speed(prompt, decoded, repeats=1)
        if run:
            rates.append((ours[0], speed.prefill, ours[1], speed.decode))
    return Speeds(len(prompt), decoded, repeats, *(median(column) for column in zip(*rates, strict=True)))


def _our_speed(engine: Engine, prompt: Sequence[int], decoded: int) -> tuple[float, float]:
    engine.reset()
    began = time.perf_counter()
    logits = engine.prefill(prompt)
    prefilled = time.perf_counter()
    for _ in range(decoded):
        logits = engine.decode(sample(logits, SamplingParams(), step_rng(0, 0)))
    ended = time.perf_counter()
    return len(prompt) / (prefilled - began), decoded / (ended - prefilled)
