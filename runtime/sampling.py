"""From logits to the next token: greedy, top-k, typical, top-p, min-p, XTC, temperature, seed, log-probabilities.

The order is llama.cpp's default chain (common/common.h: top_k, typ_p, top_p, min_p, xtc, temperature last), because the
native path that we compare with and most published settings assume it. Temperature last means that the filters judge
the model's own distribution, whatever the temperature. mlx-lm also has temperature last but applies top-p, min-p, then
top-k; Hugging Face applies the temperature first.

Probabilities are float64, ties go to the lower token id, and the random stream of a token depends on (seed, step)
only, so a sequence is the same alone or in any batch.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import StrixhloError

DRY_BREAKERS = ("\n", ":", '"', "*")  # what both llama.cpp and text-generation-webui have
MAX_BREAKERS = 32  # each is looked for in the whole vocabulary
SEEDS = 1 << 64  # seeds are 64-bit: Philox has a 128-bit key, the other half is the step


class InvalidSampling(StrixhloError):
    """A field of SamplingParams that is out of range: its name, its value, and what it must be."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"sampling: {name} is {value!r}; it must be {expected}")
        self.name, self.value, self.expected = name, value, expected


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens, and when to stop. The defaults are greedy.

    temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch a filter off; seed None draws a fresh one.
    typical_p 1, repetition_penalty 1, presence_penalty 0 and frequency_penalty 0 are off too. logit_bias: token id ->
    what is added to its logit. dry_multiplier 0 is off (see dry.py for the rest). xtc_probability: how often all tokens
    of at least xtc_threshold are taken away but the least likely of them. json_schema, regex, grammar (Lark): what the
    answer must match, one of them at most.
    logprobs: how many of the best log-probabilities to report with each token (None: not even the token's own).
    Raises StrixhloError on values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int = 128
    logprobs: int | None = None
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_sequence_breakers: tuple[str, ...] = DRY_BREAKERS
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    json_schema: Mapping[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        _check_real("temperature", self.temperature, lambda t: t >= 0, "a finite number, 0 (greedy) or more")
        _check_int("top_k", self.top_k, 0, "a whole number, 0 (off) or more")
        _check_real("top_p", self.top_p, lambda p: 0 < p <= 1, "a number above 0 and at most 1 (off)")
        _check_real("min_p", self.min_p, lambda p: 0 <= p <= 1, "a number from 0 (off) to 1")
        _check_real("typical_p", self.typical_p, lambda p: 0 < p <= 1, "a number above 0 and at most 1 (off)")
        _check_real("repetition_penalty", self.repetition_penalty, lambda p: 0 < p <= 100, "above 0 and at most 100")
        _check_real("presence_penalty", self.presence_penalty, lambda p: abs(p) <= 100, "a number from -100 to 100")
        _check_real("frequency_penalty", self.frequency_penalty, lambda p: abs(p) <= 100, "a number from -100 to 100")
        _check_real("dry_multiplier", self.dry_multiplier, lambda m: 0 <= m <= 100, "a number from 0 (off) to 100")
        _check_real("dry_base", self.dry_base, lambda b: 1 <= b <= 4, "a number from 1 to 4")
        _check_int("dry_allowed_length", self.dry_allowed_length, 1, "a whole number from 1 to 49", below=50)
        _check_texts("dry_sequence_breakers", self.dry_sequence_breakers)
        if len(self.dry_sequence_breakers) > MAX_BREAKERS:
            raise StrixhloError(f"sampling: more than {MAX_BREAKERS} dry_sequence_breakers; give fewer")
        _check_real("xtc_probability", self.xtc_probability, lambda p: 0 <= p <= 1, "a number from 0 (off) to 1")
        _check_real("xtc_threshold", self.xtc_threshold, lambda t: 0 <= t <= 1, "a number from 0 to 1")
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidSampling("logit_bias", self.logit_bias, "a mapping of ids to numbers")
        for token, bias in self.logit_bias.items():
            _check_int("a token of logit_bias", token, 0, "a token id", below=SEEDS)
            _check_real(f"logit_bias[{token}]", bias, lambda b: abs(b) <= 1000, "a number from -1000 to 1000")
        _check_int("max_tokens", self.max_tokens, 1, "a whole number, 1 or more")
        if self.seed is not None:
            _check_int("seed", self.seed, 0, "a whole number from 0 to 2**64 - 1", below=SEEDS)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, "a whole number, 0 or more")
        if (self.json_schema is not None) + (self.regex is not None) + (self.grammar is not None) > 1:
            raise StrixhloError("sampling: give one of json_schema, regex and grammar, not several")
        _check_texts("stop", self.stop)

    @property
    def constrained(self) -> bool:
        """The answer must match a schema, an expression or a grammar."""
        return self.json_schema is not None or self.regex is not None or self.grammar is not None


def _check_int(name: str, value: object, low: int, expected: str, below: float = math.inf) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value < below:
        raise InvalidSampling(name, value, expected)


def _check_real(name: str, value: object, in_range: Callable[[float], bool], expected: str) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not (math.isfinite(value) and in_range(value)):
        raise InvalidSampling(name, value, expected)


def _check_texts(name: str, value: object) -> None:
    if not isinstance(value, tuple) or not all(isinstance(s, str) and s for s in value):
        raise InvalidSampling(name, value, "a tuple of strings, none of them empty")


def fresh_seed() -> int:
    """A seed for a request that names none; report it, so that the run can be repeated."""
    return secrets.randbits(64)


def step_rng(seed: int, step: int) -> np.random.Generator:
    """The random stream of one generated token: a function of (seed, step) alone."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, step], np.uint64)))


def sample(logits: np.ndarray, params: SamplingParams, rng: np.random.Generator) -> int:
    """The next token id from float32 logits [vocab]. Raises StrixhloError when they hold NaN or +inf, or only -inf."""
    if params.temperature == 0 or params.top_k == 1:
        return _best(logits)
    exclude = params.xtc_probability > 0 and rng.random() < params.xtc_probability
    ids, probabilities = distribution(logits, params, exclude)
    cumulative = np.cumsum(probabilities)
    drawn = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
    last_possible = np.searchsorted(cumulative, cumulative[-1], side="left")  # the product may round up to the total
    return int(ids[min(drawn, last_possible)])


def distribution(logits: np.ndarray, params: SamplingParams, exclude: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """What `sample` draws from: token ids [n] ascending, float64 probabilities [n]. exclude: XTC strikes this time."""
    best = _best(logits)
    if params.temperature == 0:
        return np.array([best]), np.ones(1)
    peak = float(logits[best])
    ids: np.ndarray | None = None  # None: the whole vocabulary
    kept = logits
    if 0 < params.top_k < logits.size:
        ids = _largest(kept, params.top_k)
        kept = logits[ids]
    if params.typical_p < 1:
        inside = _typical(kept, params.typical_p)
        ids = inside if ids is None else ids[inside]
        kept = logits[ids]
        peak = float(kept.max())  # the likeliest may be gone
    if params.top_p < 1:
        inside = _nucleus(kept, peak, params.top_p)
        ids = inside if ids is None else ids[inside]
        kept = logits[ids]
    scaled = kept.astype(np.float64) - peak
    if params.min_p > 0:
        passing = np.flatnonzero(scaled >= math.log(params.min_p))
        ids = passing if ids is None else ids[passing]
        scaled = scaled[passing]
    if exclude:
        remaining = _without_top_choices(scaled, params.xtc_threshold)
        ids = remaining if ids is None else ids[remaining]
        scaled = scaled[remaining] - scaled[remaining].max()
    weights = np.exp(scaled / params.temperature)
    if ids is None:
        ids = np.arange(logits.size)
    return ids, weights / weights.sum()


def _without_top_choices(values: np.ndarray, threshold: float) -> np.ndarray:
    """Indices, ascending, without all that are at least as likely as `threshold` but the least likely of these.

    XTC as in llama.cpp (llama_sampler_xtc): probabilities are those of what the other filters left; of equal ones the
    last is kept.
    """
    weights = np.exp(values - values.max())
    top = np.flatnonzero(weights >= threshold * weights.sum())
    if top.size < 2:
        return np.arange(values.size)
    kept = top[top.size - 1 - int(values[top][::-1].argmin())]
    return np.setdiff1d(np.arange(values.size), top[top != kept])


def top_logprobs(logits: np.ndarray, n: int) -> list[tuple[int, float]]:
    """The n best (token id, natural log-probability), best first, of the model's own distribution (no filter)."""
    if n <= 0:
        return []
    log_total = _log_total(logits)
    best = _largest(logits, n)
    best = best[np.argsort(-logits[best], kind="stable")]
    return [(int(i), float(logits[i]) - log_total) for i in best]


def logprob(logits: np.ndarray, token: int) -> float:
    """Natural log-probability of one token in the model's own distribution (no filter)."""
    return float(logits[token]) - _log_total(logits)


def _best(logits: np.ndarray) -> int:
    """First index of the largest logit, after checking that there is one."""
    if logits.ndim != 1 or logits.size == 0:
        raise StrixhloError(f"sampling: logits have shape {logits.shape}; one row of the vocabulary's size is needed")
    best = int(logits.argmax())  # of the first NaN, where there is one
    if not math.isfinite(logits[best]):
        raise broken_logits(f"the logit of token {best} is {logits[best]}")
    return best


def broken_logits(what: str) -> StrixhloError:
    """The error where there is no best token."""
    return StrixhloError(
        f"sampling: {what}: the model's output is broken; "
        "try another target or --dtype, and `strixhlo compare` to find where it goes wrong"
    )


def _log_total(logits: np.ndarray) -> float:
    peak = float(logits[_best(logits)])
    return peak + math.log(np.exp(logits.astype(np.float64) - peak).sum())


def _largest(values: np.ndarray, k: int) -> np.ndarray:
    """Indices, ascending, of the k largest values; of equal ones at the border the first."""
    if k >= values.size:
        return np.arange(values.size)
    border = np.partition(values, values.size - k)[values.size - k]
    above = np.flatnonzero(values > border)
    equal = np.flatnonzero(values == border)[: k - above.size]
    return np.sort(np.concatenate([above, equal]))


def _typical(values: np.ndarray, typical_p: float) -> np.ndarray:
    """Indices, ascending, of the fewest entries with surprise nearest to the entropy that add up to at least typical_p.

    Meister et al., "Locally Typical Sampling", 2022. Of equally near ones the first.
    """
    scaled = values.astype(np.float64) - float(values.max())
    weights = np.exp(scaled)
    total = weights.sum()
    probabilities, surprise = weights / total, math.log(total) - scaled
    finite = probabilities > 0
    entropy = float((probabilities[finite] * surprise[finite]).sum())
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    reached = np.cumsum(probabilities[order])
    return np.sort(order[: np.searchsorted(reached, min(typical_p, reached[-1])) + 1])


def _nucleus(values: np.ndarray, peak: float, top_p: float) -> np.ndarray:
    """Indices, ascending, of the fewest likeliest entries whose probabilities add up to at least top_p."""
    weights = np.exp(values.astype(np.float64) - peak)
    wanted = top_p * weights.sum()
    k = 256
    while True:  # sorting the whole vocabulary would cost more than all the rest
        best = _largest(values, k)
        best = best[np.argsort(-values[best], kind="stable")]
        reached = np.cumsum(weights[best])
        if reached[-1] >= wanted or best.size == values.size:
            break
        k *= 8
    return np.sort(best[: np.searchsorted(reached, wanted) + 1])
