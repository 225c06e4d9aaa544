"""What an answer is billed: OpenAI's usage objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..requests import Handle
from ..tool_calls.pieces import Piece, Reasoning


@dataclass
class Counted:
    """Tokens of one answer, all its choices together."""

    prompt: int
    generated: int = 0
    reasoning: int = 0
    handles: Sequence[Handle] = ()  # one a choice
    _open: dict[int, int] = field(default_factory=dict)  # choice -> tokens that no piece has come of yet

    def tokens_of(self, choice: int, tokens: int, pieces: Sequence[Piece]) -> None:
        """See to which pieces `tokens` new ones led. A marker's tokens count to what stands behind it."""
        held = self._open.get(choice, 0) + tokens
        if pieces:
            if isinstance(pieces[0], Reasoning):
                self.reasoning += held
            held = 0
        self._open[choice] = held

    @property
    def cached(self) -> int:
        """Tokens of the prompt that the prefix cache held, for the first choice: the others find that one's own."""
        return self.handles[0].cached if self.handles else 0

    def usage(self) -> dict[str, Any]:
        """usage of chat completions and completions."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }

    def response_usage(self) -> dict[str, Any]:
        """usage of responses."""
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached},
            "output_tokens": self.generated,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.generated,
        }
