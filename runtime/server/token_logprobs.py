"""Log-probabilities in the two forms that OpenAI's endpoints have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..detokenize import StreamingDetokenizer
from ..requests import TokenEvent
from .served import ServedModel


def token_text(model: ServedModel, token: int) -> str:
    """One token's text alone; special tokens are shown."""
    return str(model.tokenizer.tokenizer.decode([token], skip_special_tokens=False))


def chat_logprob(model: ServedModel, event: TokenEvent) -> dict[str, Any]:
    """An entry of choices[].logprobs.content."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        text = token_text(model, token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return {**entry(event.token, event.logprob), "top_logprobs": [entry(t, lp) for t, lp in event.top_logprobs]}


def prompt_events(
    model: ServedModel, prompt: Sequence[int], scores: Sequence[TokenEvent]
) -> list[tuple[TokenEvent, int]]:
    """A scored prompt for `completion_logprobs`; nothing is known of its first token."""
    detokenizer, at, found = StreamingDetokenizer(model.tokenizer.tokenizer), 0, []
    for event in (TokenEvent(prompt[0]), *scores):
        found.append((event, at))
        at += len(detokenizer.push(event.token))
    return found


def completion_logprobs(model: ServedModel, events: list[tuple[TokenEvent, int]], as_ids: bool) -> dict[str, Any]:
    """choices[].logprobs of a completion; with each token where its text begins. as_ids: tokens are written as vLLM's
    return_tokens_as_token_ids does."""

    def shown(token: int) -> str:
        return f"token_id:{token}" if as_ids else token_text(model, token)

    return {
        "tokens": [shown(e.token) for e, _ in events],
        "token_logprobs": [e.logprob for e, _ in events],
        "top_logprobs": [None if e.logprob is None else {shown(t): p for t, p in e.top_logprobs} for e, _ in events],
        "text_offset": [at for _, at in events],
    }
