"""A request at work: what the scheduler keeps of it between two steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from .constraint import Constraint
from .kv_cache import CachedSpan
from .penalties import adjusts
from .requests import Handle
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
    drafts: Drafts | None = None

    @property
    def decoding(self) -> bool:
        """Only the last id, which was just generated, is not in the pool."""
        return len(self.ids) > self.prompt_length and self.filled == len(self.ids) - 1

    @property
    def argmax(self) -> bool:
        """Its next token is that of the largest logit as the model gives it, which the device finds itself."""
        params = self.handle.request.params
        greedy = params.temperature == 0 or params.top_k == 1
        return greedy and params.logprobs is None and self.constraint is None and not adjusts(params)
