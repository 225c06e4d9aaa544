"""What changes logits before the filters: repetition, presence and frequency penalties, DRY, logit bias."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import StrixhloError
from .dry import Breakers, repetitions
from .sampling import SamplingParams


def adjusts(params: SamplingParams) -> bool:
    """Whether `adjusted` changes anything for this request."""
    penalties = params.presence_penalty, params.frequency_penalty, params.logit_bias, params.dry_multiplier
    return params.repetition_penalty != 1 or any(penalties)


def check_bias(params: SamplingParams, vocabulary: int) -> None:
    """StrixhloError where logit_bias names a token that is none of the vocabulary's."""
    token = max(params.logit_bias, default=0)
    if token >= vocabulary:
        raise StrixhloError(f"sampling: logit_bias names token {token}; the vocabulary has {vocabulary}")


def adjusted(
    logits: np.ndarray,
    params: SamplingParams,
    prompt: Sequence[int],
    generated: Sequence[int],
    breakers: Breakers | None = None,
) -> np.ndarray:
    """Logits float32 [vocabulary], changed for one request; the same array where nothing is to change.

    repetition_penalty (Keskar et al., 2019) counts tokens of prompt and answer, as Hugging Face does: positive logits
    are divided by it, negative ones multiplied. presence_penalty and frequency_penalty (OpenAI's API) count the answer
    only: subtracted once for each token that occurs, and once for each occurrence. DRY (dry.py) counts both; without
    `breakers` nothing ends its matches. logit_bias is added last.
    """
    repetition, presence, frequency = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
    if not adjusts(params):
        return logits
    result = logits.astype(np.float32)
    if repetition != 1:
        seen = np.unique(np.array([*prompt, *generated], np.int64))
        values = result[seen]
        result[seen] = np.where(values > 0, values / repetition, values * repetition)
    if (presence or frequency) and generated:
        seen, counts = np.unique(np.array(generated, np.int64), return_counts=True)
        result[seen] -= (presence + frequency * counts).astype(np.float32)
    if params.dry_multiplier:
        none = np.zeros(logits.size, bool)
        breaks = breakers.mask(params.dry_sequence_breakers) if breakers else none
        for token, length in repetitions([*prompt, *generated], breaks).items():
            if length >= params.dry_allowed_length:
                result[token] -= params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length)
    check_bias(params, logits.size)
    if params.logit_bias:
        count = len(params.logit_bias)
        biased = np.fromiter(params.logit_bias.keys(), np.int64, count)
        result[biased] += np.fromiter(params.logit_bias.values(), np.float32, count)
    return result
