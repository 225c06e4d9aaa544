"""How rotary frequencies are stretched for longer contexts: the "rope_scaling" block of config.json.

Kinds: linear, llama3, yarn (Peng et al., arXiv:2309.00071), longrope (Ding et al., arXiv:2402.13753), proportional
(Gemma 4), and dynamic, which up to max_position_embeddings, the most that a bundle holds, changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import StrixhloError
from ..config_values import count, flag, numbers, positive, shown, wrong

KINDS = ("default", "dynamic", "linear", "llama3", "longrope", "proportional", "yarn")

_SHARED_KEYS = {"rope_type", "type", "factor", "rope_theta", "partial_rotary_factor"}
_SHARED_KEYS |= {"original_max_position_embeddings", "max_position_embeddings"}
_KEYS = {
    "llama3": {"low_freq_factor", "high_freq_factor"},
    "longrope": {"short_factor", "long_factor", "attention_factor"},
    "yarn": {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned"},
}


@dataclass(frozen=True)
class RopeScaling:
    """One scaling. Which fields count depends on `kind`; `magnitude` multiplies cosines and sines in all kinds."""

    kind: str = "default"
    factor: float = 1.0
    original_context: int = 8192
    low: float = 1.0  # llama3: low_freq_factor; yarn: beta_slow, in turns over the original context
    high: float = 4.0  # llama3: high_freq_factor; yarn: beta_fast
    truncate: bool = True
    magnitude: float = 1.0
    long_magnitude: float = 0.0  # longrope: for contexts above the original one, where it is another (0: it is not)
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    rotated: float = 1.0  # proportional: the fraction of each head whose frequencies are not 0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RopeScaling:
        """Reads the block of a model's configuration; a kind that is not supported is an error that names it."""
        block = config.get("rope_scaling")
        if not block:
            return cls()
        if not isinstance(block, Mapping):
            raise wrong("rope_scaling", block, "an object")
        kind = block.get("rope_type", block.get("type", "default"))
        if kind == "su":  # longrope's first name
            kind = "longrope"
        if kind not in KINDS:
            raise StrixhloError(f"rope scaling of type {shown(kind)} is not supported; supported: {', '.join(KINDS)}")
        known = _SHARED_KEYS | _KEYS.get(kind, set())
        unknown = sorted(key for key, value in block.items() if value is not None and key not in known)
        if unknown:
            raise StrixhloError(
                f"config.json: rope_scaling: {unknown[0]} = {shown(block[unknown[0]])} is not supported for {kind}"
            )
        if kind in ("default", "dynamic"):
            return cls()
        if kind == "linear":
            return cls(kind, positive(block, "factor"))
        if kind == "proportional":
            return cls(kind, positive(block, "factor", 1.0), rotated=positive(config, "partial_rotary_factor", 1.0))
        return {"llama3": _llama3, "yarn": _yarn, "longrope": _longrope}[kind](block, config)

    def scaled(self, inverse: np.ndarray, base: float, context: int) -> np.ndarray:
        """inverse frequencies float32 [dims / 2] of that base -> the scaled ones. context: positions of the bundle."""
        if self.kind == "linear":
            return inverse / np.float32(self.factor)
        if self.kind == "llama3":
            return self._ramped(inverse, self._llama3_kept(inverse))
        if self.kind == "yarn":
            return self._ramped(inverse, self._yarn_kept(len(inverse), base))
        if self.kind == "longrope":
            return self._long_or_short(inverse, context)
        if self.kind == "proportional":
            rotated = np.arange(len(inverse)) < int(self.rotated * 2 * len(inverse) // 2)
            return np.where(rotated, inverse / np.float32(self.factor), np.float32(0)).astype(np.float32)
        return inverse

    def magnitude_in(self, context: int) -> float:
        """The factor of cosines and sines. context: positions of the bundle."""
        return self.long_magnitude if self.long_magnitude and context > self.original_context else self.magnitude

    def _ramped(self, inverse: np.ndarray, kept: np.ndarray) -> np.ndarray:
        return ((1 - kept) * (inverse / np.float32(self.factor)) + kept * inverse).astype(np.float32)

    def _llama3_kept(self, inverse: np.ndarray) -> np.ndarray:
        """Llama 3.1: how much of a frequency is kept: 0 for low ones, 1 for high ones, a linear ramp between."""
        turns = self.original_context / (2 * math.pi / inverse)
        if self.low == self.high:  # Llama 4
            return (turns > self.high).astype(np.float32)
        return np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0).astype(np.float32)

    def _yarn_kept(self, pairs: int, base: float) -> np.ndarray:
        """YaRN: the same, with a ramp over the pair's index between those that make `high` and `low` turns."""

        def index(turns: float) -> float:
            return pairs * math.log(self.original_context / (turns * 2 * math.pi)) / math.log(base)

        first, last = index(self.high), index(self.low)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        width = last - first if last != first else 0.001
        return (1 - np.clip((np.arange(pairs, dtype=np.float32) - first) / width, 0.0, 1.0)).astype(np.float32)

    def _long_or_short(self, inverse: np.ndarray, context: int) -> np.ndarray:
        """LongRoPE has two sets of factors. transformers changes over when a sequence outgrows the original context,
        with keys of both kinds in its cache; here, as in llama.cpp, the bundle's context decides once and for all."""
        factors = np.array(self.long if context > self.original_context else self.short, np.float32)
        if len(factors) != len(inverse):
            raise StrixhloError(
                f"config.json: rope_scaling has {len(factors)} factors for {len(inverse)} rotary frequencies"
            )
        return inverse / factors


def _llama3(block: Mapping[str, Any], config: Mapping[str, Any]) -> RopeScaling:
    low, high = positive(block, "low_freq_factor"), positive(block, "high_freq_factor")
    if low > high:
        raise wrong("high_freq_factor", high, f"at least low_freq_factor = {low}")
    return RopeScaling("llama3", positive(block, "factor"), _original_context(block, config), low, high)


def _yarn(block: Mapping[str, Any], config: Mapping[str, Any]) -> RopeScaling:
    original = _original_context(block, config)
    factor = positive(block, "factor", count(config, "max_position_embeddings", original) / original)
    if block.get("attention_factor") is not None:
        magnitude = positive(block, "attention_factor")
    elif block.get("mscale") and block.get("mscale_all_dim"):
        magnitude = _mscale(factor, positive(block, "mscale")) / _mscale(factor, positive(block, "mscale_all_dim"))
    else:
        magnitude = _mscale(factor, 1.0)
    slow, fast = positive(block, "beta_slow", 1.0), positive(block, "beta_fast", 32.0)
    return RopeScaling("yarn", factor, original, slow, fast, flag(block, "truncate", True), magnitude)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(block: Mapping[str, Any], config: Mapping[str, Any]) -> RopeScaling:
    original = _original_context(block, config)
    factor = positive(block, "factor", count(config, "max_position_embeddings", original) / original)
    magnitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return RopeScaling(
        "longrope",
        factor,
        original,
        magnitude=positive(block, "attention_factor", magnitude),
        short=numbers(block, "short_factor"),
        long=numbers(block, "long_factor"),
    )


def _original_context(block: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Phi-3 writes it beside the block, others into it; without it, max_position_embeddings."""
    key = "original_max_position_embeddings"
    if block.get(key) is None and config.get(key) is None:
        return count(config, "max_position_embeddings")
    return count(block if block.get(key) is not None else config, key)
