"""Whether token ids can be processed, before a device sees them."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import StrixhloError


def check_tokens(tokens: Sequence[int], before: int, context: int, vocab_size: int, exported: int) -> None:
    """StrixhloError unless there are tokens, the model has them, and they fit the context after `before` others.
    exported: the context of the bundle, of which `context` may be a part."""
    if not tokens:
        raise StrixhloError("there is nothing to process: the prompt has no tokens")
    if before + len(tokens) > context:
        larger = f"take a larger --ctx (up to {exported})" if context < exported else "export with a larger --context"
        raise StrixhloError(
            f"{before + len(tokens)} tokens do not fit into the context of {context}; shorten the prompt, or {larger}"
        )
    bad = [t for t in tokens if not 0 <= t < vocab_size]
    if bad:
        raise StrixhloError(
            f"token id {bad[0]} is not in the vocabulary of {vocab_size}: the tokenizer has tokens that the"
            " model lacks; change the prompt"
        )
