"""A request at work: what the scheduler keeps of it between two steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .constraint import Constraint
from .kv_cache import CachedSpan
from .penalties import adjusts
from .requests import Handle, TokenEvent
from .sampling import logprob, top_logprobs
from .speculation import Drafts


@dataclass(eq=False)
class Sequence:
    """One request at work: all ids so far, how many of them the pool holds, and where."""

    handle: Handle
    seed: int
    ids: list[int]
    prompt_length: int
    constraint: Constraint | None = None
    blocks: list[list[int]] = field(default_factory=list)  # of each group of layers
    filled: int = 0
    registered: int = 0  # full spans that the prefix cache knows
    chain: CachedSpan | None = None
    digests: list[bytes] = field(default_factory=list)  # of the text up to each id but the last, while it is computed
    drafts: Drafts | None = None

    @property
    def decoding(self) -> bool:
        """Only the last id, which was just generated, is not in the pool."""
        return len(self.ids) > self.prompt_length and self.filled == len(self.ids) - 1

    @property
    def scored(self) -> bool:
        """Its prompt's tokens are to be scored: all of it is computed, whatever the prefix cache holds."""
        return self.handle.request.prompt_logprobs is not None

    def score_prompt(self, rows: np.ndarray) -> None:
        """Logits [T, vocabulary] of the positions from `filled` on: score the prompt's tokens that follow them, unless
        that was done before a preemption."""
        scores, n = self.handle.prompt_scores, self.handle.request.prompt_logprobs or 0
        following = self.ids[self.filled + 1 : self.prompt_length]
        for row, token in [*zip(rows, following, strict=False)][len(scores) - self.filled :]:
            scores.append(TokenEvent(token, logprob(row, token), tuple(top_logprobs(row, n))))

    @property
    def argmax(self) -> bool:
        """Its next token is that of the largest logit as the model gives it, which the device finds itself."""
        params = self.handle.request.params
        greedy = params.temperature == 0 or params.top_k == 1
        return greedy and params.logprobs is None and self.constraint is None and not adjusts(params)
